//! Adds what was attempted to the errors of the operating system.

use std::io;

use bdnfs::error::{Error, Result};

/// Makes an error of the engine from one of the operating system.
pub trait Context<T> {
    /// Adds that `attempt` failed: "cannot start a thread".
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk), or [`Kind::NoSpace`](bdnfs::error::Kind::NoSpace) where the disk is full.
    fn context(self, attempt: &str) -> Result<T>;

    /// Like `context`, with a sentence that is only put together when it is needed.
    ///
    /// # Errors
    /// As [`context`](Self::context).
    fn with_context(self, attempt: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, attempt: &str) -> Result<T> {
        self.map_err(|error| Error::disk(attempt, error.into()))
    }

    fn with_context(self, attempt: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::disk(attempt(), error.into()))
    }
}
