//! The exit codes of commands that run a program: those of the program, and one for failures of their own.

use std::fmt;

use anyhow::Error;

/// The exit status of most commands that fail.
const DEFAULT_EXIT_CODE: u8 = 1;

/// A failure of a command that does not exit with 1.
#[derive(Debug)]
pub struct ExitStatusError {
    code: u8,
    error: Error,
}

impl ExitStatusError {
    /// The failure `error` of a command that exits with `code`. One that has a code already keeps it.
    pub fn wrap(code: u8, error: Error) -> Error {
        if error.is::<Self>() { error } else { Error::new(Self { code, error }) }
    }
}

impl fmt::Display for ExitStatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for ExitStatusError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.error.as_ref())
    }
}

/// The exit code of a command that failed with `error`.
pub fn exit_code(error: &Error) -> u8 {
    error.downcast_ref::<ExitStatusError>().map_or(DEFAULT_EXIT_CODE, |error| error.code)
}
