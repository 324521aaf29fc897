//! Tasks that block: kept off the threads that all asynchronous work shares.

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinError;

use crate::error::{Error, Kind, Result};

/// Runs `work`, which waits for the disk or keeps a processor busy, on a blocking thread of the current runtime.
///
/// # Errors
/// Those of `work`, and those of [`join_error`].
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(join_error(e)))
}

/// Runs a future on a blocking thread of the current runtime: for one that moves between no threads, as far as the compiler can
/// see. Dropping what comes back drops it.
///
/// # Errors
/// Those of the future, and those of [`join_error`].
pub async fn run_on_blocking_thread<T, W>(work: impl FnOnce() -> W + Send + 'static) -> Result<T>
where
    T: Send + 'static,
    W: Future<Output = Result<T>>,
{
    let (stay, gone) = oneshot::channel::<()>();
    let runtime = Handle::current();
    let done = blocking(move || {
        runtime.block_on(async {
            tokio::select! {
                done = work() => done,
                _ = gone => Err(Error::new(Kind::Interrupted, "it was cancelled")),
            }
        })
    });
    let done = done.await;
    drop(stay);
    done
}

/// The error for a task that did not end by itself: [`Kind::Interrupted`] where the process is about to end,
/// [`Kind::Disk`] where the task panicked.
pub fn join_error(error: JoinError) -> Error {
    let (kind, text) = match error.is_panic() {
        true => (Kind::Disk, "a task panicked, which is a bug in bdnfs"),
        false => (Kind::Interrupted, "a task was cancelled: bdnfs is shutting down"),
    };
    Error::with(kind, text, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn on_own_thread_dropped_drops_its_future() {
        assert_eq!(run_on_blocking_thread(|| async { Ok(5) }).await.expect("no error"), 5);
        let (held, dropped) = oneshot::channel::<()>();
        let work = run_on_blocking_thread(|| async move {
            let _held = held;
            std::future::pending::<Result<()>>().await
        });
        let begun = tokio::spawn(work);
        tokio::task::yield_now().await;
        begun.abort();
        dropped.await.expect_err("it was dropped");
    }

    #[tokio::test]
    async fn blocking_panic_is_an_error() {
        let done = blocking(|| -> Result<()> { panic!("as intended") }).await;
        assert_eq!(done.expect_err("it panicked").kind(), Kind::Disk);
        assert_eq!(blocking(|| Ok(5)).await.expect("no error"), 5);
    }
}
