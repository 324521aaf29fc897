//! Metrics: bytes and requests by tier, of each snapshot and of the whole engine.

mod histogram;
mod totals;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::blob::Key;
use crate::error::{Error, Kind, Result};
use crate::tier::TierKind;

pub use histogram::{BUCKET_BOUNDS, Histogram, HistogramCounts};
pub use totals::{EngineMetrics, EngineTotals, FlightGauge, TierRequests};

/// Bytes and requests by tier, since counting began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    /// Bytes read out of the node's cache by this process (passthrough reads don't come by here).
    pub cache: u64,
    /// Bytes fetched from cluster peers.
    pub peer: u64,
    /// Bytes fetched from the mirror.
    pub mirror: u64,
    /// Bytes fetched from the origin.
    pub origin: u64,
    /// Requests made to peers, mirror and origin.
    pub requests: u64,
}

/// The counters behind a [`Traffic`]: those of one snapshot, which also count into the engine's [`EngineMetrics`].
#[derive(Debug, Default)]
pub struct SnapshotMetrics {
    cache: AtomicU64,
    peer: AtomicU64,
    mirror: AtomicU64,
    origin: AtomicU64,
    requests: AtomicU64,
    damaged: Mutex<BTreeMap<Key, String>>,
    metrics: Arc<EngineMetrics>,
}

/// The number of damaged blobs that are remembered for each snapshot: more are found when these are repaired.
const DAMAGED_LIMIT: usize = 64;

impl SnapshotMetrics {
    /// Counts into `metrics`, too.
    pub fn in_engine(metrics: &Arc<EngineMetrics>) -> Arc<Self> {
        Arc::new(Self { metrics: metrics.clone(), ..Self::default() })
    }

    /// Counts bytes that were read out of the node's cache.
    pub fn count_cached(&self, bytes: u64) {
        self.cache.fetch_add(bytes, Relaxed);
        self.metrics.count_cached(bytes);
    }

    /// Counts bytes that arrived from a tier.
    pub fn count_bytes(&self, tier: TierKind, bytes: u64) {
        let counter = match tier {
            TierKind::Peer => &self.peer,
            TierKind::Mirror => &self.mirror,
            TierKind::Origin => &self.origin,
        };
        counter.fetch_add(bytes, Relaxed);
        self.metrics.count_bytes(tier, bytes);
    }

    /// Counts a request to a tier.
    pub fn count_request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Counts how long a tier took until its first byte.
    pub fn record_first_byte(&self, tier: TierKind, took: Duration) {
        self.metrics.record_first_byte(tier, took);
    }

    /// Counts how a request to a tier ended: with all of what was asked for (true), without it, or with an error.
    pub fn count_outcome(&self, tier: TierKind, outcome: &Result<bool>) {
        self.metrics.count_outcome(tier, outcome.as_ref().copied().map_err(|error| error.kind()));
    }

    /// Counts a block that a tier sent and that was not right.
    pub fn count_wrong_block(&self, tier: TierKind) {
        self.metrics.count_wrong_block(tier);
    }

    /// Records that the mirror sent wrong bytes of the blob `key`, and the first error that said so.
    pub fn record_damage(&self, key: Key, error: &Error) {
        let mut damaged = self.damaged.lock();
        if damaged.len() < DAMAGED_LIMIT {
            damaged.entry(key).or_insert_with(|| error.to_string());
        }
    }

    /// The blobs that are damaged in the mirror, and what is wrong with each.
    pub fn damage(&self) -> Vec<(Key, String)> {
        self.damaged.lock().iter().map(|(key, fault)| (*key, fault.clone())).collect()
    }

    /// The counts up to now.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            cache: self.cache.load(Relaxed),
            peer: self.peer.load(Relaxed),
            mirror: self.mirror.load(Relaxed),
            origin: self.origin.load(Relaxed),
            requests: self.requests.load(Relaxed),
        }
    }
}

/// A count for each kind of error.
pub type CountsByKind = [u64; Kind::ALL.len()];
