//! One attempt to fetch blocks: each tier of the ladder is asked once, in order, for what is still missing.

use std::time::Duration;

use tokio::time::Instant;

use super::{FetchScope, Wanted};
use crate::blob::Blob;
use crate::error::{Error, Kind, Result};
use crate::extent::Extent;
use crate::metrics::SnapshotMetrics;
use crate::placement::ClusterTier;
use crate::tier::{Tier, Urgency};

/// The number of invalid responses that a tier may send in a row: a server or a proxy in trouble sends one (an error page, a
/// redirect to nowhere), and a file that has changed says so again.
const INVALID_RESPONSE_LIMIT: u32 = 2;

/// The time that a tier may take until its first byte, and again for each block after it, while another is left (docs/semantics.md,
/// "Errors and time").
pub(super) const REQUEST_STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of one attempt: which blocks are still missing, and what went wrong.
pub(super) struct FetchAttempt<'a> {
    pub(super) blob: &'a Blob,
    pub(super) counters: &'a SnapshotMetrics,
    pub(super) scope: FetchScope,
    /// As it is now: readers join while it is under way.
    pub(super) urgency: &'a (dyn Fn() -> Urgency + Sync),
    pub(super) missing: Vec<u64>,
    /// The length of each of them, in bytes: that of a block, or of a fragment of one.
    pub(super) unit: u64,
    /// When a block last arrived.
    pub(super) last_arrival: Instant,
    /// The time that requests have waited for their turn since the tiers were last asked anew.
    pub(super) waited: Duration,
    /// The time after it at which the attempt fails, unless another arrives.
    pub(super) stall_limit: Duration,
    /// Whether a tier has sent wrong bytes since the first tier was asked.
    pub(super) wrong_bytes: bool,
    /// The time for which a tier may stall while another is left. It grows with each that did: the others may be of no help.
    pub(super) stall_timeout: Duration,
    /// Whether a tier has stalled for that long since the first tier was asked.
    pub(super) stalled: bool,
    /// The tiers that did not serve the blob, each once.
    pub(super) refusals: Vec<Refusal>,
}

/// The refusal of a tier, which is not out of order, to serve a blob.
pub(super) struct Refusal {
    /// The tier, by its place in the ladder.
    place: usize,
    /// The number of times in a row that it may be a passing fault.
    responses: u32,
    error: Error,
}

/// One step of an attempt: a tier that is asked.
#[derive(Clone, Copy)]
pub(super) struct FetchStep<'a> {
    pub(super) tier: &'a dyn Tier,
    /// The tier as part of a cluster, where it is one.
    pub(super) peer: Option<&'a dyn ClusterTier>,
    /// Its place among the tiers that are no peers.
    pub(super) place: Option<usize>,
    /// Whether no other tier comes below it that may help.
    pub(super) last: bool,
}

impl<'a> FetchAttempt<'a> {
    /// An attempt to fetch what is `wanted`, none of which has been asked for.
    pub(super) fn new(
        blob: &'a Blob,
        counters: &'a SnapshotMetrics,
        (scope, urgency): (FetchScope, &'a (dyn Fn() -> Urgency + Sync)),
        wanted: Wanted,
        stall_limit: Duration,
    ) -> Self {
        Self {
            blob,
            counters,
            scope,
            urgency,
            missing: wanted.indices,
            unit: wanted.unit,
            last_arrival: Instant::now(),
            waited: Duration::ZERO,
            stall_limit,
            wrong_bytes: false,
            stall_timeout: REQUEST_STALL_TIMEOUT,
            stalled: false,
            refusals: Vec::new(),
        }
    }

    /// The next run of missing blocks.
    pub(super) fn next(&self) -> Option<Extent> {
        let first = *self.missing.first()?;
        let blocks = self.missing.iter().zip(first..).take_while(|(have, want)| *have == want).count();
        Some(Extent { first, blocks: blocks as u64 })
    }

    /// Records whether a block that `tier` sent was accepted.
    pub(super) fn accepted(
        &mut self,
        step: FetchStep<'_>,
        accepted: Option<(u64, Result<u64>)>,
    ) -> Result<()> {
        let Some((index, accepted)) = accepted else { return Ok(()) };
        if accepted.as_ref().is_err_and(|error| error.kind() == Kind::Corrupt) {
            self.counters.count_wrong_block(step.tier.kind());
            if let Some(peer) = step.peer {
                peer.report_corruption(self.blob, index);
            }
        }
        accepted?;
        self.missing.retain(|missing| *missing != index);
        Ok(())
    }

    /// Records that the tier at `place` failed with `error`, if that is the tier's answer to this blob.
    pub(super) fn record_refusal(&mut self, place: usize, error: &Error) {
        let responses = match error.kind() {
            Kind::Refused | Kind::NotFound | Kind::Invalid => INVALID_RESPONSE_LIMIT,
            Kind::Changed | Kind::Unsupported => 1,
            _ => {
                // A passing fault ends the row.
                self.refusals.retain(|one| one.place != place || one.responses >= INVALID_RESPONSE_LIMIT);
                return;
            }
        };
        match self.refusals.iter_mut().find(|refusal| refusal.place == place) {
            Some(refusal) => {
                refusal.responses += responses;
                refusal.error = error.share();
            }
            None => self.refusals.push(Refusal { place, responses, error: error.share() }),
        }
    }

    /// Returns the error for which the tier at `place` need not be asked again.
    pub(super) fn refusal(&self, place: usize) -> Option<&Error> {
        let refusal = self.refusals.iter().find(|refusal| refusal.place == place)?;
        (refusal.responses >= INVALID_RESPONSE_LIMIT).then_some(&refusal.error)
    }

    /// Whether a tier may have refused the blob by mistake.
    pub(super) fn has_doubtful_refusal(&self) -> bool {
        self.refusals.iter().any(|refusal| refusal.responses < INVALID_RESPONSE_LIMIT)
    }

    /// When it fails, unless something arrives before.
    pub(super) fn deadline(&self) -> Instant {
        self.last_arrival + self.stall_limit
    }

    /// Gives tiers more time after one has stalled: a third of all at the most, so that those below it get their turn.
    pub(super) fn grow_stall_timeout(&mut self) {
        if self.stalled {
            let most = (self.stall_limit / 3).max(REQUEST_STALL_TIMEOUT);
            self.stall_timeout = (self.stall_timeout * 2).min(most);
        }
    }

    /// Starts anew after blocks have arrived.
    pub(super) fn reset(&mut self) {
        self.stall_timeout = REQUEST_STALL_TIMEOUT;
        self.refusals.retain(|refusal| refusal.responses >= INVALID_RESPONSE_LIMIT);
    }
}

/// Whether a tier that failed so may have the blob at the next try.
pub(super) fn may_pass(kind: Kind) -> bool {
    matches!(kind, Kind::Unavailable | Kind::Timeout | Kind::Corrupt)
}

/// Combines the errors of two tiers. The last one's kind counts, unless that refuses the blob and the first may have it, or the
/// first is of this node.
pub(super) fn combine_errors(first: &Error, last: &Error) -> Error {
    let weight = |kind| match kind {
        Kind::Disk | Kind::NoSpace | Kind::Busy | Kind::Interrupted => 2,
        kind => i32::from(may_pass(kind)),
    };
    let kind = if weight(first.kind()) > weight(last.kind()) { first.kind() } else { last.kind() };
    Error::new(kind, format!("{first}; {last}"))
}
