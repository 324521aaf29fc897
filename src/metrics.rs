//! Metrics: what came from where.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::tier::Rung;

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

/// The counters behind a [`Traffic`].
#[derive(Debug, Default)]
pub struct Counters {
    cache: AtomicU64,
    peer: AtomicU64,
    mirror: AtomicU64,
    origin: AtomicU64,
    requests: AtomicU64,
}

impl Counters {
    /// Counts bytes that were read out of the node's cache.
    pub fn cached(&self, bytes: u64) {
        self.cache.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes that arrived from a tier.
    pub fn arrived(&self, rung: Rung, bytes: u64) {
        let counter = match rung {
            Rung::Peer => &self.peer,
            Rung::Mirror => &self.mirror,
            Rung::Origin => &self.origin,
        };
        counter.fetch_add(bytes, Relaxed);
    }

    /// Counts a request to a tier.
    pub fn asked(&self) {
        self.requests.fetch_add(1, Relaxed);
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
