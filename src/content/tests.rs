//! Reading through the whole engine, over a scripted tier.

mod ahead;
mod delivery;
mod fragment_reads;
mod hostile_sizes;
mod refused_credentials;
mod wrong_bytes;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::*;
use crate::blob::Key;
use crate::block::Check;
use crate::budget::Budget;
use crate::cache::{Cache, Limits};
use crate::digest::Digest;
use crate::placement::{ClusterTier, Placement};
use crate::tier::{Body, Tier, TierKind};

/// The fault of the tier in one request, where it does not simply answer.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Sends so many bytes, then breaks off.
    BreakAfter(u64),
    /// Sends so many bytes, and then nothing more.
    HangAfter(u64),
    /// Sends bytes that are not the blob's.
    Lie,
    /// Fails with a kind.
    Fail(Kind),
    /// Never answers.
    Silence,
    /// Does not have it.
    Miss,
}

#[derive(Debug)]
struct ScriptedTier {
    content: Bytes,
    /// One fault a request, in order; none left: right answers. A last `true` makes the last fault stay.
    faults: Mutex<VecDeque<Fault>>,
    sticky: bool,
    sent: AtomicU64,
    requests: AtomicU64,
}

impl ScriptedTier {
    fn new(content: &[u8], faults: &[Fault], sticky: bool) -> Arc<Self> {
        Arc::new(Self {
            content: Bytes::copy_from_slice(content),
            faults: Mutex::new(faults.iter().copied().collect()),
            sticky,
            sent: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        })
    }

    fn fault(&self) -> Option<Fault> {
        let mut faults = self.faults.lock();
        if self.sticky && faults.len() == 1 { faults.front().copied() } else { faults.pop_front() }
    }
}

impl Tier for ScriptedTier {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        _blob: &'a Blob,
        range: Range<u64>,
        _urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            self.requests.fetch_add(1, Relaxed);
            let mut bytes = self.content.slice(range.start as usize..range.end as usize);
            let fault = self.fault();
            match fault {
                None => {}
                Some(Fault::BreakAfter(most) | Fault::HangAfter(most)) => bytes.truncate(most as usize),
                Some(Fault::Lie) => bytes = bytes.iter().map(|b| b ^ 1).collect(),
                Some(Fault::Fail(kind)) => return Err(Error::new(kind, "as the script says")),
                Some(Fault::Silence) => std::future::pending().await,
                Some(Fault::Miss) => return Ok(None),
            }
            self.sent.fetch_add(bytes.len() as u64, Relaxed);
            // Odd pieces, so that none ends with a block by itself.
            let pieces: Vec<_> = bytes.chunks(300_001).map(|p| Ok(bytes.slice_ref(p))).collect();
            let sent = stream::iter(pieces);
            Ok(Some(match fault {
                Some(Fault::HangAfter(_)) => sent.chain(stream::pending()).boxed(),
                _ => sent.boxed(),
            }))
        }
        .boxed()
    }
}

struct ContentFixture {
    home: tempfile::TempDir,
    bytes: Vec<u8>,
}

const SIZE: u64 = 9 * BLOCK + 4321;

impl ContentFixture {
    fn new() -> Self {
        let bytes = (0..SIZE).map(|i| (i ^ (i >> 9) ^ (i >> 17)) as u8).collect();
        Self { home: tempfile::tempdir().expect("a directory"), bytes }
    }

    fn blob(&self, proved: bool) -> Blob {
        let check = |(i, b): (usize, &[u8])| Check::of(SIZE, i as u64, b);
        let checks: Arc<[Check]> = self.bytes.chunks(BLOCK as usize).enumerate().map(check).collect();
        Blob {
            key: match proved {
                true => Key::Content(Digest::of(&self.bytes)),
                false => Key::origin("test://", b"model.bin", b"1"),
            },
            size: SIZE,
            checks: proved.then_some(checks),
            path: Bytes::from_static(b"model.bin"),
            version: Bytes::from_static(b"1"),
            sha256: None,
            stored: crate::blob::MirrorLocation::default(),
        }
    }

    /// The engine's parts over `tiers`, on this fixture's directory; drop it before the next one is made.
    fn content(&self, blob: Blob, capacity: Option<u64>, tiers: &[&Arc<ScriptedTier>]) -> Arc<Content> {
        let tiers = tiers.iter().map(|t| Arc::clone(t) as Arc<dyn Tier>).collect();
        self.content_of(blob, capacity, Ladder::new(tiers, Arc::default(), Arc::default()))
    }

