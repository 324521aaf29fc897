//! Nodes that differ for a while on who is there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{MemoryBlocks, member, noise};
use crate::blob::{Blob, Key};
use crate::digest::Digest;
use crate::error::Result;
use crate::peer::client::{PeerClient, Peers};
use crate::peer::membership::StaticMembership;
use crate::peer::wire::{BlockRequest, BlockResponse};
use crate::peer::{Member, rendezvous};
use crate::tier::Urgency;

/// A cluster in which only `c` answers; and who was asked.
#[derive(Debug, Default)]
struct SilentCluster(Mutex<Vec<String>>);

impl PeerClient for Arc<SilentCluster> {
    fn request<'a>(&'a self, peer: &'a Member, _: &'a BlockRequest) -> BoxFuture<'a, Result<BlockResponse>> {
        self.0.lock().push(peer.id.clone());
        let answers = peer.id == "c";
        async move {
            if !answers {
                return std::future::pending().await;
            }
            Ok(BlockResponse::Frames(stream::empty().boxed()))
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn stage_owner_lost_while_asked_asks_the_next() {
    let (client, members) = (Arc::new(SilentCluster::default()), Arc::new(StaticMembership::default()));
    let set = |ids: &[&str]| members.set(ids.iter().map(|id| member(id, "z")));
    set(&["b", "c"]);
    let peers = Peers::new(member("a", "z"), members.clone(), Arc::new(client.clone()));
    let placement = peers.placement("t", Digest::of(b"snapshot"));
    let first = |blob: &Blob| {
        let Key::Content(digest) = blob.key else { panic!("by content") };
        let all = ["b", "c"].map(|id| Arc::new(member(id, "z")));
        let [first, _] = rendezvous::owners(rendezvous::BlockGroup::of("t", &digest, blob.size, 0), &all);
        first.expect("two").id.clone()
    };
    let mut blobs = (0..).map(|n: u64| MemoryBlocks::default().put(Bytes::copy_from_slice(&n.to_le_bytes())));
    let blob = blobs.find(|blob| first(blob) == "b").expect("some");
    let lost = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        set(&["c"]);
    };
    let (asked, ()) = tokio::join!(placement.peers()[1].fetch(&blob, 0..8, Urgency::Stage), lost);
    assert!(asked.expect("c answers").is_some());
    assert_eq!(*client.0.lock(), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn stage_unstable_membership_waits_and_readers_do_not() {
    let (client, members) = (Arc::new(SilentCluster::default()), Arc::new(StaticMembership::default()));
    let others = |count: usize| (0..count).map(|n| member(&format!("n{n}"), "z"));
    let set = |count: usize| members.set(others(count).chain([member("c", "z")]));
    set(5);
    let peers = Peers::new(member("a", "z"), members.clone(), Arc::new(client));
    let placement = peers.placement("t", Digest::of(b"snapshot"));
    let blob = MemoryBlocks::default().put(noise(8));
    // All but one: half of the cluster is on the other side of a cut.
    set(0);
    let asked = async |urgency| {
        let begin = Instant::now();
        assert!(placement.peers()[1].fetch(&blob, 0..8, urgency).await.expect("c answers").is_some());
        begin.elapsed()
    };
    assert_eq!(asked(Urgency::Read).await, Duration::ZERO);
    assert_eq!(asked(Urgency::Stage).await, Duration::from_secs(3), "until that is no news any more");
    assert_eq!(asked(Urgency::Stage).await, Duration::ZERO);
    // A cluster that never comes to rest is waited for once.
    let unrest = async {
        for turn in 1.. {
            set(turn % 2 * 5);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let staged = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(asked(Urgency::Stage).await >= Duration::from_secs(15));
        assert!(asked(Urgency::Stage).await < Duration::from_secs(10), "nobody but c answers");
    };
    tokio::select! {
        () = unrest => {}
        () = staged => {}
    }
}
