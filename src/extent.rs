//! Extents: runs of adjacent blocks moved by one request, and how long to make them.

use std::time::Duration;

use crate::block::BLOCK;

/// The most blocks that one request moves: 16 MiB. Beyond that a request's overhead no longer shows, and one that
/// breaks off costs more.
pub const MAX_EXTENT_BLOCKS: u64 = 16;

/// The most blocks that one request brings ahead of a reader: 8 MiB, so that a window of 64 MiB keeps eight requests under way.
pub const MAX_AHEAD_BLOCKS: u64 = 8;

/// The inverse of the part of a request that may be spent on waiting for its first byte: one eighth.
const LATENCY_SHARE: u32 = 8;

/// A run of adjacent blocks of one blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first block.
    pub first: u64,
    /// The number of blocks; at least 1.
    pub blocks: u64,
}

impl Extent {
    /// The blocks' numbers.
    pub fn range(self) -> std::ops::Range<u64> {
        self.first..self.first + self.blocks
    }

    /// The bytes that it covers in a blob of `size` bytes.
    pub fn bytes(self, size: u64) -> std::ops::Range<u64> {
        self.bytes_in(BLOCK, size)
    }

    /// The bytes that it covers in a blob of `size` bytes if it counts units of `unit` bytes instead of blocks.
    pub fn bytes_in(self, unit: u64, size: u64) -> std::ops::Range<u64> {
        self.first * unit..((self.first + self.blocks) * unit).min(size)
    }
}

/// An estimate of a tier's latency and rate, and so how much to ask for at once: as much as it sends in eight times its
/// latency.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Until the first byte, in seconds.
    latency: f64,
    /// Bytes a second from then on.
    rate: f64,
}

impl Default for Pace {
    /// The estimate for a near object store: the first requests are half as long as the longest.
    fn default() -> Self {
        Self { latency: 0.02, rate: 52e6 }
    }
}

impl Pace {
    /// Records one request's `latency` to the first byte, and the `bytes` that arrived within `flow` from there on. The
    /// newest counts one fifth, so that one odd request changes little.
    pub fn observe(&mut self, latency: Duration, bytes: u64, flow: Duration) {
        let blend = |old: f64, new: f64| old * 0.8 + new * 0.2;
        self.latency = blend(self.latency, latency.as_secs_f64());
        if bytes >= BLOCK {
            self.rate = blend(self.rate, bytes as f64 / flow.as_secs_f64().max(1e-6));
        }
    }

    /// Returns the number of blocks to ask for, where they are all wanted.
    pub fn blocks(&self) -> u64 {
        let bytes = self.rate * self.latency * f64::from(LATENCY_SHARE);
        ((bytes / BLOCK as f64).round() as u64).clamp(1, MAX_EXTENT_BLOCKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_with_higher_latency_or_rate_gives_longer_extents() {
        let settled = |latency, rate: u64| {
            let mut pace = Pace::default();
            for _ in 0..50 {
                pace.observe(
                    Duration::from_millis(latency),
                    8 << 20,
                    Duration::from_secs_f64((8 << 20) as f64 / rate as f64),
                );
            }
            pace.blocks()
        };
        assert_eq!(settled(1, 10_000_000), 1);
        assert_eq!(settled(20, 100_000_000), 15);
        assert_eq!(settled(200, 1_000_000_000), MAX_EXTENT_BLOCKS);
    }

    #[test]
    fn extent_at_the_end_is_cut_to_the_blob() {
        let extent = Extent { first: 2, blocks: 4 };
        assert_eq!(extent.bytes(3 * BLOCK + 5), 2 * BLOCK..3 * BLOCK + 5);
        assert_eq!(extent.bytes_in(10, 35), 20..35);
        assert_eq!(extent.range(), 2..6);
    }
}
