//! Verification times: when the content of a cached file was last known to be right.
//!
//! It is the file's time of modification, in whole seconds. A later write gets a time with nanoseconds from
//! the kernel, so a change from outside shows.

use std::fs::File;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Stat, Timespec, Timestamps, UTIME_OMIT};

/// Marks all of `file` as verified at `time`. Best effort: without the mark it is verified again.
pub fn mark(file: &File, time: SystemTime) {
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: seconds(time), tv_nsec: 0 };
    if let Err(error) = rustix::fs::futimens(file, &Timestamps { last_access, last_modification }) {
        tracing::debug!(%error, "cannot mark a blob as verified");
    }
}

/// When a file was last verified, in seconds since 1970; `None` where it was written since.
pub fn time_of(stat: &Stat) -> Option<i64> {
    (stat.st_mtime_nsec == 0).then_some(stat.st_mtime)
}

/// `time` in seconds since 1970.
pub fn seconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
