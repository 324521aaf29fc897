//! Stages: how far the work of making a snapshot local, verified and leased has come. [`staging`](crate::staging) does it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::error::{Error, Result};

/// A stage under way or done. Its snapshot keeps the leases as long as that lives.
#[derive(Debug)]
pub struct Stage {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) files_done: AtomicU64,
    pub(crate) bytes_done: AtomicU64,
    pub(crate) bytes_found: AtomicU64,
    /// Since when all is verified that is local when it is done, in seconds since 1970; `None`: what was local already is not.
    pub(crate) verified_since: Option<i64>,
    /// The number of flights that may start at once beyond those of the beginning.
    pub(crate) extra_flights: AtomicUsize,
    pub(crate) large_blobs: Semaphore,
    /// Whether it was found out what is missing.
    pub(crate) planned: AtomicBool,
    /// Whether something that was here has been removed since the plan was made.
    pub(crate) outdated: Mutex<bool>,
    pub(crate) outcome: OnceLock<Result<()>>,
    pub(crate) changed: Notify,
}

/// Progress of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Progress {
    /// Regular files in the snapshot.
    pub files: u64,
    /// Files that are local and verified.
    pub files_done: u64,
    /// Bytes in the snapshot's files.
    pub bytes: u64,
    /// Bytes that are local and verified.
    pub bytes_done: u64,
    /// Bytes that were local when the stage came to them.
    pub bytes_found: u64,
}

impl Stage {
    /// Since when all is verified that is local when it is done, in seconds since 1970; `None` where what was local already is not.
    pub(crate) fn verified_since(&self) -> Option<i64> {
        self.verified_since
    }

    /// Progress so far.
    pub fn progress(&self) -> Progress {
        Progress {
            files: self.files,
            files_done: self.files_done.load(Relaxed),
            bytes: self.bytes,
            bytes_done: self.bytes_done.load(Relaxed).min(self.bytes),
            bytes_found: self.bytes_found.load(Relaxed),
        }
    }

    /// Whether it was found out what is missing, by this stage or the one before it: until then, the progress says nothing.
    pub fn is_planned(&self) -> bool {
        self.planned.load(Acquire)
    }

    /// The outcome of the stage; `None` while it is under way.
    pub fn outcome(&self) -> Option<Result<()>> {
        self.outcome.get().map(|outcome| outcome.as_ref().map_err(Error::share).copied())
    }

    /// Waits until the stage is done: everything is whole, verified, durable and leased.
    ///
    /// # Errors
    /// What kept the first file that failed from it.
    pub async fn done(&self) -> Result<()> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            changed.await;
        }
    }

    /// Makes a stage that is under way look once more, at its end, for what is missing. False when it has ended.
    pub(crate) fn plan_again(&self) -> bool {
        let mut outdated = self.outdated.lock();
        *outdated = true;
        self.outcome.get().is_none()
    }

    /// Ends the stage with success, unless something was removed since its last plan: then it returns false.
    pub(crate) fn finish(&self) -> bool {
        let outdated = self.outdated.lock();
        if !*outdated {
            self.outcome.set(Ok(())).ok();
        }
        !*outdated
    }
}
