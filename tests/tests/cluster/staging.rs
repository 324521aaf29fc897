//! Nodes that serve each other.

use bdnfs_tests::MIB;
use std::time::Duration;

use crate::nodes::{InProcessCluster, InProcessNode};

/// How often a cluster may read the mirror: once, and some blocks again where a loaded machine delays a peer by over a second.
/// Without peers it is once a node.
const MAX_MIRROR_READS: f64 = 1.5;

#[tokio::test(flavor = "multi_thread")]
async fn nodes_staging_at_once_read_mirror_about_once() {
    let cluster = InProcessCluster::start(4, &[("large", 90 * MIB), ("small", MIB / 2)]).await;
    cluster.stage_all().await;
    cluster.assert_right_everywhere().await;
    let read = cluster.mirror_reads();
    let most = if cluster.nodes.iter().any(InProcessNode::missed_a_peer) { 4.0 } else { MAX_MIRROR_READS };
    assert!((0.99..most).contains(&read), "{read} times");
    let traffic: Vec<_> = cluster.nodes.iter().map(|node| node.snapshot().traffic()).collect();
    assert!(traffic.iter().all(|t| t.mirror > 0 && t.peer > 0), "each has its share: {traffic:?}");

    // One that comes later finds everything at those that have it.
    let late = cluster.join("late").await;
    late.stage().await.expect("staged");
    cluster.assert_right(&late).await;
    if !late.missed_a_peer() {
        assert!(late.snapshot().traffic().peer > 80 * MIB as u64, "{:?}", late.snapshot().traffic());
        assert!(cluster.mirror_reads() - read < 0.5, "{} times", cluster.mirror_reads());
    }
    assert!(late.snapshot().traffic().peer > 0, "{:?}", late.snapshot().traffic());
}

#[tokio::test(flavor = "multi_thread")]
async fn node_reading_lazily_uses_owner_without_snapshot() {
    let cluster = InProcessCluster::start(2, &[("weights", 24 * MIB)]).await;
    let [reader, owner] = &cluster.nodes[..] else { panic!("two") };
    cluster.assert_right(reader).await;
    let traffic = reader.snapshot().traffic();
    assert!(traffic.peer > 0, "{traffic:?}");
    // What the other one fetched it still has.
    let read = cluster.mirror_reads();
    cluster.assert_right(owner).await;
    assert!(owner.snapshot().traffic().mirror < 24 * MIB as u64);
    let more = cluster.mirror_reads() - read;
    assert!(more < 0.5 || owner.missed_a_peer(), "{more} times more");
}

#[tokio::test(flavor = "multi_thread")]
async fn stage_beside_lost_lying_or_full_nodes_succeeds() {
    let mut cluster = InProcessCluster::empty(&[("large", 60 * MIB), ("other", 17 * MIB + 5)]).await;
    for number in 0..6 {
        let room = (number == 2).then_some(20 * MIB as u64);
        cluster.nodes.push(cluster.join_with(&format!("node-{number}"), room).await);
    }
    cluster.nodes[1].lie();
    let stages = async {
        let staged = cluster.nodes.iter().map(|node| async move { (node.id.as_str(), node.stage().await) });
        futures_util::future::join_all(staged).await
    };
    let faults = async {
        cluster.until(|reads| reads > 0.2).await;
        cluster.nodes[3].cut_off();
        cluster.until(|reads| reads > 0.4).await;
        cluster.nodes[4].freeze();
    };
    let (staged, ()) = tokio::time::timeout(Duration::from_secs(240), async { tokio::join!(stages, faults) })
        .await
        .expect("nothing is stuck");
    for (id, staged) in staged {
        assert_eq!(staged.is_ok(), id != "node-2", "{id}: {staged:?}");
    }
    cluster.assert_right_everywhere().await;
    let banned = cluster.nodes.iter().flat_map(|node| node.peers.banned()).collect::<Vec<_>>();
    assert!(!banned.is_empty() && banned.iter().all(|id| id == "node-1"), "{banned:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn node_draining_serves_its_blocks_to_new_owners() {
    let cluster = InProcessCluster::start(3, &[("weights", 60 * MIB)]).await;
    let [leaver, heir, _other] = &cluster.nodes[..] else { panic!("three") };
    // It has what it owns, and what the others fetched for it they have.
    leaver.stage().await.expect("staged");
    let read = cluster.mirror_reads();
    cluster.drain(&leaver.id);
    heir.stage().await.expect("staged");
    cluster.assert_right(heir).await;
    let more = cluster.mirror_reads() - read;
    assert!(more < 0.1 || heir.missed_a_peer(), "{more} times more, and it owned a third");
}

#[tokio::test(flavor = "multi_thread")]
async fn service_asked_by_many_at_once_loads_manifest_once() {
    let cluster = InProcessCluster::start(1, &[("weights", 16 * MIB)]).await;
    let one = cluster.manifest_requests(1).await;
    assert!(one > 0, "it had nothing");
    assert_eq!(cluster.manifest_requests(16).await, one);
}
