//! Admission: all that a job reads is leased at once, beside the space that it may write to, or the job waits for its turn.
//!
//! Jobs are admitted in the order in which they come to the queue. The first waits as long as other jobs hold
//! anything, for what they hold comes back by itself; those behind it wait for it, so that a large one is not passed over for
//! ever by small ones. What mounts and pins hold does not come back by itself: where there are no other jobs to wait for, a
//! job is refused. One that is larger than the cache is refused at once. Publications, which wait for what containers and pins
//! hold, let others pass that fit.
//!
//! An admission is written down in the job's record, and holds until the job has ended, whichever agent carries it there:
//! one that had to queue again might wait behind another which waits for what it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::time::Duration;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::snapshot::Snapshot;
use bdnfs::task::blocking;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::{Instant, sleep, timeout};

use crate::api::{ApiResult, Failure};

/// The interval at which the first in the queue tries again: leases end a moment after their mounts.
const ADMISSION_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The time that leases of ended jobs may take to end.
const SPACE_RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// The queue of what waits for space in the cache.
#[derive(Debug, Default)]
pub struct AdmissionQueue {
    /// Held by the first in the queue.
    turn: Mutex<()>,
    /// The name of the first in the queue.
    first: parking_lot::Mutex<String>,
    released: Notify,
    admitted: AtomicUsize,
}

/// The permit of what was admitted. Drop it when its mounts are gone.
#[derive(Debug)]
pub struct AdmissionPermit(Arc<AdmissionQueue>);

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        self.0.admitted.fetch_sub(1, AcqRel);
        self.0.released.notify_one();
    }
}

impl AdmissionQueue {
    /// The permit of what was admitted in an earlier run.
    pub fn readmit(self: &Arc<Self>) -> AdmissionPermit {
        self.admitted.fetch_add(1, AcqRel);
        AdmissionPermit(Arc::clone(self))
    }

    /// Leases all `snapshots` for `name` ("publication p"), as soon as they fit, without a place in the queue: while it waits,
    /// others are admitted that fit. What it waits for may never come back by itself. `note` is told why it waits.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] where they can't fit, whatever jobs end.
    pub async fn admit_beside_queue(
        self: &Arc<Self>,
        name: &str,
        snapshots: &[Arc<Snapshot>],
        note: impl Fn(String),
    ) -> ApiResult<()> {
        self.admit_in(QueuePlace::Beside, name, snapshots, || Ok(None), note).await.map(drop)
    }

    /// Leases all `snapshots` for `name` ("job 7"), as soon as they fit, and beside them takes what `claim` takes, which returns
    /// why it can't now. What it has taken may be there the next time that it is called. `note` is told why it waits.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] where they can't fit, whatever jobs end; those of `claim`.
    pub async fn admit(
        self: &Arc<Self>,
        name: &str,
        snapshots: &[Arc<Snapshot>],
        claim: impl Fn() -> Result<Option<Error>> + Clone + Send + 'static,
        note: impl Fn(String),
    ) -> ApiResult<AdmissionPermit> {
        self.admit_in(QueuePlace::First, name, snapshots, claim, note).await
    }

    async fn admit_in(
        self: &Arc<Self>,
        place: QueuePlace,
        name: &str,
        snapshots: &[Arc<Snapshot>],
        claim: impl Fn() -> Result<Option<Error>> + Clone + Send + 'static,
        note: impl Fn(String),
    ) -> ApiResult<AdmissionPermit> {
        let (mut turn, mut waits, mut alone_since) = (None, false, None);
        loop {
            if turn.is_none() {
                turn = Some(self.take_turn(name, &note).await);
            }
            let failure = match attempt(snapshots.to_vec(), claim.clone()).await? {
                None => return Ok(self.readmit()),
                Some(failure) => failure,
            };
            if self.admitted.load(Acquire) > 0 {
                alone_since = None;
            } else if alone_since.get_or_insert_with(Instant::now).elapsed() > SPACE_RELEASE_TIMEOUT {
                return Err(failure);
            }
            if !std::mem::replace(&mut waits, true) {
                note(format!("waits for room in the cache: {failure}"));
            }
            match place {
                QueuePlace::First => {
                    let _ = timeout(ADMISSION_RETRY_INTERVAL, self.released.notified()).await;
                }
                // What was released wakes one: the first.
                QueuePlace::Beside => {
                    turn = None;
                    sleep(ADMISSION_RETRY_INTERVAL).await;
                }
            }
        }
    }

    /// Becomes the first in the queue.
    async fn take_turn(&self, name: &str, note: impl Fn(String)) -> MutexGuard<'_, ()> {
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                note(format!("waits for room in the cache behind {}", self.first.lock()));
                self.turn.lock().await
            }
        };
        name.clone_into(&mut self.first.lock());
        turn
    }
}

/// The place of what waits for space, after it was first in the queue.
#[derive(Clone, Copy, Debug)]
enum QueuePlace {
    /// It stays the first.
    First,
    /// It asks again now and then.
    Beside,
}

/// Waits until the cache's content `is_counted`, which takes a moment after a start: before that, nobody knows what has room beside
/// it. `note` is told that it waits.
pub async fn await_count(is_counted: impl Fn() -> bool, note: impl Fn(String)) {
    if is_counted() {
        return;
    }
    note("waits until the content of the cache is counted".to_owned());
    while !is_counted() {
        sleep(ADMISSION_RETRY_INTERVAL).await;
    }
}

/// Leases what was admitted in an earlier run. A mount that could not be restored has lost its lease.
pub async fn lease_all(snapshots: Vec<Arc<Snapshot>>) -> Result<()> {
    blocking(move || snapshots.iter().try_for_each(|snapshot| snapshot.hold())).await
}

/// Tries once to claim and lease all: `None`, or why there is no space now.
async fn attempt(
    snapshots: Vec<Arc<Snapshot>>,
    claim: impl FnOnce() -> Result<Option<Error>> + Send + 'static,
) -> Result<Option<Failure>> {
    blocking(move || {
        let snapshots: Vec<&Snapshot> = snapshots.iter().map(|snapshot| &**snapshot).collect();
        Snapshot::could_be_admitted(&snapshots)?;
        if let Some(error) = claim()? {
            return Ok(Some(error.into()));
        }
        match Snapshot::admit_all(&snapshots) {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == Kind::NoSpace => Ok(Some(error.into())),
            Err(error) => Err(error),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn admission_after_a_start_waits_for_the_count_and_says_so_once() {
        let (asked, notes) = (Cell::new(0), RefCell::new(Vec::new()));
        let is_counted = || {
            asked.set(asked.get() + 1);
            asked.get() > 5
        };
        await_count(is_counted, |note| notes.borrow_mut().push(note)).await;
        assert_eq!((asked.get(), notes.borrow().len()), (6, 1));
        await_count(|| true, |note| panic!("{note}")).await;
    }
}
