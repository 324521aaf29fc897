//! The failure of a request, as it travels over the control socket.

use std::fmt;

use bdnfs::error::Kind;
use serde::{Deserialize, Serialize};

/// The result of a request: an answer or a failure.
pub type ApiResult<T> = Result<T, Failure>;

/// The failure of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure, which says what the caller would do differently: a [`Kind`] in lower case,
    /// [`Failure::CLOSING`], or for a job what became of its commands.
    pub kind: String,
    /// The message, one line.
    pub message: String,
}

impl Failure {
    /// The agent is about to end: ask the next one.
    pub const CLOSING: &str = "closing";
    /// A job's command exited with another code than 0.
    pub const COMMAND_EXITED: &str = "command_exited";
    /// A signal ended a job's command.
    pub const COMMAND_SIGNALED: &str = "command_signaled";
    /// A job's command could not be started.
    pub const COMMAND_NOT_STARTED: &str = "command_not_started";
    /// Something else is published under the key or at the target.
    pub const EXISTS: &str = "exists";
    /// The rules of the node don't allow it, whatever the credentials.
    pub const FORBIDDEN: &str = "forbidden";

    /// A failure of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind: kind_name(kind).to_owned(), message: message.into() }
    }

    /// The agent is about to end.
    pub fn closing() -> Self {
        Self { kind: Self::CLOSING.to_owned(), message: "the agent is ending; try again".to_owned() }
    }

    /// The failure of a check of the node's rules: what that refuses is [`FORBIDDEN`](Self::FORBIDDEN).
    pub fn of_rules(error: bdnfs::error::Error) -> Self {
        match Self::from(error) {
            refused if refused.is(Kind::Refused) => Self { kind: Self::FORBIDDEN.to_owned(), ..refused },
            other => other,
        }
    }

    /// Whether the failure is of this kind.
    pub fn is(&self, kind: Kind) -> bool {
        self.kind == kind_name(kind)
    }
}

impl From<bdnfs::error::Error> for Failure {
    fn from(error: bdnfs::error::Error) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The word for a kind.
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Invalid => "invalid",
        Kind::NotFound => "notfound",
        Kind::Refused => "refused",
        Kind::Timeout => "timeout",
        Kind::Unavailable => "unavailable",
        Kind::Changed => "changed",
        Kind::Corrupt => "corrupt",
        Kind::Disk => "disk",
        Kind::NoSpace => "nospace",
        Kind::Busy => "busy",
        Kind::Interrupted => "interrupted",
        Kind::Unsupported => "unsupported",
    }
}
