//! One attempt to fetch blocks: each tier of the ladder is asked once, in order, for what is still missing.

use std::time::Duration;

use tokio::time::Instant;

use super::FetchScope;
use crate::blob::Blob;
use crate::error::{Kind, Result};
use crate::extent::Extent;
use crate::metrics::SnapshotMetrics;
use crate::placement::ClusterTier;
use crate::tier::{Tier, Urgency};

/// The state of one attempt: which blocks are still missing, and what went wrong.
pub(super) struct FetchAttempt<'a> {
    pub(super) blob: &'a Blob,
    pub(super) counters: &'a SnapshotMetrics,
    pub(super) scope: FetchScope,
    pub(super) urgency: Urgency,
    pub(super) missing: Vec<u64>,
    /// When a block last arrived.
    pub(super) last_arrival: Instant,
    /// How long after it the attempt fails, unless another arrives.
    pub(super) stall_limit: Duration,
    /// Whether a tier has sent wrong bytes since the first tier was asked.
    pub(super) wrong_bytes: bool,
}

/// One step of an attempt: a tier that is asked.
#[derive(Clone, Copy)]
pub(super) struct FetchStep<'a> {
    pub(super) tier: &'a dyn Tier,
    /// The tier as part of a cluster, where it is one.
    pub(super) peer: Option<&'a dyn ClusterTier>,
    /// Whether no other tier comes below it.
    pub(super) last: bool,
}

impl FetchAttempt<'_> {
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
}
