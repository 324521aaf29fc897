//! Stalled requests: one whose thread waits for a disk that hangs is answered by a task, and another thread takes its place.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering::SeqCst};

use bdnfs::watchdog::Watchdog;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// The maximum number of threads of a mount that are replaced at once while they wait for a disk: more than can begin to read from
/// it until one of them is late, after which nobody does.
const MAX_REPLACED_THREADS: isize = 64;

thread_local! {
    /// Whether another thread has taken the place of this one.
    static IS_REPLACED: Cell<bool> = const { Cell::new(false) };
}

/// The requests of a mount whose threads touch the disk.
#[derive(Debug, Default)]
pub(crate) struct StalledRequests {
    watch: Arc<Watchdog>,
    /// The number of threads that have waited for too long, and wait still.
    stuck: Arc<AtomicIsize>,
    /// The number of threads that were to be replaced so far.
    replaced: watch::Sender<usize>,
}

/// Whether another thread has taken the place of this one, which is to end.
pub(crate) fn is_replaced() -> bool {
    IS_REPLACED.get()
}

impl StalledRequests {
    /// The number of threads that were to be replaced, as it grows.
    pub(crate) fn replaced(&self) -> watch::Receiver<usize> {
        self.replaced.subscribe()
    }

    /// Does `work`, which touches the local disk, on this thread.
    ///
    /// # Errors
    /// What `work` has come to, where that took too long: a task of `runtime` has called `on_late`, which must neither block nor
    /// panic.
    pub(crate) fn watch<T>(
        &self,
        runtime: &Handle,
        work: impl FnOnce() -> T,
        on_late: impl FnOnce() + Send + 'static,
    ) -> Result<T, T> {
        let (stuck, replaced) = (self.stuck.clone(), self.replaced.clone());
        let watched = self.watch.begin(runtime, move || {
            if stuck.fetch_add(1, SeqCst) < MAX_REPLACED_THREADS {
                replaced.send_modify(|replaced| *replaced += 1);
            }
            on_late();
        });
        let done = work();
        if watched.end() {
            return Ok(done);
        }
        IS_REPLACED.set(self.stuck.fetch_sub(1, SeqCst) <= MAX_REPLACED_THREADS);
        Err(done)
    }
}
