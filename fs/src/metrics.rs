//! Request metrics: how many requests of each kind took how long, and how files were opened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bdnfs::metrics::{Histogram, HistogramCounts};
use rustix::io::Errno;

use crate::wire::request::Operation;

/// The names of the operations that are counted separately.
const COUNTED_OPERATIONS: [&str; 12] = [
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

/// The errors that are counted, and their names; others are a part of every kernel's requests.
const COUNTED_ERRNOS: [(Errno, &str); 6] = [
    (Errno::ACCESS, "EACCES"),
    (Errno::BADMSG, "EBADMSG"),
    (Errno::INTR, "EINTR"),
    (Errno::IO, "EIO"),
    (Errno::ROFS, "EROFS"),
    (Errno::TIMEDOUT, "ETIMEDOUT"),
];

/// Counters of the requests of one mount or of many.
#[derive(Debug, Default)]
pub struct RequestMetrics {
    operations: [Histogram; COUNTED_OPERATIONS.len()],
    errors: [AtomicU64; COUNTED_ERRNOS.len()],
    cached: AtomicU64,
    passthrough: AtomicU64,
    trace_ids: AtomicU64,
}

/// The counts of [`RequestMetrics`] at one moment.
#[derive(Clone, Debug)]
pub struct RequestTotals {
    /// The latencies of each operation, from when a request was read until its reply.
    pub operations: Vec<(&'static str, HistogramCounts)>,
    /// The number of error replies, by the name of the error.
    pub errors: Vec<(&'static str, u64)>,
    /// The number of opened files whose reads the agent serves.
    pub cached: u64,
    /// The number of opened files whose reads the kernel serves (passthrough).
    pub passthrough: u64,
}

impl RequestMetrics {
    /// Counts a reply, which took so long.
    pub(crate) fn record_reply(&self, operation: usize, took: Duration, error: Option<Errno>) {
        self.operations[operation].add(took);
        let named = |error| COUNTED_ERRNOS.iter().position(|(errno, _)| *errno == error);
        if let Some(place) = error.and_then(named) {
            self.errors[place].fetch_add(1, Relaxed);
        }
    }

    /// A number by which a request is followed through the log: each mount numbers its own, so they repeat.
    pub(crate) fn next_trace_id(&self) -> u64 {
        self.trace_ids.fetch_add(1, Relaxed) + 1
    }

    /// Counts an open.
    pub(crate) fn record_open(&self, passthrough: bool) {
        let counter = if passthrough { &self.passthrough } else { &self.cached };
        counter.fetch_add(1, Relaxed);
    }

    /// The counts up to now.
    pub fn totals(&self) -> RequestTotals {
        let operations = COUNTED_OPERATIONS.into_iter().zip(&self.operations);
        let errors = COUNTED_ERRNOS.into_iter().zip(&self.errors);
        RequestTotals {
            operations: operations.map(|(name, times)| (name, times.counts())).collect(),
            errors: errors.map(|((_, name), count)| (name, count.load(Relaxed))).collect(),
            cached: self.cached.load(Relaxed),
            passthrough: self.passthrough.load(Relaxed),
        }
    }
}

/// The number of an operation, for [`RequestMetrics::record_reply`].
pub(crate) fn operation_number(operation: Option<&Operation<'_>>) -> usize {
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
    COUNTED_OPERATIONS.iter().position(|known| *known == name).unwrap_or(COUNTED_OPERATIONS.len() - 1)
}

/// The name of the operation with this number.
pub(crate) fn operation_name(number: usize) -> &'static str {
    COUNTED_OPERATIONS[number]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_replies_are_counted_by_operation_and_error() {
        let metrics = RequestMetrics::default();
        let read = operation_number(Some(&Operation::Read { fh: 1, offset: 0, size: 1 }));
        metrics.record_reply(read, Duration::from_micros(3), None);
        metrics.record_reply(read, Duration::from_secs(1), Some(Errno::IO));
        metrics.record_reply(operation_number(None), Duration::ZERO, Some(Errno::NOSYS));
        metrics.record_open(true);
        let totals = metrics.totals();
        let of = |name| totals.operations.iter().find(|(known, _)| *known == name).map(|(_, s)| s.count());
        assert_eq!(
            (operation_name(read), of("read"), of("other"), of("open")),
            ("read", Some(2), Some(1), Some(0))
        );
        let errors: u64 = totals.errors.iter().map(|(_, count)| count).sum();
        assert_eq!((errors, totals.cached, totals.passthrough), (1, 0, 1));
    }
}
