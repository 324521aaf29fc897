//! Reads of the cache's disk, and whether it answers them.
//!
//! A device that hangs blocks a reading thread for as long as it likes. While a read is late, two seconds after it began, nothing
//! more is read from the disk, and readers go to the next tier. What is late is not taken back: when it returns, the disk is read
//! again.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::error::{Error, Kind, Result};
use crate::task::join_error;
use crate::watchdog::{WATCHDOG_TIMEOUT, Watchdog, WatchdogGuard};

/// The number of reads that may wait for the disk on threads of a runtime: half of those that it has, so that the others do what
/// needs no disk.
const MAX_BLOCKING_READS: usize = 32;

/// The reads of a disk.
#[derive(Debug)]
pub struct DiskReads {
    watch: Arc<Watchdog>,
    /// The number of reads that are late.
    late: watch::Sender<isize>,
    blocking: Arc<Semaphore>,
}

impl Default for DiskReads {
    fn default() -> Self {
        let blocking = Arc::new(Semaphore::new(MAX_BLOCKING_READS));
        Self { watch: Arc::default(), late: watch::Sender::new(0), blocking }
    }
}

impl DiskReads {
    /// Whether one is late: then nothing is to be read.
    pub fn are_late(&self) -> bool {
        *self.late.borrow() > 0
    }

    /// The error of what is not read from a disk that does not answer.
    pub fn refusal() -> Error {
        Error::new(Kind::Busy, format!("the cache's disk did not answer within {WATCHDOG_TIMEOUT:?}"))
    }

    /// Runs `read`, which reads from the disk, on this thread, watched by a task of `runtime`.
    pub fn run<T>(self: &Arc<Self>, runtime: &Handle, read: impl FnOnce() -> T) -> T {
        let reads = self.clone();
        let watched = self.watch.begin(runtime, move || reads.count_late(1));
        let _running = RunningRead { reads: self, watched: Some(watched) };
        read()
    }

    /// [Runs](Self::run) `read` on a blocking thread of `runtime`; `None` where the disk does not answer.
    ///
    /// # Errors
    /// Those of [`join_error`].
    pub async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        runtime: &Handle,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>> {
        let mut late = self.late.subscribe();
        let work = async {
            let permit = self.blocking.clone().acquire_owned().await;
            let (reads, watching) = (self.clone(), runtime.clone());
            let read = move || {
                // As long as the thread waits for the disk, whoever still waits for it.
                let _permit = permit;
                reads.run(&watching, read)
            };
            runtime.spawn_blocking(read).await.map_err(join_error)
        };
        tokio::select! {
            biased;
            _ = late.wait_for(|late| *late > 0) => Ok(None),
            done = work => done.map(Some),
        }
    }

    /// Waits until none is late.
    pub async fn answered(&self) {
        // The sender lives as long as this.
        let _ = self.late.subscribe().wait_for(|late| *late <= 0).await;
    }

    fn count_late(&self, change: isize) {
        // The end of a late read may come before it is counted as late.
        let mut before = 0;
        self.late.send_modify(|late| {
            before = *late;
            *late += change;
        });
        match (before, change) {
            (0, 1) => {
                tracing::warn!(
                    "the cache's disk does not answer reads: nothing is read from it until it does"
                );
            }
            (1, -1) => tracing::warn!("the cache's disk answers reads again"),
            _ => {}
        }
    }
}

/// A read under way, however it ends.
struct RunningRead<'a> {
    reads: &'a DiskReads,
    watched: Option<WatchdogGuard>,
}

impl Drop for RunningRead<'_> {
    fn drop(&mut self) {
        if self.watched.take().is_some_and(|watched| !watched.end()) {
            self.reads.count_late(-1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn disk_with_a_late_read_is_not_read_until_that_returns() {
        let (reads, runtime) = (Arc::new(DiskReads::default()), Handle::current());
        let (answer, hangs) = mpsc::channel::<u8>();
        let given_up = reads.run_blocking(&runtime, move || hangs.recv().expect("an answer")).await;
        assert_eq!(given_up.expect("no panic"), None);
        assert!(reads.are_late());
        let refused = reads.run_blocking(&runtime, || panic!("it is not read")).await;
        assert_eq!(refused.expect("it is not run"), None::<()>);
        answer.send(7).expect("it waits");
        reads.answered().await;
        assert_eq!(reads.run_blocking(&runtime, || 5).await.expect("no panic"), Some(5));
        let failed = reads.run_blocking(&runtime, || panic!("as intended")).await;
        failed.map(|_: Option<()>| ()).expect_err("it panicked");
        assert!(!reads.are_late());
    }
}
