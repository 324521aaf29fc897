//! The placement of a snapshot on the members of the cluster, as the ladder asks for it.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Candidate, PeerTier, Peers};
use crate::blob::{Blob, Key};
use crate::block;
use crate::digest::Digest;
use crate::peer::rendezvous::{self, BlockGroup};
use crate::placement::{ClusterTier, Placement};

/// One snapshot of a tenant.
#[derive(Debug)]
struct SnapshotPlacement {
    peers: Arc<Peers>,
    tenant: String,
    tiers: [Arc<dyn ClusterTier>; 4],
}

impl Peers {
    /// The placement of the snapshot `snapshot` of `tenant` in the cluster. Its tiers are, in the order in which they are asked:
    /// a member that has all of it, the first owner, the second, and by an owner the one that it has taken over from.
    pub fn placement(self: &Arc<Self>, tenant: &str, snapshot: Digest) -> Arc<dyn Placement> {
        let tiers = [Candidate::Holder, Candidate::Owner(0), Candidate::Owner(1), Candidate::Draining].map(
            |candidate| {
                let (peers, tenant) = (self.clone(), tenant.to_owned());
                Arc::new(PeerTier { peers, candidate, tenant, snapshot }) as Arc<dyn ClusterTier>
            },
        );
        Arc::new(SnapshotPlacement { peers: self.clone(), tenant: tenant.to_owned(), tiers })
    }
}

impl Placement for SnapshotPlacement {
    fn peers(&self) -> &[Arc<dyn ClusterTier>] {
        &self.tiers
    }

    fn group_blocks(&self, blob: &Blob) -> u64 {
        crate::peer::group_blocks(block::count(blob.size))
    }

    fn is_owner(&self, blob: &Blob, index: u64) -> bool {
        let Key::Content(digest) = blob.key else { return false };
        self.peers.owns(BlockGroup::of(&self.tenant, &digest, blob.size, index), &self.tenant)
    }

    fn interleave_owners(&self, blob: &Blob, groups: &mut [u64]) {
        let Key::Content(digest) = blob.key else { return };
        let (_, available) = self.peers.owners(&self.tenant);
        let owner = |first: &u64| {
            let [owner, _] =
                rendezvous::owners(BlockGroup::of(&self.tenant, &digest, blob.size, *first), &available);
            owner.map(|owner| owner.id.as_str())
        };
        let owners: Vec<_> = groups.iter().map(owner).collect();
        let sorted: Vec<_> = rendezvous::interleave(&owners).into_iter().map(|at| groups[at]).collect();
        groups.copy_from_slice(&sorted);
    }

    fn await_stable_membership(&self) -> BoxFuture<'_, ()> {
        self.peers.await_stable_membership().boxed()
    }
}
