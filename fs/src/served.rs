//! What was served: how many requests of each kind took how long, and how files were opened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bdnfs::metrics::{Spread, Times};
use rustix::io::Errno;

use crate::wire::request::Operation;

/// The operations that are told apart, by their names.
const OPERATIONS: [&str; 12] = [
    "lookup",
    "getattr",
    "readlink",
    "open",
    "read",
    "release",
    "readdir",
    "statfs",
    "getxattr",
    "listxattr",
    "change",
    "other",
];

/// The errors that tell of trouble, by their names; others are a part of talking to a kernel.
const ERRORS: [(Errno, &str); 6] = [
    (Errno::ACCESS, "EACCES"),
    (Errno::BADMSG, "EBADMSG"),
    (Errno::INTR, "EINTR"),
    (Errno::IO, "EIO"),
    (Errno::ROFS, "EROFS"),
    (Errno::TIMEDOUT, "ETIMEDOUT"),
];

/// Counts what mounts serve; one can count for many of them.
#[derive(Debug, Default)]
pub struct Served {
    operations: [Times; OPERATIONS.len()],
    errors: [AtomicU64; ERRORS.len()],
    cached: AtomicU64,
    passthrough: AtomicU64,
    followed: AtomicU64,
}

/// What [`Served`] had counted at one moment.
#[derive(Clone, Debug)]
pub struct Counted {
    /// How long each operation took from when the request was read until it was answered.
    pub operations: Vec<(&'static str, Spread)>,
    /// How many requests were answered with an error, by its name.
    pub errors: Vec<(&'static str, u64)>,
    /// How many opens of files there were that the daemon serves.
    pub cached: u64,
    /// How many there were that the kernel serves by itself.
    pub passthrough: u64,
}

impl Served {
    /// Counts a request that was answered, so long after it was read.
    pub(crate) fn answered(&self, operation: usize, took: Duration, error: Option<Errno>) {
        self.operations[operation].add(took);
        let named = |error| ERRORS.iter().position(|(errno, _)| *errno == error);
        if let Some(place) = error.and_then(named) {
            self.errors[place].fetch_add(1, Relaxed);
        }
    }

    /// A number for a request that is followed through the log: mounts number theirs each by themselves.
    pub(crate) fn follow(&self) -> u64 {
        self.followed.fetch_add(1, Relaxed) + 1
    }

    /// Counts an open.
    pub(crate) fn opened(&self, passthrough: bool) {
        let counter = if passthrough { &self.passthrough } else { &self.cached };
        counter.fetch_add(1, Relaxed);
    }

    /// What was counted up to now.
    pub fn read(&self) -> Counted {
        let operations = OPERATIONS.into_iter().zip(&self.operations);
        let errors = ERRORS.into_iter().zip(&self.errors);
        Counted {
            operations: operations.map(|(name, times)| (name, times.spread())).collect(),
            errors: errors.map(|((_, name), count)| (name, count.load(Relaxed))).collect(),
            cached: self.cached.load(Relaxed),
            passthrough: self.passthrough.load(Relaxed),
        }
    }
}

/// Which of the operations a request is for.
pub(crate) fn number(operation: Option<&Operation<'_>>) -> usize {
    let name = match operation {
        Some(Operation::Lookup { .. }) => "lookup",
        Some(Operation::Getattr) => "getattr",
        Some(Operation::Readlink) => "readlink",
        Some(Operation::Open { .. }) => "open",
        Some(Operation::Read { .. }) => "read",
        Some(Operation::Release { .. }) => "release",
        Some(Operation::Readdir { .. }) => "readdir",
        Some(Operation::Statfs) => "statfs",
        Some(Operation::Getxattr { .. }) => "getxattr",
        Some(Operation::Listxattr { .. }) => "listxattr",
        Some(Operation::Change) => "change",
        _ => "other",
    };
    OPERATIONS.iter().position(|known| *known == name).unwrap_or(OPERATIONS.len() - 1)
}

/// The name of an operation.
pub(crate) fn name(number: usize) -> &'static str {
    OPERATIONS[number]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_they_are_and_come_to() {
        let served = Served::default();
        let read = number(Some(&Operation::Read { fh: 1, offset: 0, size: 1 }));
        served.answered(read, Duration::from_micros(3), None);
        served.answered(read, Duration::from_secs(1), Some(Errno::IO));
        served.answered(number(None), Duration::ZERO, Some(Errno::NOSYS));
        served.opened(true);
        let counted = served.read();
        let of = |name| counted.operations.iter().find(|(known, _)| *known == name).map(|(_, s)| s.count());
        assert_eq!((name(read), of("read"), of("other"), of("open")), ("read", Some(2), Some(1), Some(0)));
        let errors: u64 = counted.errors.iter().map(|(_, count)| count).sum();
        assert_eq!((errors, counted.cached, counted.passthrough), (1, 0, 1));
    }
}
