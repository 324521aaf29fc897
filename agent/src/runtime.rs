//! The asynchronous runtimes: a small one for a command that asks, a full one for a daemon.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Builder;

/// How long work on the disk may still take when a daemon ends; what it doesn't finish is fetched again.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How many threads do a daemon's blocking work, the disk's mostly: enough to keep any disk busy, a fraction of the memory
/// and the switching that the usual five hundred cost.
const BLOCKING: usize = 64;

/// Runs what a command does on this thread.
pub fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(work)
}

/// Runs what a daemon does, on as many threads as there are processors.
pub fn block_on_threads<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(LAST_WORDS);
    done
}

/// Gives back to the machine what was freed, and is kept by the allocator for more of the same: of a long listing, about a quarter
/// of what it took at its peak. It looks through all of the heap, so it is for the end of what took much, on a thread that may wait.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
