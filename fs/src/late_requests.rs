//! Late requests: one whose thread waits for a disk that hangs is answered by a task, and another thread takes its place.

use std::sync::Arc;

use bdnfs::late::LateWatch;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// The requests of a mount whose threads touch the disk.
#[derive(Debug, Default)]
pub(crate) struct LateRequests {
    watch: Arc<LateWatch>,
    /// How many threads waited for too long.
    threads: watch::Sender<usize>,
}

impl LateRequests {
    /// The number of threads that waited for the disk for too long, as it grows.
    pub(crate) fn threads(&self) -> watch::Receiver<usize> {
        self.threads.subscribe()
    }

    /// Does `work`, which touches the local disk, on this thread.
    ///
    /// # Errors
    /// What `work` has come to, where that took too long: a task of `runtime` has called `on_late`, which must not block.
    pub(crate) fn watch<T>(
        &self,
        runtime: &Handle,
        work: impl FnOnce() -> T,
        on_late: impl FnOnce() + Send + 'static,
    ) -> Result<T, T> {
        let threads = self.threads.clone();
        let watched = self.watch.begin(runtime, move || {
            threads.send_modify(|threads| *threads += 1);
            on_late();
        });
        let done = work();
        if watched.end() { Ok(done) } else { Err(done) }
    }
}
