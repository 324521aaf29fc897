//! Peers over real connections, and what one can do to another.

mod busy;
mod connection;
mod faults;
mod stability;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::backoff::{CORRUPTION_BAN, PeerState};
use super::client::http::HttpPeerClient;
use super::client::{PeerClient, Peers};
use super::identity::Caller;
use super::membership::StaticMembership;
use super::server::listener;
use super::server::{BlockProvider, PeerServer};
use super::wire::{BlockRequest, BlockResponse, Frame, Role};
use super::{Member, PROTOCOL, token};
use crate::blob::{Blob, Key, MirrorLocation};
use crate::block::{self, Arrival, BLOCK, Check};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::fetch::{FetchOutcome, FetchScope, Ladder};
use crate::placement::{ClusterTier, Placement};
use crate::tier::conformance::{self, Subject};
use crate::tier::{Body, Tier, TierKind, Urgency};

/// A member that hosts the tenant `t`.
pub fn member(id: &str, zone: &str) -> Member {
    Member {
        id: id.into(),
        address: ([127, 0, 0, 1], 1).into(),
        zone: zone.into(),
        capacity: 1 << 40,
        protocol: PROTOCOL,
        draining: false,
        tenants: vec![token(&[b"t"])],
        holds: Vec::new(),
    }
}

/// Blobs in memory.
#[derive(Debug, Default)]
struct MemoryBlocks {
    blobs: Mutex<HashMap<Digest, Bytes>>,
    moved: AtomicU64,
}

impl MemoryBlocks {
    fn put(&self, content: Bytes) -> Blob {
        let size = content.len() as u64;
        let block = |i: u64| &content[(i * BLOCK) as usize..(i * BLOCK + block::len(size, i)) as usize];
        let checks = (0..block::count(size)).map(|i| Check::of(size, i, block(i))).collect();
        let digest = Digest::of(&content);
        self.blobs.lock().insert(digest, content);
        let (path, version) = Default::default();
        let stored = MirrorLocation::default();
        Blob { key: Key::Content(digest), size, checks: Some(checks), path, version, sha256: None, stored }
    }
}

impl BlockProvider for MemoryBlocks {
    fn provide<'a>(&'a self, request: &'a BlockRequest) -> BoxFuture<'a, Result<Option<Body>>> {
        let found = self.blobs.lock().get(&request.blob).cloned();
        let wanted = found.filter(|bytes| bytes.len() as u64 == request.size);
        let wanted =
            wanted.map(|bytes| bytes.slice(request.range.start as usize..request.range.end as usize));
        // In odd pieces.
        let pieces = wanted.map(|bytes| {
            let starts = (0..bytes.len()).step_by(300_000);
            stream::iter(starts.map(move |at| Ok(bytes.slice(at..bytes.len().min(at + 300_000))))).boxed()
        });
        async move { Ok(pieces) }.boxed()
    }

    fn progress(&self) -> u64 {
        self.moved.load(Relaxed)
    }
}

/// A node `a` that asks a node `b`, over a real connection.
struct PeerPair {
    blocks: Arc<MemoryBlocks>,
    placement: Arc<dyn Placement>,
    peers: Arc<Peers>,
    paths: Mutex<HashMap<String, Digest>>,
}

async fn pair() -> PeerPair {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (server, blocks) = (Arc::new(PeerServer::default()), Arc::new(MemoryBlocks::default()));
    server.host("t", blocks.clone());
    tokio::spawn(listener::serve(listener, server, None));
    let (peers, placement) = asking([Member { address, ..member("b", "z") }], HttpPeerClient::plain());
    PeerPair { blocks, placement, peers, paths: Mutex::default() }
}

/// The peers of a node that owns nothing and asks `others` over `client`, and where they have a snapshot.
fn asking(
    others: impl IntoIterator<Item = Member>,
    client: impl PeerClient,
) -> (Arc<Peers>, Arc<dyn Placement>) {
    let members = StaticMembership::default();
    members.set(others);
    let peers = Peers::new(member("a", "z"), Arc::new(members), Arc::new(client));
    let placement = peers.placement("t", Digest::of(b"snapshot"));
    (peers, placement)
}

