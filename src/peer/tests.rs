//! Peers over real connections, and what one can do to another.

mod calm;
mod connection;

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

use super::client::{Link, Peers};
use super::health::{BAN, Standing};
use super::link::Http;
use super::members::Listed;
use super::server::{Caller, Server, Shelf};
use super::wire::{Ask, Frame, Reply, Role};
use super::{Member, PROTOCOL, listener, token};
use crate::blob::{Blob, Key, Stored};
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
struct Things {
    blobs: Mutex<HashMap<Digest, Bytes>>,
    moved: AtomicU64,
}

impl Things {
    fn put(&self, content: Bytes) -> Blob {
        let size = content.len() as u64;
        let block = |i: u64| &content[(i * BLOCK) as usize..(i * BLOCK + block::len(size, i)) as usize];
        let checks = (0..block::count(size)).map(|i| Check::of(size, i, block(i))).collect();
        let digest = Digest::of(&content);
        self.blobs.lock().insert(digest, content);
        let (path, version) = Default::default();
        let stored = Stored::default();
        Blob { key: Key::Content(digest), size, checks: Some(checks), path, version, sha256: None, stored }
    }
}

impl Shelf for Things {
    fn lend<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Option<Body>>> {
        let found = self.blobs.lock().get(&ask.blob).cloned();
        let wanted = found.filter(|bytes| bytes.len() as u64 == ask.size);
        let wanted = wanted.map(|bytes| bytes.slice(ask.range.start as usize..ask.range.end as usize));
        // In odd pieces.
        let pieces = wanted.map(|bytes| {
            let starts = (0..bytes.len()).step_by(300_000);
            stream::iter(starts.map(move |at| Ok(bytes.slice(at..bytes.len().min(at + 300_000))))).boxed()
        });
        async move { Ok(pieces) }.boxed()
    }

    fn moved(&self) -> u64 {
        self.moved.load(Relaxed)
    }
}

/// A node `a` that asks a node `b`, over a real connection.
struct Pair {
    things: Arc<Things>,
    placement: Arc<dyn Placement>,
    peers: Arc<Peers>,
    paths: Mutex<HashMap<String, Digest>>,
}

async fn pair() -> Pair {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (server, things) = (Arc::new(Server::default()), Arc::new(Things::default()));
    server.host("t", things.clone());
    tokio::spawn(listener::serve(listener, server, None));
    let (peers, placement) =
        asking([Member { address, ..member("b", "z") }], Http::plain().expect("a client"));
    Pair { things, placement, peers, paths: Mutex::default() }
}

/// The peers of a node that owns nothing and asks `others` over `link`, and where they have a snapshot.
fn asking(others: impl IntoIterator<Item = Member>, link: impl Link) -> (Arc<Peers>, Arc<dyn Placement>) {
    let members = Listed::default();
    members.set(others);
    let peers = Peers::new(member("a", "z"), Arc::new(members), Arc::new(link));
    let placement = peers.placement("t", Digest::of(b"snapshot"));
    (peers, placement)
}

impl Subject for Pair {
    fn tier(&self) -> &dyn Tier {
        &*self.placement.peers()[1]
    }

    fn is_by_content(&self) -> bool {
        true
    }

