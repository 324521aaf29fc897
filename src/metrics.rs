//! Metrics: what came from where, of each snapshot and of all of them together.

mod meter;
mod times;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::error::{Kind, Result};
use crate::tier::TierKind;

pub use meter::{Flying, Meter, Metered, Requests};
pub use times::{BOUNDS, Spread, Times};

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

/// The counters behind a [`Traffic`]: those of one snapshot, which also count into the engine's [`Meter`].
#[derive(Debug, Default)]
pub struct Counters {
    cache: AtomicU64,
    peer: AtomicU64,
    mirror: AtomicU64,
    origin: AtomicU64,
    requests: AtomicU64,
    meter: Arc<Meter>,
}

impl Counters {
    /// Counts into `meter`, too.
    pub fn of(meter: &Arc<Meter>) -> Arc<Self> {
        Arc::new(Self { meter: meter.clone(), ..Self::default() })
    }

    /// Counts bytes that were read out of the node's cache.
    pub fn cached(&self, bytes: u64) {
        self.cache.fetch_add(bytes, Relaxed);
        self.meter.cached(bytes);
    }

    /// Counts bytes that arrived from a tier.
    pub fn arrived(&self, rung: TierKind, bytes: u64) {
        let counter = match rung {
            TierKind::Peer => &self.peer,
            TierKind::Mirror => &self.mirror,
            TierKind::Origin => &self.origin,
        };
        counter.fetch_add(bytes, Relaxed);
        self.meter.arrived(rung, bytes);
    }

    /// Counts a request to a tier.
    pub fn asked(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Counts how long a tier took until its first byte.
    pub fn began(&self, rung: TierKind, took: Duration) {
        self.meter.began(rung, took);
    }

    /// Counts how a request to a tier ended: with all of what was asked for (true), without it, or with an error.
    pub fn ended(&self, rung: TierKind, outcome: &Result<bool>) {
        self.meter.ended(rung, outcome.as_ref().copied().map_err(|error| error.kind()));
    }

    /// Counts a block that a tier sent and that was not right.
    pub fn refuted(&self, rung: TierKind) {
        self.meter.refuted(rung);
    }

    /// What was counted up to now.
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

/// One number for each kind of error.
pub type ByKind = [u64; Kind::ALL.len()];