impl Subject for PeerPair {
    fn tier(&self) -> &dyn Tier {
        &*self.placement.peers()[1]
    }

    fn is_by_content(&self) -> bool {
        true
    }

    fn put<'a>(&'a self, path: &'a str, content: Bytes) -> BoxFuture<'a, Blob> {
        async move {
            self.remove(path).await;
            let blob = self.blocks.put(content);
            let Key::Content(digest) = blob.key else { panic!("by content") };
            self.paths.lock().insert(path.into(), digest);
            blob
        }
        .boxed()
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        let mut paths = self.paths.lock();
        if let Some(digest) = paths.remove(path) {
            self.blocks.blobs.lock().remove(&digest);
        }
        async {}.boxed()
    }
}

fn noise(len: u64) -> Bytes {
    let mut bytes = vec![0; len as usize];
    blake3::Hasher::new().update(&len.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes.into()
}

async fn collect(body: Body) -> Result<Bytes> {
    Ok(body.try_collect::<Vec<_>>().await?.concat().into())
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_tier_passes_the_conformance_suite() {
    conformance::suite(&pair().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_share_only_verifiable_blobs_of_their_tenants() {
    let pair = pair().await;
    let blob = pair.blocks.put(noise(BLOCK));
    let fetch = async |tier: &Arc<dyn ClusterTier>, blob: &Blob| {
        tier.fetch(blob, 0..5, Urgency::Read).await.expect("answered")
    };
    assert!(fetch(&pair.placement.peers()[1], &blob).await.is_some());
    let asked = pair.peers.stats().asked;
    assert!(fetch(&pair.placement.peers()[1], &Blob { checks: None, ..blob.clone() }).await.is_none());
    let origins = Blob { key: Key::origin("o", b"p", b"v"), ..blob.clone() };
    assert!(fetch(&pair.placement.peers()[1], &origins).await.is_none());
    assert!(
        fetch(&pair.placement.peers()[0], &blob).await.is_none(),
        "nobody says that it has all of the snapshot"
    );
    for tenant in ["u", "tt", ""] {
        assert!(
            fetch(&pair.peers.placement(tenant, Digest::of(b"snapshot")).peers()[1], &blob).await.is_none(),
            "{tenant}"
        );
    }
    assert_eq!(pair.peers.stats().asked, asked, "none of these is asked");
    let server = Arc::new(PeerServer::default());
    server.host("t", pair.blocks.clone());
    let Key::Content(digest) = blob.key else { panic!("by content") };
    let (snapshot, range) = (Digest::of(b"snapshot"), 0..5);
    let request_for = |tenant: &str| {
        let (tenant, size, urgency) = (tenant.into(), blob.size, Urgency::Read);
        BlockRequest {
            tenant,
            snapshot,
            blob: digest,
            size,
            range: range.clone(),
            role: super::wire::Role::Owner,
            urgency,
        }
    };
    let node = |tenants: &[&str]| Caller {
        id: Some("n".into()),
        tenants: Some(tenants.iter().map(|t| (*t).into()).collect()),
    };
    assert!(matches!(server.answer(&node(&["s", "t"]), request_for("t")).await, BlockResponse::Frames(_)));
    for (tenants, tenant) in [(&["s"][..], "t"), (&[], "t"), (&["t", "u"], "u"), (&["T"], "t")] {
        assert!(
            matches!(server.answer(&node(tenants), request_for(tenant)).await, BlockResponse::Miss),
            "{tenants:?} {tenant}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn server_sends_heartbeats_while_it_makes_progress() {
    #[derive(Debug)]
    struct SlowProvider(AtomicU64, Option<Duration>);
    impl BlockProvider for SlowProvider {
        fn provide<'a>(&'a self, request: &'a BlockRequest) -> BoxFuture<'a, Result<Option<Body>>> {
            let (range, after) = (request.range.clone(), self.1);
            let late = async move {
                match after {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
                Ok(noise(range.end - range.start))
            };
            async { Ok(Some(late.into_stream().boxed())) }.boxed()
        }

        fn progress(&self) -> u64 {
            // It moves as long as there is hope.
            self.0.fetch_add(u64::from(self.1.is_some()), Relaxed)
        }
    }
    #[derive(Debug)]
    struct InProcessClient(Arc<PeerServer>);
    impl PeerClient for InProcessClient {
        fn request<'a>(
            &'a self,
            _: &'a Member,
            request: &'a BlockRequest,
        ) -> BoxFuture<'a, Result<BlockResponse>> {
            async { Ok(self.0.answer(&Caller::ANONYMOUS, request.clone()).await) }.boxed()
        }
    }
    for (after, seconds) in [(Some(9), 9), (None, 4)] {
        let server = Arc::new(PeerServer::default());
        server.host("t", Arc::new(SlowProvider(AtomicU64::new(0), after.map(Duration::from_secs))));
        let (_, placement) = asking([member("b", "z")], InProcessClient(server));
        let blob = MemoryBlocks::default().put(noise(BLOCK));
        let begin = Instant::now();
        let body = placement.peers()[1]
            .fetch(&blob, 0..BLOCK, Urgency::Read)
            .await
            .expect("answered")
            .expect("on its way");
        let got = collect(body).await;
        assert_eq!(got.is_ok(), after.is_some());
        assert!(begin.elapsed() <= Duration::from_secs(seconds), "{:?}", begin.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn tiers_ask_first_and_second_owner_and_never_this_node() {
    #[derive(Debug)]
    struct RequestLog(Mutex<Vec<String>>);
    impl PeerClient for Arc<RequestLog> {
        fn request<'a>(
            &'a self,
            peer: &'a Member,
            _: &'a BlockRequest,
        ) -> BoxFuture<'a, Result<BlockResponse>> {
            self.0.lock().push(peer.id.clone());
            async { Ok(BlockResponse::Miss) }.boxed()
        }
    }
    let log = Arc::new(RequestLog(Mutex::default()));
    let others = ["a", "b", "c", "d"].map(|id| member(id, "z"));
    let stranger = Member { tenants: vec![], ..member("e", "z") };
    let newer = Member { protocol: PROTOCOL + 1, ..member("f", "z") };
    let leaving = Member { draining: true, ..member("g", "z") };
    let (_, placement) = asking(others.into_iter().chain([stranger, newer, leaving]), log.clone());
    let (mut ours, mut handed) = (0, 0);
    for n in 0..200u64 {
        let blob = MemoryBlocks::default().put(Bytes::copy_from_slice(&n.to_le_bytes()));
        let fetch = async |tiers: &[Arc<dyn ClusterTier>]| {
            for tier in tiers {
                assert!(tier.fetch(&blob, 0..8, Urgency::Read).await.expect("answered").is_none());
            }
            std::mem::take(&mut *log.0.lock())
        };
        let (asked, left) = (fetch(&placement.peers()[..3]).await, fetch(&placement.peers()[3..]).await);
        handed += left.len();
        let is_ours = placement.is_owner(&blob, 0);
        assert!(
            left.is_empty() || is_ours && left == ["g"],
            "who leaves is asked by the new owner alone: {left:?}"
        );
        assert!(asked.iter().all(|id| ["b", "c", "d"].contains(&id.as_str())), "{asked:?}");
        assert!(asked.len() == 2 && asked[0] != asked[1] || asked.len() == 1, "{asked:?}");
        if is_ours {
            ours += 1;
            assert_eq!(asked.len(), 1, "the second owner only, by who asks it");
        }
    }
    assert!((20..90).contains(&ours), "a quarter of 200, not {ours}");
    assert!((1..ours).contains(&handed), "a fifth of them, not {handed}");
}

/// A request for a block of `t`'s.
fn block_request(urgency: Urgency) -> BlockRequest {
    let (snapshot, blob) = (Digest::of(b"snapshot"), Digest::of(b"blob"));
    BlockRequest {
        tenant: "t".into(),
        snapshot,
        blob,
        size: BLOCK,
        range: 0..BLOCK,
        role: Role::Owner,
        urgency,
    }
}
