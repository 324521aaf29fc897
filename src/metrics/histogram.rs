//! A latency histogram, which costs two atomic additions per event.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The upper bounds of the buckets, in microseconds; what takes longer than the last is in one more. Each is four times
/// the one before: that tells a request answered from memory from one that went to a disk, to another node, to another
/// continent, up to a read's deadline of 30 s.
pub const BUCKET_BOUNDS: [u64; 12] =
    [4, 16, 64, 256, 1_000, 4_000, 16_000, 64_000, 250_000, 1_000_000, 4_000_000, 16_000_000];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKET_BOUNDS.len() + 1],
    nanos: AtomicU64,
}

/// The counts of a [`Histogram`] at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramCounts {
    /// The number of those that fell into each bucket, the last being those beyond all [`BUCKET_BOUNDS`].
    pub counts: [u64; BUCKET_BOUNDS.len() + 1],
    /// The total time of all of them.
    pub sum: Duration,
}

impl Histogram {
    /// Counts something that took so long.
    pub fn add(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BUCKET_BOUNDS.partition_point(|bound| *bound * 1000 < nanos);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    /// The counts up to now.
    pub fn counts(&self) -> HistogramCounts {
        let counts = self.buckets.each_ref().map(|bucket| bucket.load(Relaxed));
        HistogramCounts { counts, sum: Duration::from_nanos(self.nanos.load(Relaxed)) }
    }
}

impl HistogramCounts {
    /// Returns the number of all of them.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_value_at_a_bound_counts_below_it() {
        let times = Histogram::default();
        for took in [0, 4_000, 4_001, 16_000_000_000, 16_000_000_001, u64::MAX / 2] {
            times.add(Duration::from_nanos(took));
        }
        let spread = times.counts();
        assert_eq!((spread.counts[0], spread.counts[1], spread.counts[11], spread.counts[12]), (2, 1, 1, 2));
        assert_eq!(spread.count(), 6);
    }
}
