//! Fetches for readers that jump about.

use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::*;
use crate::block::FRAGMENT;

/// The version of an object, by which requests for fragments of it are conditional.
const STRONG_VERSION: Bytes = Bytes::from_static(b"\"etag\"");

impl ContentFixture {
    fn strong_blob(&self) -> Blob {
        Blob { version: STRONG_VERSION, ..self.blob(false) }
    }

    async fn expect_jump(&self, content: &Arc<Content>, range: Range<u64>) {
        let pieces = content.read(range.clone(), None).await.expect("a right answer");
        assert!(pieces.concat() == self.bytes[range.start as usize..range.end as usize], "{range:?}");
    }
}

/// The page at a place of its own in fragment `fragment` of block `block`.
fn page(block: u64, fragment: u64) -> Range<u64> {
    let start = block * BLOCK + fragment * FRAGMENT + (block + fragment) * 4096 % (FRAGMENT - 4096);
    start..start + 4096
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_at_random_are_fetched_by_fragments_and_come_once() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
    for _ in 0..2 {
        for block in [4, 0, 8, 2, 6, 1, 7, 3, 5] {
            fixture.expect_jump(&content, page(block, 2 + block % 3)).await;
        }
    }
    // The last fragment of the blob is short, and an odd read lies in two fragments.
    fixture.expect_jump(&content, SIZE - 9..SIZE).await;
    fixture.expect_jump(&content, 5 * BLOCK - 3 * FRAGMENT - 2..5 * BLOCK - 3 * FRAGMENT + 2).await;
    assert_eq!((tier.requests.load(Relaxed), tier.sent.load(Relaxed)), (12, 11 * FRAGMENT + SIZE % FRAGMENT));
    assert_eq!(content.local_bytes(), 0, "no fragment is stored");
    let traffic = content.ladder().counters().traffic();
    assert_eq!((traffic.requests, traffic.origin), (12, 11 * FRAGMENT + SIZE % FRAGMENT));
}

#[tokio::test(flavor = "multi_thread")]
async fn block_of_which_a_quarter_was_fetched_by_fragments_is_fetched_whole() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
    for fragment in [13, 1, 7, 4] {
        fixture.expect_jump(&content, page(3, fragment)).await;
    }
    assert_eq!(tier.sent.load(Relaxed), 4 * FRAGMENT);
    for fragment in [10, 14, 9, 1] {
        fixture.expect_jump(&content, page(3, fragment)).await;
        assert_eq!(tier.sent.load(Relaxed), 4 * FRAGMENT + BLOCK);
    }
    content.await_flights().await;
    assert!(content.has(&(3 * BLOCK..4 * BLOCK)), "it is local");
}

#[tokio::test(flavor = "multi_thread")]
async fn sequence_behind_a_fragment_or_a_block_is_fetched_by_blocks() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
    fixture.expect_jump(&content, page(2, 14)).await;
    fixture.expect_jump(&content, page(2, 15)).await;
    assert_eq!(tier.sent.load(Relaxed), FRAGMENT + BLOCK);
    fixture.expect_jump(&content, page(3, 0)).await;
    assert_eq!(tier.sent.load(Relaxed), FRAGMENT + 2 * BLOCK);
    // Who does not jump has fragments from memory and the rest by blocks.
    fixture.expect_jump(&content, page(6, 6)).await;
    fixture.expect(&content, page(6, 6)).await;
    assert_eq!(tier.sent.load(Relaxed), 2 * FRAGMENT + 2 * BLOCK);
    fixture.expect(&content, page(6, 9)).await;
    assert_eq!(tier.sent.load(Relaxed), 2 * FRAGMENT + 3 * BLOCK);
    // A longer read is no page.
    fixture.expect_jump(&content, 8 * BLOCK + 5..8 * BLOCK + FRAGMENT + 6).await;
    assert_eq!(tier.sent.load(Relaxed), 2 * FRAGMENT + 4 * BLOCK);
}

