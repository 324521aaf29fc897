//! The resources that all contents of a tenant share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::budget::Budget;
use crate::cache::Cache;
use crate::fetch::FetchScope;
use crate::metrics::EngineMetrics;

use super::{RecentBlocks, RecentFragments, Refutations};

/// The cache, the memory and the limits that every content of a tenant uses.
#[derive(Debug)]
pub struct SharedResources {
    /// The node cache.
    pub cache: Cache,
    /// The memory for direct flights, which wait for no other node.
    pub direct_budget: Arc<Budget>,
    /// The memory for flights that may wait for other nodes. It is separate, so that direct ones always find room: else two
    /// nodes could wait for each other's memory.
    pub cluster_budget: Arc<Budget>,
    /// The memory for what is being sent to other nodes.
    pub send_budget: Arc<Budget>,
    /// The number of blocks that arrived here or left for other nodes: as long as it grows, this node is not stuck.
    pub blocks_transferred: AtomicU64,
    /// The counters of the engine.
    pub metrics: Arc<EngineMetrics>,
    /// Bounds how many blocks are hashed and written at once. More than the machine has cores for would only take turns, and
    /// wait for each other at the file's lock.
    pub hash_permits: Arc<Semaphore>,
    /// Blocks that arrived a moment ago.
    pub recent_blocks: RecentBlocks,
    /// Fragments of blocks that arrived a moment ago.
    pub recent_fragments: RecentFragments,
    /// Contents that were refuted a while ago.
    pub refutations: Refutations,
    /// The runtime of flights and of their blocking parts.
    pub runtime: Handle,
}

impl SharedResources {
    /// The memory for flights of this scope.
    pub(super) fn budget(&self, scope: FetchScope) -> &Arc<Budget> {
        match scope {
            FetchScope::All => &self.cluster_budget,
            FetchScope::Direct => &self.direct_budget,
        }
    }
}