    fn put<'a>(&'a self, path: &'a str, content: Bytes) -> BoxFuture<'a, Blob> {
        async move {
            self.remove(path).await;
            let blob = self.things.put(content);
            let Key::Content(digest) = blob.key else { panic!("by content") };
            self.paths.lock().insert(path.into(), digest);
            blob
        }
        .boxed()
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        let mut paths = self.paths.lock();
        if let Some(digest) = paths.remove(path) {
            self.things.blobs.lock().remove(&digest);
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
async fn a_peer_is_a_tier_like_any_other() {
    conformance::suite(&pair().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_can_be_verified_and_is_the_tenants_own_is_asked_for_and_given() {
    let pair = pair().await;
    let blob = pair.things.put(noise(BLOCK));
    let ask = async |seat: &Arc<dyn ClusterTier>, blob: &Blob| {
        seat.fetch(blob, 0..5, Urgency::Read).await.expect("answered")
    };
    assert!(ask(&pair.placement.peers()[1], &blob).await.is_some());
    let asked = pair.peers.figures().asked;
    assert!(ask(&pair.placement.peers()[1], &Blob { checks: None, ..blob.clone() }).await.is_none());
    let origins = Blob { key: Key::origin("o", b"p", b"v"), ..blob.clone() };
    assert!(ask(&pair.placement.peers()[1], &origins).await.is_none());
    assert!(
        ask(&pair.placement.peers()[0], &blob).await.is_none(),
        "nobody says that it has all of the snapshot"
    );
    for tenant in ["u", "tt", ""] {
        assert!(
            ask(&pair.peers.placement(tenant, Digest::of(b"snapshot")).peers()[1], &blob).await.is_none(),
            "{tenant}"
        );
    }
    assert_eq!(pair.peers.figures().asked, asked, "none of these is asked");
    let server = Arc::new(Server::default());
    server.host("t", pair.things.clone());
    let Key::Content(digest) = blob.key else { panic!("by content") };
    let (snapshot, range) = (Digest::of(b"snapshot"), 0..5);
    let ask = |tenant: &str| {
        let (tenant, size, urgency) = (tenant.into(), blob.size, Urgency::Read);
        Ask {
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
    assert!(matches!(server.answer(&node(&["s", "t"]), ask("t")).await, Reply::Frames(_)));
    for (tenants, tenant) in [(&["s"][..], "t"), (&[], "t"), (&["t", "u"], "u"), (&["T"], "t")] {
        assert!(
            matches!(server.answer(&node(tenants), ask(tenant)).await, Reply::Miss),
            "{tenants:?} {tenant}"
        );
    }
}

/// What a peer may do instead of what it should.
#[derive(Clone, Copy, Debug)]
enum Trick {
    Silence,
    SilenceWithin,
    Trickle,
    WaitForever,
    Dawdle,
    Garbage,
    Endless,
    Overlong,
    Swap,
    Cut,
    Refuse,
    GiveUp,
}

#[derive(Debug)]
struct Tricky {
    trick: Trick,
    content: Bytes,
}

impl Link for Tricky {
    fn ask<'a>(&'a self, _: &'a Member, ask: &'a Ask) -> BoxFuture<'a, Result<Reply>> {
        let Range { start, end } = ask.range.clone();
        let right = self.content.slice(start as usize..end as usize);
        let frames = |frames: Vec<Frame>| stream::iter(frames.into_iter().map(Ok));
        let some = |bytes: Bytes| frames(vec![Frame::Data(bytes)]);
        let every = |millis, frame| {
            stream::unfold(frame, move |frame: Frame| async move {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                Some((Ok(frame.clone()), frame))
            })
        };
        let endless = || stream::repeat_with(|| Ok(Frame::Data(noise(BLOCK))));
        let swapped = || right.iter().map(|byte| byte ^ 1).collect::<Bytes>();
        let frames = match self.trick {
            Trick::Silence => return std::future::pending().boxed(),
            Trick::Refuse => return async { Err(Error::new(Kind::Unavailable, "refused")) }.boxed(),
            Trick::SilenceWithin => some(right.slice(..100)).chain(stream::pending()).boxed(),
            Trick::Trickle => every(100, Frame::Data(right.slice(..1000))).boxed(),
            Trick::WaitForever => every(250, Frame::Wait).boxed(),
            Trick::Dawdle => every(250, Frame::Wait)
                .flat_map(move |wait| stream::iter([wait, Ok(Frame::Data(right.slice(..1)))]))
                .boxed(),
            Trick::Garbage => {
                stream::once(async { Err(Error::new(Kind::Corrupt, "sends what is no frame")) }).boxed()
            }
            Trick::Endless => endless().boxed(),
            Trick::Overlong => some(right).chain(endless()).boxed(),
            Trick::Swap => some(swapped()).boxed(),
            Trick::Cut => some(right.slice(..right.len() / 2)).boxed(),
            Trick::GiveUp => frames(vec![Frame::Wait, Frame::End]).boxed(),
        };
        async { Ok(Reply::Frames(frames)) }.boxed()
    }
}

/// The mirror, which has it.
#[derive(Debug)]
struct Store(Bytes);

impl Tier for Store {
    fn kind(&self) -> TierKind {
        TierKind::Mirror
    }

    fn fetch<'a>(
        &'a self,
        _: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        let bytes = self.0.slice(range.start as usize..range.end as usize);
        async { Ok(Some(stream::iter([Ok(bytes)]).boxed())) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_a_peer_does_the_bytes_are_right_and_soon_there() {
    use Trick::*;
    // The trick, how many seconds it may cost, and whether the peer is banned.
    let tricks = [
        (Silence, 1, false),
        (SilenceWithin, 1, false),
        (Trickle, 1, false),
        (WaitForever, 11, false),
        (Dawdle, 11, false),
        (Garbage, 0, true),
        (Endless, 0, true),
        (Overlong, 0, true),
        (Swap, 0, true),
        (Cut, 0, false),
        (Refuse, 0, false),
        (GiveUp, 0, false),
    ];
    for (trick, seconds, banned) in tricks {
        let content = noise(2 * BLOCK + 5);
        let blob = Things::default().put(content.clone());
        let (peers, placement) = asking([member("b", "z")], Tricky { trick, content: content.clone() });
        let ladder = Ladder::new(vec![Arc::new(Store(content))], Arc::default(), Arc::default());
        let ladder = ladder.placed(Some(placement));
        assert_eq!(ladder.scope(&blob, 0), FetchScope::All);
        let fetch = async || {
            let checks = blob.checks.as_ref().expect("known");
            let accept = async |arrival: Arrival| {
                let index = arrival.index;
                arrival.verify(Some(&checks[index as usize])).map(|_| index)
            };
            let begin = Instant::now();
            let fetch = async |scope| {
                let patience = Duration::from_secs(30);
                ladder.fetch(&blob, vec![0, 1, 2], (scope, Urgency::Read), patience, accept).await
            };
            match fetch(FetchScope::All).await {
                // With no other node left, this one is the owner.
                Ok(FetchOutcome::BecameOwner) => fetch(FetchScope::Direct).await,
                fetched => fetched,
            }
            .expect("the mirror has it");
            begin.elapsed()
        };
        let took = fetch().await;
        // Whether more comes behind the last byte is looked at when nobody waits any more.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(took <= Duration::from_secs(seconds) + Duration::from_millis(1), "{trick:?} cost {took:?}");
        assert_eq!(peers.banned().is_empty(), !banned, "{trick:?}");
        let asked = peers.figures().asked;
        let took = fetch().await;
        if !matches!(trick, GiveUp | WaitForever | Dawdle) {
            assert_eq!(peers.figures().asked, asked, "after {trick:?} it is left alone");
            assert_eq!(took, Duration::ZERO);
        }
        tokio::time::advance(BAN).await;
        fetch().await;
        assert!(peers.figures().asked > asked, "it may do better now");
        assert!(peers.under_way() == 0, "{trick:?} leaves nothing behind");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_mirror_says_so_as_long_as_something_moves() {
    #[derive(Debug)]
    struct Slow(AtomicU64, Option<Duration>);
    impl Shelf for Slow {
        fn lend<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Option<Body>>> {
            let (range, after) = (ask.range.clone(), self.1);
            let late = async move {
                match after {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
                Ok(noise(range.end - range.start))
            };
            async { Ok(Some(late.into_stream().boxed())) }.boxed()
        }

        fn moved(&self) -> u64 {
            // It moves as long as there is hope.
            self.0.fetch_add(u64::from(self.1.is_some()), Relaxed)
        }
    }
    #[derive(Debug)]
    struct Direct(Arc<Server>);
    impl Link for Direct {
        fn ask<'a>(&'a self, _: &'a Member, ask: &'a Ask) -> BoxFuture<'a, Result<Reply>> {
            async { Ok(self.0.answer(&Caller::ANYBODY, ask.clone()).await) }.boxed()
        }
    }
    for (after, seconds) in [(Some(9), 9), (None, 4)] {
        let server = Arc::new(Server::default());
        server.host("t", Arc::new(Slow(AtomicU64::new(0), after.map(Duration::from_secs))));
        let (_, placement) = asking([member("b", "z")], Direct(server));
        let blob = Things::default().put(noise(BLOCK));
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
async fn the_first_owner_is_asked_then_the_second_and_the_node_itself_never() {
    #[derive(Debug)]
    struct Note(Mutex<Vec<String>>);
    impl Link for Arc<Note> {
        fn ask<'a>(&'a self, peer: &'a Member, _: &'a Ask) -> BoxFuture<'a, Result<Reply>> {
            self.0.lock().push(peer.id.clone());
            async { Ok(Reply::Miss) }.boxed()
        }
    }
    let note = Arc::new(Note(Mutex::default()));
    let others = ["a", "b", "c", "d"].map(|id| member(id, "z"));
    let stranger = Member { tenants: vec![], ..member("e", "z") };
    let newer = Member { protocol: PROTOCOL + 1, ..member("f", "z") };
    let leaving = Member { draining: true, ..member("g", "z") };
    let (_, placement) = asking(others.into_iter().chain([stranger, newer, leaving]), note.clone());
    let (mut ours, mut handed) = (0, 0);
    for n in 0..200u64 {
        let blob = Things::default().put(Bytes::copy_from_slice(&n.to_le_bytes()));
        let ask = async |seats: &[Arc<dyn ClusterTier>]| {
            for seat in seats {
                assert!(seat.fetch(&blob, 0..8, Urgency::Read).await.expect("answered").is_none());
            }
            std::mem::take(&mut *note.0.lock())
        };
        let (asked, left) = (ask(&placement.peers()[..3]).await, ask(&placement.peers()[3..]).await);
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
fn ask(urgency: Urgency) -> Ask {
    let (snapshot, blob) = (Digest::of(b"snapshot"), Digest::of(b"blob"));
    Ask { tenant: "t".into(), snapshot, blob, size: BLOCK, range: 0..BLOCK, role: Role::Owner, urgency }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_too_much_to_do_says_when_to_come_back_and_has_room_for_readers() {
    /// What never ends.
    #[derive(Debug)]
    struct Endless;
    impl Shelf for Endless {
        fn lend<'a>(&'a self, _: &'a Ask) -> BoxFuture<'a, Result<Option<Body>>> {
            async { Ok(Some(stream::pending().boxed())) }.boxed()
        }

        fn moved(&self) -> u64 {
            0
        }
    }
    let server = Arc::new(Server::default());
    server.host("t", Arc::new(Endless));
    let mut held = Vec::new();
    let mut fill = async |urgency| loop {
        match server.answer(&Caller::ANYBODY, ask(urgency)).await {
            Reply::Frames(frames) => held.push(frames),
            Reply::Busy(wait) => return (held.len(), wait),
            Reply::Miss => panic!("it has everything"),
        }
    };
    let (staging, wait) = fill(Urgency::Stage).await;
    let (all, _) = fill(Urgency::Read).await;
    assert!(wait >= Duration::from_secs(1) && all >= staging + staging / 4, "{staging} of {all}");
    assert_eq!(server.busy(), all);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(listener::serve(listener, server.clone(), None));
    let peer = Member { address, ..member("b", "z") };
    let link = Http::plain().expect("a client");
    let answer = link.ask(&peer, &ask(Urgency::Read)).await.expect("an answer");
    assert!(matches!(answer, Reply::Busy(told) if told == wait), "503, with retry-after");
    drop(held);
    let answer = link.ask(&peer, &ask(Urgency::Stage)).await.expect("an answer");
    assert!(matches!(answer, Reply::Frames(_)));
}

#[tokio::test(start_paused = true)]
async fn staging_comes_back_to_who_is_busy_and_a_reader_goes_on() {
    #[derive(Debug, Default)]
    struct Busy(AtomicU64);
    impl Link for Arc<Busy> {
        fn ask<'a>(&'a self, _: &'a Member, _: &'a Ask) -> BoxFuture<'a, Result<Reply>> {
            self.0.fetch_add(1, Relaxed);
            async { Ok(Reply::Busy(Duration::from_secs(1))) }.boxed()
        }
    }
    for (urgency, tries) in [(Urgency::Read, 1), (Urgency::Ahead, 1), (Urgency::Stage, 3)] {
        let link = Arc::new(Busy::default());
        let (peers, placement) = asking([member("b", "z")], link.clone());
        let blob = Things::default().put(noise(BLOCK));
        let begin = Instant::now();
        let error = placement.peers()[1].fetch(&blob, 0..BLOCK, urgency).await.err().expect("busy");
        assert_eq!((error.kind(), link.0.load(Relaxed)), (Kind::Unavailable, tries), "{urgency:?}");
        assert_eq!(begin.elapsed(), Duration::from_secs(tries - 1));
        assert_eq!(peers.standing("b"), Standing::Well, "to be busy is no fault");
    }
}
