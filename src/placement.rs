//! Placement: which node of a cluster fetches which blocks.
//!
//! Every group of adjacent blocks has an owner, the same in the eyes of all nodes. The owner fetches the group once; the
//! others ask it and wait. A node that fetches for others must not wait for another node in turn, or requests could circle:
//! see [`FetchScope`](crate::fetch::FetchScope).

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::blob::Blob;
use crate::tier::Tier;

/// The placement of one snapshot's blocks on the nodes of a cluster, as this node sees it. Only blobs whose checks are
/// known beforehand are placed: what a peer sends must be verifiable.
pub trait Placement: Send + Sync + fmt::Debug + 'static {
    /// The tiers that are other nodes, in the order in which they are asked, before all other tiers.
    fn peers(&self) -> &[Arc<dyn ClusterTier>];

    /// Returns the number of adjacent blocks of `blob` that have one owner. All nodes agree on it.
    fn group_blocks(&self, blob: &Blob) -> u64;

    /// Whether this node owns block `index` of `blob`: others may wait for it to fetch that.
    fn is_owner(&self, blob: &Blob, index: u64) -> bool;

    /// Sorts groups of `blob`, each given by its first block, so that a stage that asks for them in this order keeps all of
    /// their owners busy.
    fn interleave_owners(&self, blob: &Blob, groups: &mut [u64]);

    /// Waits while the membership changes so much that nodes may differ on the owners. Staging starts nothing then.
    fn await_stable_membership(&self) -> BoxFuture<'_, ()>;
}

/// A tier that is another node of the cluster. It enforces its own timeouts: it hears from a peer even while that has no
/// bytes to send.
pub trait ClusterTier: Tier {
    /// Whether the peer stands for an owner, which may make the asker wait until it has fetched the blocks itself.
    fn is_owner(&self) -> bool;

    /// Holds the sender of block `index` of `blob` responsible for wrong bytes. To be called before the body is dropped.
    fn report_corruption(&self, blob: &Blob, index: u64);
}
