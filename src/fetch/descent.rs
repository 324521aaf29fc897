//! One descent of the ladder: what is still missing, and which tier is asked for it.

use std::time::Duration;

use tokio::time::Instant;

use super::FetchScope;
use crate::blob::Blob;
use crate::error::{Kind, Result};
use crate::extent::Extent;
use crate::metrics::SnapshotMetrics;
use crate::placement::ClusterTier;
use crate::tier::{Tier, Urgency};

/// The state of one descent: what is still missing, and what went wrong on the way.
pub(super) struct Descent<'a> {
    pub(super) blob: &'a Blob,
    pub(super) counters: &'a SnapshotMetrics,
    pub(super) scope: FetchScope,
    pub(super) urgency: Urgency,
    pub(super) missing: Vec<u64>,
    /// Nothing has arrived since.
    pub(super) still: Instant,
    /// How long that may last.
    pub(super) patience: Duration,
    /// Whether a tier has sent wrong bytes since the first tier was asked.
    pub(super) wrong_bytes: bool,
}

/// One tier of a descent.
#[derive(Clone, Copy)]
pub(super) struct Rung<'a> {
    pub(super) tier: &'a dyn Tier,
    /// The tier as part of a cluster, where it is one.
    pub(super) peer: Option<&'a dyn ClusterTier>,
    /// Whether no other tier comes below it.
    pub(super) last: bool,
}

impl Descent<'_> {
    /// The next run of missing blocks.
    pub(super) fn next(&self) -> Option<Extent> {
        let first = *self.missing.first()?;
        let blocks = self.missing.iter().zip(first..).take_while(|(have, want)| *have == want).count();
        Some(Extent { first, blocks: blocks as u64 })
    }

    /// Takes note of what became of a block that `tier` sent.
    pub(super) fn accepted(&mut self, rung: Rung<'_>, accepted: Option<(u64, Result<u64>)>) -> Result<()> {
        let Some((index, accepted)) = accepted else { return Ok(()) };
        if accepted.as_ref().is_err_and(|error| error.kind() == Kind::Corrupt) {
            self.counters.wrong_blocks(rung.tier.kind());
            if let Some(peer) = rung.peer {
                peer.report_corruption(self.blob, index);
            }
        }
        accepted?;
        self.missing.retain(|missing| *missing != index);
        Ok(())
    }
}
