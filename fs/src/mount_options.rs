//! The options of a mount.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{getgid, getuid};

use crate::RequestMetrics;
use crate::handover::DentryInvalidator;
use crate::tree::FileOwner;

/// The options of a mount.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Allow users other than the mounting one to use the mount.
    pub allow_other: bool,
    /// Owner of all files; the mounting user by default.
    pub uid: Option<u32>,
    /// Group of all files; the mounting user's by default.
    pub gid: Option<u32>,
    /// The most threads that serve the mount, at least two.
    pub threads: usize,
    /// Path of the agent's control socket, shown as the root's extended attribute `user.bdnfs.control`.
    pub control: Option<PathBuf>,
    /// The mount is the lower layer of an overlay: each file keeps its inode while it becomes local, so that no open through the
    /// overlay fails with ESTALE; the owner's modes allow writing, and there are no extended attributes, since the overlay
    /// copies both with a file that is written to. A file that becomes local while it is open is read by the kernel itself
    /// only after it has been closed.
    pub steady: bool,
    /// The metrics that count requests.
    pub metrics: Arc<RequestMetrics>,
    /// Invalidates names in place of this process.
    pub invalidator: Option<Arc<dyn DentryInvalidator>>,
}

impl Options {
    /// The owner of all files.
    pub(crate) fn owner(&self) -> FileOwner {
        FileOwner {
            uid: self.uid.unwrap_or_else(|| getuid().as_raw()),
            gid: self.gid.unwrap_or_else(|| getgid().as_raw()),
            may_write: self.steady,
        }
    }
}
