//! Room in the cache for jobs: all that a job reads is leased at once, or it waits for its turn.
//!
//! Jobs are admitted in the order in which they come to it. The first in the queue waits as long as other jobs hold
//! anything, for what they hold comes back by itself; those behind it wait for it, so that a large one is not passed over for
//! ever by small ones. What mounts and pins hold does not come back by itself: where there are no other jobs to wait for, a
//! job is refused. One that is larger than the cache is refused at once.
//!
//! That a job has its room is written down, all of it in one record, and holds until the job has ended, whichever agent
//! carries it there: one that had to queue again might wait behind another which waits for what it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::time::Duration;

use bdnfs::error::Kind;
use bdnfs::snapshot::Snapshot;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};

use crate::api::Failure;
use crate::jobs::Known;
use crate::mounts::host::blocking;
use crate::mounts::hosted::Hosted;

/// How often who waits looks again: leases end a moment after their mounts.
const LOOK: Duration = Duration::from_millis(500);
/// How long that moment may be.
const SETTLE: Duration = Duration::from_secs(10);

/// The queue.
#[derive(Debug, Default)]
pub struct Room {
    turn: Mutex<()>,
    /// The number of the job whose turn it is.
    first: AtomicU64,
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

    /// Leases all that is mounted by `mounts` for `job`, as soon as there is room; at once, if it has that already.
    pub async fn admit(self: &Arc<Self>, job: &Known, mounts: &[Arc<Hosted>]) -> Result<(), Failure> {
        if job.has_room() {
            return hold(mounts.to_vec()).await;
        }
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                let first = self.first.load(Relaxed);
                job.note(format!("waits for room in the cache behind job {first}"), |_| ());
                self.turn.lock().await
            }
        };
        self.first.store(job.id(), Relaxed);
        let mut waits = false;
        let mut alone_since = None;
        loop {
            let failure = match attempt(mounts.to_vec()).await? {
                None => {
                    job.takes_room(self.count());
                    return Ok(());
                }
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

/// Leases what a job had its room for, which may not be leased yet if its mount could not be brought back.
async fn hold(mounts: Vec<Arc<Hosted>>) -> Result<(), Failure> {
    blocking(move || Ok(mounts.iter().try_for_each(|mount| mount.snapshot().hold())?)).await
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
