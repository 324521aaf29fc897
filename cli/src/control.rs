//! The control socket: HTTP with JSON over a unix socket in the cache directory, between the commands and the daemon.
//!
//!     POST   /v1/mounts              mounts a source                   api::MountRequest -> api::Mounted
//!     DELETE /v1/mounts/{id}         unmounts it (?lazy=true: at once, whoever holds it)
//!     GET    /v1/mounts/{id}/ended   answers when it is no longer mounted
//!     POST   /v1/mounts/{id}/stage   begins to make all of it local    -> api::Staging
//!     GET    /v1/mounts/{id}/stage   how far that is                   -> api::Staging
//!     GET    /v1/status              the cache and all mounts          -> api::Status
//!
//! A failure is an `api::Failure` with a fitting status code. Whoever may connect may mount as the daemon's user, so
//! only that user and root are let in.

use std::path::{Path, PathBuf};

pub mod api;
pub mod client;
pub mod server;

/// Where the daemon of the cache in `dir` listens.
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// Whether a peer of this user is one to talk to: the same user, or root.
fn trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}