#[tokio::test(flavor = "multi_thread")]
async fn blob_that_can_be_verified_or_has_no_strong_version_is_fetched_by_blocks() {
    let fixture = ContentFixture::new();
    let weak =
        ["1", "modified Sun, 06 Nov 1994 08:49:37 GMT", "unpinned 7f", "whole \"etag\"", "whole etag \"e\""];
    let weak = weak.map(|version| Blob { version: version.into(), ..fixture.blob(false) });
    let proved = Blob { version: STRONG_VERSION, ..fixture.blob(true) };
    let published = Blob { sha256: Some([1; 32]), ..fixture.strong_blob() };
    let small = Blob { size: BLOCK, ..fixture.strong_blob() };
    for blob in weak.into_iter().chain([proved, published, small]) {
        let (fixture, tier) = (ContentFixture::new(), ScriptedTier::new(&fixture.bytes, &[], false));
        let content = fixture.content(blob, None, &[&tier]);
        content.read(page(0, 5), None).await.expect("bytes");
        assert!(tier.sent.load(Relaxed) >= BLOCK, "{:?}", content.blob());
    }
    for version in [&b"etag \"e\""[..], b"generation:7", b"alone \"e\""] {
        let (fixture, tier) = (ContentFixture::new(), ScriptedTier::new(&fixture.bytes, &[], false));
        let blob = Blob { version: Bytes::from_static(version), ..fixture.blob(false) };
        let content = fixture.content(blob, None, &[&tier]);
        fixture.expect_jump(&content, page(0, 5)).await;
        assert_eq!(tier.sent.load(Relaxed), FRAGMENT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn block_on_the_disk_or_on_its_way_is_not_fetched_by_fragments() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Fail(Kind::Unavailable)], false);
    let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
    let flight = content.join_or_start(2, 1, Urgency::Ahead).expect("nothing is here");
    fixture.expect_jump(&content, page(2, 5)).await;
    flight.await_stored().await.expect("stored");
    assert_eq!((tier.requests.load(Relaxed), tier.sent.load(Relaxed)), (2, BLOCK), "one failed");
    drop(content);
    let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
    fixture.expect_jump(&content, page(2, 9)).await;
    assert_eq!(tier.sent.load(Relaxed), BLOCK, "it survived");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_one_fragment_share_its_request_and_outlive_the_first() {
    let fixture = ContentFixture::new();
    let faults = [Fault::Fail(Kind::Unavailable), Fault::Fail(Kind::Changed)];
    let tier = ScriptedTier::new(&fixture.bytes, &faults, false);
    let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
    let first = tokio::spawn({
        let content = content.clone();
        async move { content.read(page(4, 4), None).await }
    });
    while tier.requests.load(Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let readers = (0..16).map(|_| fixture.expect_jump(&content, page(4, 4)));
    let all = futures_util::future::join_all(readers);
    tokio::join!(all, async { first.abort() });
    let (requests, sent) = (tier.requests.load(Relaxed), tier.sent.load(Relaxed));
    assert!(requests <= 4 && sent == FRAGMENT, "{requests} requests, {sent} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn fragment_that_is_gone_from_memory_brings_its_block() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
    fixture.expect_jump(&content, page(1, 9)).await;
    content.resources.recent_fragments.forget_all().await;
    fixture.expect_jump(&content, page(1, 9)).await;
    assert_eq!(tier.sent.load(Relaxed), FRAGMENT + BLOCK);
    content.await_flights().await;
    assert!(content.has(&(BLOCK..2 * BLOCK)));
}

#[tokio::test(start_paused = true)]
async fn fragment_fails_as_a_block_does() {
    for (fault, kind) in [
        (Fault::Fail(Kind::Changed), Kind::Changed),
        (Fault::Fail(Kind::Refused), Kind::Refused),
        (Fault::Miss, Kind::Corrupt),
    ] {
        let fixture = ContentFixture::new();
        let tier = ScriptedTier::new(&fixture.bytes, &[fault], true);
        let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
        let error = content.read(page(5, 5), None).await.expect_err("as the script says");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with("model.bin: "), "{error}");
        // What failed late is answered so for a second more; then it is asked for anew, and alone.
        tier.faults.lock().clear();
        tokio::time::sleep(Duration::from_secs(2)).await;
        fixture.expect_jump(&content, page(5, 5)).await;
        assert_eq!(tier.sent.load(Relaxed), FRAGMENT);
    }
    let fixture = ContentFixture::new();
    let faults = [Fault::BreakAfter(FRAGMENT / 2), Fault::Silence];
    let tier = ScriptedTier::new(&fixture.bytes, &faults, false);
    let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
    let began = tokio::time::Instant::now();
    fixture.expect_jump(&content, page(5, 5)).await;
    assert!(began.elapsed() < Duration::from_secs(6), "a second request beside the one that stalls");
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Silence], true);
    let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
    assert_eq!(content.read(page(5, 5), None).await.expect_err("silence").kind(), Kind::Timeout);
}

#[derive(Clone, Debug)]
struct RandomRead {
    start: u64,
    len: u64,
    jumps: bool,
}

fn random_reads() -> impl Strategy<Value = Vec<Vec<RandomRead>>> {
    let start = prop_oneof![
        0..SIZE,
        (0..SIZE / FRAGMENT).prop_map(|fragment| fragment * FRAGMENT),
        (0..10u64).prop_map(|b| b * BLOCK)
    ];
    let len = prop_oneof![4 => Just(4096u64), 2 => 1..FRAGMENT, 1 => Just(FRAGMENT), 1 => 1..3 * BLOCK];
    let read = (start, len, prop::bool::weighted(0.8)).prop_map(|(start, len, jumps)| RandomRead {
        start,
        len: len.min(SIZE - start),
        jumps,
    });
    prop::collection::vec(prop::collection::vec(read, 1..8), 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Groups of concurrent reads, mixed: the bytes are those of the file, and few come twice.
    #[test]
    fn mixed_concurrent_reads_equal_the_file(groups in random_reads(), forget in 0usize..40, broken in any::<bool>()) {
        Runtime::new().expect("a runtime").block_on(async {
            let fixture = ContentFixture::new();
            let faults = [Fault::BreakAfter(FRAGMENT / 3), Fault::Fail(Kind::Unavailable)];
            let tier = ScriptedTier::new(&fixture.bytes, if broken { &faults } else { &[] }, false);
            let content = fixture.content(fixture.strong_blob(), None, &[&tier]);
            for (step, group) in groups.into_iter().enumerate() {
                if step == forget {
                    content.resources.recent_fragments.forget_all().await;
                }
                let reads = group.into_iter().filter(|read| read.len > 0).map(async |read| {
                    let range = read.start..read.start + read.len;
                    match read.jumps {
                        true => fixture.expect_jump(&content, range).await,
                        false => fixture.expect(&content, range).await,
                    }
                });
                futures_util::future::join_all(reads).await;
            }
            let most = SIZE + block::count(SIZE) * 4 * FRAGMENT + if broken { FRAGMENT } else { 0 };
            let sent = tier.sent.load(Relaxed);
            assert!(sent <= most, "{sent} bytes of {SIZE}");
        });
    }
}
