//! Errors, classified by what the caller should do about them.

use std::fmt;
use std::path::Path;

/// A result of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error: what the caller should do differently. Kinds are few on purpose: two failures that
/// deserve the same reaction share a kind, and the message tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The input is wrong; the same call fails again. Change the input.
    Invalid,
    /// The named thing does not exist, or may not be known to exist.
    NotFound,
    /// Credentials are missing, wrong, expired or too weak. Change the credentials.
    Refused,
    /// No answer came within the deadline. Trying again may help.
    Timeout,
    /// A tier can't be reached or can't answer now. Another tier, or a later try, may help.
    Unavailable,
    /// The origin no longer holds the version that the snapshot pinned. Take a new snapshot.
    Changed,
    /// Bytes arrived that are provably not the right ones.
    Corrupt,
    /// The local disk failed.
    Disk,
    /// The local disk, or the limit set on the cache, has no room.
    NoSpace,
    /// The resource is in use by another process or mount.
    Busy,
    /// The operation was given up by its caller.
    Interrupted,
    /// The machine or the peer lacks what the operation needs.
    Unsupported,
}

/// A failure: its [`Kind`], one sentence of context, and the error beneath it, where there is one.
pub struct Error {
    kind: Kind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    is_of_disk: bool,
}

impl Kind {
    /// All kinds, each at the index of its number.
    pub const ALL: [Self; 12] = [
        Self::Invalid,
        Self::NotFound,
        Self::Refused,
        Self::Timeout,
        Self::Unavailable,
        Self::Changed,
        Self::Corrupt,
        Self::Disk,
        Self::NoSpace,
        Self::Busy,
        Self::Interrupted,
        Self::Unsupported,
    ];
}

impl Error {
    /// An error without a cause. `context` says what failed, where, and what to do.
    pub fn new(kind: Kind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None, is_of_disk: false }
    }

    /// An error with the error that caused it.
    pub fn with(
        kind: Kind,
        context: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, context: context.into(), source: Some(source.into()), is_of_disk: false }
    }

    /// An error of the local disk: [`Kind::NoSpace`] where the disk is full, else [`Kind::Disk`].
    pub fn disk(context: impl Into<String>, source: std::io::Error) -> Self {
        let full = matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
        let error = Self::with(if full { Kind::NoSpace } else { Kind::Disk }, context, source);
        Self { is_of_disk: true, ..error }
    }

    /// Whether the local disk itself has failed, or is full: not so where the limits of the cache leave no room.
    pub fn is_of_disk(&self) -> bool {
        self.is_of_disk
    }

    /// The kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Adds `outer`, the failed operation one level further out, to the message.
    pub fn context(mut self, outer: impl fmt::Display) -> Self {
        self.context = format!("{outer}: {}", self.context);
        self
    }

    /// Adds the directory in which it happened, if it is a failure of the local disk.
    pub fn on_disk(self, directory: &Path) -> Self {
        match self.kind {
            Kind::Disk | Kind::NoSpace => self.context(directory.display()),
            _ => self,
        }
    }

    /// Adds what to do about the failure.
    pub fn advise(mut self, advice: impl fmt::Display) -> Self {
        self.context = format!("{}; {advice}", self.context);
        self
    }

    /// A copy that several waiters can be given: the causes are folded into its message.
    pub fn share(&self) -> Self {
        Self { is_of_disk: self.is_of_disk, ..Self::new(self.kind, self.to_string()) }
    }
}

impl fmt::Display for Error {
    /// One line: the context, then each cause that adds something to it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = self.context.clone();
        let mut cause = self.source.as_deref().map(|c| c as &dyn std::error::Error);
        while let Some(error) = cause {
            let text = error.to_string();
            if !line.contains(&text) {
                line.push_str(": ");
                line.push_str(&text);
            }
            cause = error.source();
        }
        f.write_str(&line.replace('\n', " "))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_with_causes_displays_one_line() {
        let io = std::io::Error::other("spindle\nstopped");
        let error = Error::disk("cannot write block 3", io).context("model.bin");
        assert_eq!(error.to_string(), "model.bin: cannot write block 3: spindle stopped");
        assert_eq!(error.kind(), Kind::Disk);
        assert_eq!(error.share().to_string(), error.to_string());
    }

    #[test]
    fn kind_all_is_in_numeric_order() {
        assert!(Kind::ALL.iter().enumerate().all(|(place, kind)| *kind as usize == place));
    }

    #[test]
    fn disk_error_of_full_disk_is_no_space() {
        let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(Error::disk("x", full).kind(), Kind::NoSpace);
    }
}
