//! Tasks that block: kept off the threads that all asynchronous work shares.

use tokio::task::JoinError;

use crate::error::{Error, Kind, Result};

/// Runs `work`, which waits for the disk or keeps a processor busy, on a blocking thread of the current runtime.
///
/// # Errors
/// Those of `work`, and those of [`lost`].
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(lost(e)))
}

/// The error for a task that did not end by itself: [`Kind::Interrupted`] where the process is about to end,
/// [`Kind::Disk`] where the task panicked.
pub fn lost(error: JoinError) -> Error {
    let (kind, text) = match error.is_panic() {
        true => (Kind::Disk, "a task panicked, which is a bug in bdnfs"),
        false => (Kind::Interrupted, "a task was cancelled: bdnfs is shutting down"),
    };
    Error::with(kind, text, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn blocking_work_that_panics_is_an_error() {
        let done = blocking(|| -> Result<()> { panic!("as intended") }).await;
        assert_eq!(done.expect_err("it panicked").kind(), Kind::Disk);
        assert_eq!(blocking(|| Ok(5)).await.expect("no error"), 5);
    }
}
