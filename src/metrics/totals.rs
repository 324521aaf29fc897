//! Totals: the counters of an engine over all its snapshots, closed ones included.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{CountsByKind, Histogram, HistogramCounts, Traffic};
use crate::error::Kind;
use crate::tier::TierKind;

/// The counters of an engine. They only grow, except those said to be of now.
#[derive(Debug, Default)]
pub struct EngineMetrics {
    cached: AtomicU64,
    /// Peers, mirror, origin.
    tiers: [TierCounters; 3],
    flights_started: AtomicU64,
    /// Flights under way now.
    flights_in_progress: AtomicU64,
}

#[derive(Debug, Default)]
struct TierCounters {
    bytes: AtomicU64,
    answered: AtomicU64,
    missed: AtomicU64,
    failed: [AtomicU64; Kind::ALL.len()],
    wrong_blocks: AtomicU64,
    began: Histogram,
}

/// A flight under way; it counts as that until it is dropped.
#[derive(Debug)]
pub struct FlightGauge(Arc<EngineMetrics>);

impl Drop for FlightGauge {
    fn drop(&mut self) {
        self.0.flights_in_progress.fetch_sub(1, Relaxed);
    }
}

/// The counts of an [`EngineMetrics`] at one moment.
#[derive(Clone, Debug, Default)]
pub struct EngineTotals {
    /// Bytes read out of the node's cache by this process.
    pub cached: u64,
    /// Requests to peers, to mirrors and to origins.
    pub tiers: [(&'static str, TierRequests); 3],
    /// Flights that were started.
    pub flights_started: u64,
    /// Flights under way.
    pub flights_in_progress: u64,
}

/// The outcomes of the requests to one kind of tier.
#[derive(Clone, Debug, Default)]
pub struct TierRequests {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Requests that were answered with all of what was asked for.
    pub answered: u64,
    /// Requests for blocks that the tier does not have.
    pub missed: u64,
    /// Failed requests, by [`Kind::ALL`].
    pub failed: CountsByKind,
    /// Blocks that arrived and were not right.
    pub wrong_blocks: u64,
    /// The times until the first byte.
    pub began: HistogramCounts,
}

impl EngineMetrics {
    pub(super) fn count_cached(&self, bytes: u64) {
        self.cached.fetch_add(bytes, Relaxed);
    }

    pub(super) fn count_bytes(&self, tier: TierKind, bytes: u64) {
        self.of(tier).bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn record_first_byte(&self, tier: TierKind, took: Duration) {
        self.of(tier).began.add(took);
    }

    pub(super) fn count_outcome(&self, tier: TierKind, outcome: Result<bool, Kind>) {
        let tier = self.of(tier);
        let counter = match outcome {
            Ok(true) => &tier.answered,
            Ok(false) => &tier.missed,
            Err(kind) => &tier.failed[kind as usize],
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn count_wrong_block(&self, tier: TierKind) {
        self.of(tier).wrong_blocks.fetch_add(1, Relaxed);
    }

    /// Counts a flight, as one under way until the answer is dropped.
    pub fn start_flight(self: &Arc<Self>) -> FlightGauge {
        self.flights_started.fetch_add(1, Relaxed);
        self.flights_in_progress.fetch_add(1, Relaxed);
        FlightGauge(self.clone())
    }

    /// The counts up to now.
    pub fn totals(&self) -> EngineTotals {
        let counted_by = |tier: TierKind, name| {
            let counted = self.of(tier);
            let requests = TierRequests {
                bytes: counted.bytes.load(Relaxed),
                answered: counted.answered.load(Relaxed),
                missed: counted.missed.load(Relaxed),
                failed: counted.failed.each_ref().map(|counter| counter.load(Relaxed)),
                wrong_blocks: counted.wrong_blocks.load(Relaxed),
                began: counted.began.counts(),
            };
            (name, requests)
        };
        let tiers = [
            counted_by(TierKind::Peer, "peer"),
            counted_by(TierKind::Mirror, "mirror"),
            counted_by(TierKind::Origin, "origin"),
        ];
        let (flights_started, flights_in_progress) =
            (self.flights_started.load(Relaxed), self.flights_in_progress.load(Relaxed));
        EngineTotals { cached: self.cached.load(Relaxed), tiers, flights_started, flights_in_progress }
    }

    fn of(&self, tier: TierKind) -> &TierCounters {
        &self.tiers[tier as usize]
    }
}

impl EngineTotals {
    /// The bytes by tier, in the form that one snapshot reports them.
    pub fn traffic(&self) -> Traffic {
        let [peer, mirror, origin] = self.tiers.each_ref().map(|(_, requests)| requests.bytes);
        let requests = self.tiers.iter().map(|(_, requests)| requests.all()).sum();
        Traffic { cache: self.cached, peer, mirror, origin, requests }
    }
}

impl TierRequests {
    /// All requests that have ended.
    pub fn all(&self) -> u64 {
        self.answered + self.missed + self.failed.iter().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::SnapshotMetrics;
    use super::*;
    use crate::error::Error;

    #[test]
    fn totals_of_two_snapshots_add_up_and_outlive_them() {
        let metrics = Arc::new(EngineMetrics::default());
        let (one, two) = (SnapshotMetrics::in_engine(&metrics), SnapshotMetrics::in_engine(&metrics));
        one.count_bytes(TierKind::Mirror, 7);
        two.count_bytes(TierKind::Mirror, 5);
        two.count_cached(3);
        one.count_outcome(TierKind::Mirror, &Ok(true));
        two.count_outcome(TierKind::Peer, &Ok(false));
        two.count_outcome(TierKind::Origin, &Err(Error::new(Kind::Refused, "no")));
        two.count_wrong_block(TierKind::Origin);
        assert_eq!((one.traffic().mirror, two.traffic().mirror), (7, 5));
        drop((one, two));
        let flight = metrics.start_flight();
        assert_eq!(metrics.totals().flights_in_progress, 1);
        drop(flight);
        let read = metrics.totals();
        let [(_, peer), (_, mirror), (_, origin)] = &read.tiers;
        assert_eq!((read.flights_started, read.flights_in_progress), (1, 0));
        assert_eq!((peer.missed, mirror.answered, origin.failed[Kind::Refused as usize]), (1, 1, 1));
        assert_eq!(read.traffic(), Traffic { cache: 3, mirror: 12, requests: 3, ..Traffic::default() });
        assert_eq!(origin.wrong_blocks, 1);
    }
}
