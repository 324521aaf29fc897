//! The fd store: a process that keeps an agent's mounts alive while there is no agent.
//!
//! The kernel ends a mount when the last descriptor of its device is closed. So an agent gives duplicates of them to a small
//! process of its own, which does nothing but hold them, and outlives it: its crash, and its replacement by another version.
//! Meanwhile requests wait, and files that the kernel reads by itself are read on. The next agent takes the descriptors and
//! goes on ([`bdnfs_fs::handover`]).
//!
//! There is one fd store a cache, and it is the process that has the lock on `holder.lock`. The agent, which
//! alone owns the cache, takes that lock and listens at `holder.sock` *before* it starts the fd store, and hands
//! both over: so there is never a second one, and no agent has to wait for one to come up. An fd store ends when
//! it holds nothing and no agent is there, or when none has come within the hold time ([`FdStore::find`]).
//!
//! While it runs, the agent greets the fd store again and again. One that hangs would block its cache and its mounts: the fd store
//! kills it, so that the next can take over. One that a signal stopped is continued. That is all that the fd store of an on-demand
//! agent does ([`watcher`]): its mounts end with it.
//!
//! It can also run as a service of its own ([`process::run_service`]), so that agents in containers that are replaced find it.
//!
//! It also holds the request of each mount with its secrets, in its memory only: they never get to the disk,
//! and the next agent can still read what is not local.

mod client;
mod heartbeat;
mod invalidation_requests;
mod invalidations;
mod invalidator;
mod lock;
mod note;
pub mod process;
pub mod watcher;
mod wire;

use std::time::Duration;

pub use client::{FdStore, StoredMount};
#[cfg(feature = "fuzz")]
pub(crate) use {note::unpack, wire::Message, wire::decode};

/// The interval of an agent's heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// The time in which an fd store must answer: it does so from memory, so one that takes longer is stuck, and mounts would be with
/// it.
const FDSTORE_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause before an fd store is started again: one that dies at once is not started over and over.
pub const FDSTORE_RESTART_PAUSE: Duration = Duration::from_secs(1);
