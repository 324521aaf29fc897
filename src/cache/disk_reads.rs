//! Reads of the cache's disk, and whether it answers them.
//!
//! A device that hangs blocks a reading thread for as long as it likes. While a read is late, two seconds after it began, nothing more
//! is read from the disk, and readers go to the next tier. What is late is not taken back: when it returns, the disk is read again.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::error::{Error, Kind};
use crate::late::{LATE_AFTER, LateWatch};

/// How many reads may wait for the disk on threads of a runtime: half of those that it has, so that the others do what needs no disk.
const MAX_BLOCKING_READS: usize = 32;

/// The reads of a disk.
#[derive(Debug)]
pub struct DiskReads {
    watch: Arc<LateWatch>,
    /// How many are late.
    late: watch::Sender<isize>,
    blocking: Semaphore,
}

impl Default for DiskReads {
    fn default() -> Self {
        let blocking = Semaphore::new(MAX_BLOCKING_READS);
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
        Error::new(Kind::Busy, format!("the cache's disk did not answer within {LATE_AFTER:?}"))
    }

    /// Runs `read`, which reads from the disk, on this thread, watched by a task of `runtime`.
    pub fn run<T>(self: &Arc<Self>, runtime: &Handle, read: impl FnOnce() -> T) -> T {
        let reads = self.clone();
        let watched = self.watch.begin(runtime, move || reads.count_late(1));
        let done = read();
        if !watched.end() {
            self.count_late(-1);
        }
        done
    }

    /// The result of `read`, which is run on a blocking thread of `runtime` and calls [`run`](Self::run); `None` where the disk does not
    /// answer.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        runtime: &Handle,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Result<T, tokio::task::JoinError>> {
        let mut late = self.late.subscribe();
        let work = async {
            let _permit = self.blocking.acquire().await;
            runtime.spawn_blocking(read).await
        };
        tokio::select! {
            biased;
            _ = late.wait_for(|late| *late > 0) => None,
            done = work => Some(done),
        }
    }

    /// Waits until none is late.
    pub async fn answered(&self) {
        // The sender lives as long as this.
        let _ = self.late.subscribe().wait_for(|late| *late <= 0).await;
    }

    fn count_late(&self, change: isize) {
        // The end of a late read may come before it is counted as late.
        self.late.send_modify(|late| {
            let before = *late;
            *late += change;
            match (before, *late) {
                (0, 1) => tracing::warn!(
                    "the cache's disk does not answer reads: nothing is read from it until it does"
                ),
                (1, 0) => tracing::warn!("the cache's disk answers reads again"),
                _ => {}
            }
        });
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
        let read = {
            let (reads, runtime) = (reads.clone(), runtime.clone());
            move || reads.run(&runtime, || hangs.recv().expect("an answer"))
        };
        let late = tokio::spawn({
            let (reads, runtime) = (reads.clone(), runtime.clone());
            async move { reads.run_blocking(&runtime, read).await.is_none() }
        });
        assert!(late.await.expect("no panic"), "it is given up");
        assert!(reads.are_late());
        assert!(
            reads
                .run_blocking(&runtime, || panic!("it is not read"))
                .await
                .is_none_or(|_: Result<(), _>| false)
        );
        answer.send(7).expect("it waits");
        let mut count = reads.late.subscribe();
        count.wait_for(|late| *late == 0).await.expect("it lives");
        assert_eq!(reads.run_blocking(&runtime, || 5).await.expect("in time").expect("no panic"), 5);
    }
}