    fn content_of(&self, blob: Blob, capacity: Option<u64>, ladder: Ladder) -> Arc<Content> {
        let limits = Limits { capacity, reserve: 0 };
        let cache = loop {
            // The one before is let go by whichever task drops it last.
            match Cache::open(self.home.path(), "default", limits, SystemTime::now) {
                Err(error) if error.kind() == Kind::Busy => std::thread::yield_now(),
                opened => break opened.expect("a cache"),
            }
        };
        while cache.space().used().is_none() {
            std::thread::yield_now();
        }
        let resources = SharedResources {
            cache,
            direct_budget: Budget::new(64 << 20),
            cluster_budget: Budget::new(64 << 20),
            send_budget: Budget::new(64 << 20),
            metrics: Arc::default(),
            blocks_transferred: Default::default(),
            hash_permits: Arc::new(Semaphore::new(4)),
            recent_blocks: RecentBlocks::default(),
            recent_fragments: RecentFragments::default(),
            refutations: Refutations::default(),
            runtime: Handle::current(),
        };
        let content = Content::new(blob, Arc::new(resources), Arc::new(ladder));
        content.open();
        content
    }

    async fn expect(&self, content: &Arc<Content>, range: Range<u64>) {
        let pieces = content.read(range.clone(), Some(0)).await.expect("a right answer");
        assert!(pieces.concat() == self.bytes[range.start as usize..range.end as usize], "{range:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_read_by_many_is_fetched_once_and_whole() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let content = fixture.content(fixture.blob(false), None, &[&tier]);
    assert!(content.whole().is_none());
    let starts = (0..64).map(|i| (i * 7_777_777) % (SIZE - 700_000));
    futures_util::future::join_all(starts.map(|s| fixture.expect(&content, s..s + 700_000))).await;
    fixture.expect(&content, 0..SIZE).await;
    assert_eq!(tier.sent.load(Relaxed), SIZE);
    let file = content.became_whole().await.expect("committed");
    assert_eq!(file.metadata().expect("disk").len(), SIZE);
    assert!(content.try_read(5..SIZE - 5).expect("local").concat() == fixture.bytes[5..SIZE as usize - 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_of_server_without_ranges_is_fetched_once_in_order() {
    let fixture = ContentFixture::new();
    let blob = Blob { version: Bytes::from_static(b"whole modified x"), ..fixture.blob(false) };
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let content = fixture.content(blob.clone(), None, &[&tier]);
    let starts = (0..64).map(|i| (i * 7_777_777) % (SIZE - 700_000));
    futures_util::future::join_all(starts.map(|s| fixture.expect(&content, s..s + 700_000))).await;
    content.became_whole().await.expect("committed");
    assert_eq!((tier.requests.load(Relaxed), tier.sent.load(Relaxed)), (1, SIZE));
    drop(content);

    // What came before a break stays, and the rest is asked for at once.
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[Fault::BreakAfter(3 * BLOCK)], false);
    let content = fixture.content(blob, None, &[&tier]);
    fixture.expect(&content, SIZE - 9..SIZE).await;
    content.became_whole().await.expect("committed");
    assert_eq!((tier.requests.load(Relaxed), tier.sent.load(Relaxed)), (2, SIZE));
}

#[tokio::test(flavor = "multi_thread")]
async fn fetch_with_broken_body_resumes_where_it_broke() {
    let fixture = ContentFixture::new();
    let faults = [Fault::BreakAfter(2 * BLOCK + 99), Fault::Fail(Kind::Unavailable)];
    let tier = ScriptedTier::new(&fixture.bytes, &faults, false);
    let content = fixture.content(fixture.blob(false), None, &[&tier]);
    fixture.expect(&content, 0..SIZE).await;
    assert!(tier.sent.load(Relaxed) <= SIZE + BLOCK, "only the broken block came twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn read_with_lying_tier_gets_right_bytes_from_next_tier() {
    let fixture = ContentFixture::new();
    let (liar, honest) = (
        ScriptedTier::new(&fixture.bytes, &[Fault::Lie], true),
        ScriptedTier::new(&fixture.bytes, &[Fault::Miss], false),
    );
    let content = fixture.content(fixture.blob(true), None, &[&liar, &honest]);
    fixture.expect(&content, 0..SIZE).await;
    drop(content);

    let fixture = ContentFixture::new();
    let content = fixture.content(fixture.blob(true), None, &[&liar]);
    let error = content.read(0..10, Some(0)).await.expect_err("nobody has the right bytes");
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().starts_with("model.bin: "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn read_with_changed_origin_asks_twice_and_fails() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Fail(Kind::Changed)], true);
    let content = fixture.content(fixture.blob(false), None, &[&tier]);
    assert_eq!(content.read(0..10, Some(0)).await.expect_err("changed").kind(), Kind::Changed);
    assert_eq!(tier.requests.load(Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn read_with_one_invalid_response_succeeds() {
    for kind in [Kind::Changed, Kind::Unsupported, Kind::Corrupt] {
        let fixture = ContentFixture::new();
        let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Fail(kind)], false);
        let content = fixture.content(fixture.blob(false), None, &[&tier]);
        fixture.expect(&content, 0..10).await;
    }
}

#[tokio::test(start_paused = true)]
async fn fetch_with_wrong_bytes_and_next_tier_unreachable_fails_after_few_requests() {
    for urgency in [Urgency::Read, Urgency::Stage] {
        let fixture = ContentFixture::new();
        let liar = ScriptedTier::new(&fixture.bytes, &[Fault::Lie], true);
        let away = ScriptedTier::new(&fixture.bytes, &[Fault::Fail(Kind::Unavailable)], true);
        let content = fixture.content(fixture.blob(true), None, &[&liar, &away]);
        let flight = content.join_or_start(0, 1, urgency).expect("nothing is here");
        let error = flight.await_stored().await.expect_err("nobody has the right bytes");
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        assert!(error.to_string().contains("the origin: block 0 does not hash"), "{error}");
        assert_eq!(liar.requests.load(Relaxed) + away.requests.load(Relaxed), 6);
    }
}

#[tokio::test(start_paused = true)]
async fn read_without_answering_tier_times_out() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Silence], true);
    let content = fixture.content(fixture.blob(false), None, &[&tier]);
    let began = tokio::time::Instant::now();
    assert_eq!(content.read(0..10, Some(0)).await.expect_err("silence").kind(), Kind::Timeout);
    assert!(began.elapsed() <= READ_DEADLINE + Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn reader_that_joins_an_old_flight_has_all_of_its_own_time() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Fail(Kind::Unavailable)], true);
    let content = fixture.content(fixture.blob(false), None, &[&tier]);
    let ahead = content.join_or_start(0, 1, Urgency::Ahead).expect("nothing is here");
    tokio::time::sleep(READ_DEADLINE * 4 / 5).await;
    let ahead_ended = async {
        assert_eq!(ahead.block(0).await.expect_err("its time is over").kind(), Kind::Unavailable);
        tier.faults.lock().clear();
    };
    tokio::join!(fixture.expect(&content, 0..10), ahead_ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn read_with_full_cache_succeeds_and_stored_fails() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let content = fixture.content(fixture.blob(false), Some(3 * BLOCK), &[&tier]);
    fixture.expect(&content, 0..SIZE).await;
    fixture.expect(&content, 100..SIZE - 100).await;
    let mut failed = 0;
    for index in 0..10 {
        if let Some(flight) = content.join_or_start(index, 1, Urgency::Stage)
            && let Err(error) = flight.await_stored().await
        {
            assert_eq!(error.kind(), Kind::NoSpace);
            failed += 1;
        }
    }
    assert!(failed >= 6, "{failed} of 10 blocks found no room");
}

#[tokio::test(flavor = "multi_thread")]
async fn content_reopened_fetches_only_what_is_missing() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let content = fixture.content(fixture.blob(false), None, &[&tier]);
    fixture.expect(&content, 0..4 * BLOCK).await;
    drop(content);
    let before = tier.sent.load(Relaxed);
    let content = fixture.content(fixture.blob(false), None, &[&tier]);
    fixture.expect(&content, 0..4 * BLOCK).await;
    assert_eq!(tier.sent.load(Relaxed), before);
    fixture.expect(&content, 0..SIZE).await;
    assert_eq!(tier.sent.load(Relaxed), SIZE);
}

/// Another node, which says that everything is on its way, and never sends any.
#[derive(Debug)]
struct PromisingPeer;

impl Tier for PromisingPeer {
    fn kind(&self) -> TierKind {
        TierKind::Peer
    }

    fn fetch<'a>(&'a self, _: &'a Blob, _: Range<u64>, _: Urgency) -> BoxFuture<'a, Result<Option<Body>>> {
        async { Ok(Some(stream::pending().boxed())) }.boxed()
    }
}

impl ClusterTier for PromisingPeer {
    fn is_owner(&self) -> bool {
        true
    }

    fn report_corruption(&self, _: &Blob, _: u64) {}
}

/// A cluster in which another node owns everything.
#[derive(Debug)]
struct ForeignPlacement {
    peers: [Arc<dyn ClusterTier>; 1],
    group: u64,
}

impl ForeignPlacement {
    fn with_group(group: u64) -> Option<Arc<dyn Placement>> {
        Some(Arc::new(Self { peers: [Arc::new(PromisingPeer)], group }))
    }
}

impl Placement for ForeignPlacement {
    fn peers(&self) -> &[Arc<dyn ClusterTier>] {
        &self.peers
    }

    fn group_blocks(&self, _: &Blob) -> u64 {
        self.group
    }

    fn is_owner(&self, _: &Blob, _: u64) -> bool {
        false
    }

    fn interleave_owners(&self, _: &Blob, _: &mut [u64]) {}

    fn await_stable_membership(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}
