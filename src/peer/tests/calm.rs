//! Nodes that differ for a while on who is there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Things, member, noise};
use crate::blob::{Blob, Key};
use crate::digest::Digest;
use crate::error::Result;
use crate::peer::client::{Link, Peers};
use crate::peer::members::Listed;
use crate::peer::wire::{Ask, Reply};
use crate::peer::{Member, rank};
use crate::tier::Urgency;

/// A cluster in which only `c` answers; and who was asked.
#[derive(Debug, Default)]
struct Lonely(Mutex<Vec<String>>);

impl Link for Arc<Lonely> {
    fn ask<'a>(&'a self, peer: &'a Member, _: &'a Ask) -> BoxFuture<'a, Result<Reply>> {
        self.0.lock().push(peer.id.clone());
        let answers = peer.id == "c";
        async move {
            if !answers {
                return std::future::pending().await;
            }
            Ok(Reply::Frames(stream::empty().boxed()))
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn staging_looks_on_when_gossip_loses_an_owner_while_it_is_asked() {
    let (link, members) = (Arc::new(Lonely::default()), Arc::new(Listed::default()));
    let set = |ids: &[&str]| members.set(ids.iter().map(|id| member(id, "z")));
    set(&["b", "c"]);
    let peers = Peers::new(member("a", "z"), members.clone(), Arc::new(link.clone()));
    let placement = peers.placement("t", Digest::of(b"snapshot"));
    let first = |blob: &Blob| {
        let Key::Content(digest) = blob.key else { panic!("by content") };
        let all = ["b", "c"].map(|id| Arc::new(member(id, "z")));
        let [first, _] = rank::owners(rank::Group::of("t", &digest, blob.size, 0), &all);
        first.expect("two").id.clone()
    };
    let mut blobs = (0..).map(|n: u64| Things::default().put(Bytes::copy_from_slice(&n.to_le_bytes())));
    let blob = blobs.find(|blob| first(blob) == "b").expect("some");
    let lost = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        set(&["c"]);
    };
    let (asked, ()) = tokio::join!(placement.peers()[1].fetch(&blob, 0..8, Urgency::Stage), lost);
    assert!(asked.expect("c answers").is_some());
    assert_eq!(*link.0.lock(), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn staging_waits_while_many_come_and_go_and_readers_do_not() {
    let (link, members) = (Arc::new(Lonely::default()), Arc::new(Listed::default()));
    let others = |count: usize| (0..count).map(|n| member(&format!("n{n}"), "z"));
    let set = |count: usize| members.set(others(count).chain([member("c", "z")]));
    set(5);
    let peers = Peers::new(member("a", "z"), members.clone(), Arc::new(link));
    let placement = peers.placement("t", Digest::of(b"snapshot"));
    let blob = Things::default().put(noise(8));
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
