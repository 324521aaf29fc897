//! Room in the cache for jobs: all that a job reads is leased at once, or it waits for its turn.
//!
//! Jobs are admitted in the order in which they come to it. The first in the queue waits as long as other jobs hold
//! anything, for what they hold comes back by itself; those behind it wait for it, so that a large one is not passed over for
//! ever by small ones. What mounts and pins hold does not come back by itself: where there are no other jobs to wait for, a
//! job is refused. One that is larger than the cache is refused at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::time::Duration;

use bdnfs::error::Kind;
use bdnfs::snapshot::Snapshot;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};

use super::super::host::blocking;
use super::super::hosted::Hosted;
use super::Known;
use crate::control::api::Failure;

/// How often who waits looks again: leases end a moment after their mounts.
const LOOK: Duration = Duration::from_millis(500);
/// How long that moment may be.
const SETTLE: Duration = Duration::from_secs(10);

/// The queue.
#[derive(Debug, Default)]
pub struct Room {
    turn: Mutex<()>,
    freed: Notify,
    admitted: AtomicUsize,
}

/// Says that a job holds room. To be dropped when its mounts are gone.
#[derive(Debug)]
pub struct Admitted(Arc<Room>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.admitted.fetch_sub(1, AcqRel);
        self.0.freed.notify_one();
    }
}

impl Room {
    /// Counts a job that holds its room already.
    pub fn count(self: &Arc<Self>) -> Admitted {
        self.admitted.fetch_add(1, AcqRel);
        Admitted(Arc::clone(self))
    }

    /// Leases all that is mounted by `mounts` for `job`, as soon as there is room.
    pub async fn admit(self: &Arc<Self>, job: &Known, mounts: &[Arc<Hosted>]) -> Result<Admitted, Failure> {
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                job.note("waits for room in the cache behind other jobs", |_| ());
                self.turn.lock().await
            }
        };
        let mut waits = false;
        let mut alone_since = None;
        loop {
            let failure = match attempt(mounts.to_vec()).await? {
                None => return Ok(self.count()),
                Some(failure) => failure,
            };
            if self.admitted.load(Acquire) > 0 {
                alone_since = None;
            } else if alone_since.get_or_insert_with(Instant::now).elapsed() > SETTLE {
                return Err(failure);
            }
            if !std::mem::replace(&mut waits, true) {
                job.note(format!("waits for room in the cache: {failure}"), |_| ());
            }
            let _ = timeout(LOOK, self.freed.notified()).await;
        }
    }
}

/// Tries it once: nothing, or why there is no room now.
async fn attempt(mounts: Vec<Arc<Hosted>>) -> Result<Option<Failure>, Failure> {
    blocking(move || {
        let snapshots: Vec<_> = mounts.iter().map(|mount| mount.snapshot()).collect();
        Snapshot::could_be_admitted(&snapshots)?;
        match Snapshot::admit_all(&snapshots) {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == Kind::NoSpace => Ok(Some(error.into())),
            Err(error) => Err(error.into()),
        }
    })
    .await
}
