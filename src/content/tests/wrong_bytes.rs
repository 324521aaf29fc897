//! Detection of wrong bytes: before they are delivered, afterwards, and on the disk.

use super::*;
use crate::cache::removal::RemovalListener;
use crate::cache::removal_marks::Removal;
use crate::extent::{MAX_EXTENT_BLOCKS, Pace};

#[tokio::test(flavor = "multi_thread")]
async fn content_with_wrong_sha256_is_discarded() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let blob = Blob { sha256: Some([7; 32]), ..fixture.blob(false) };
    let content = fixture.content(blob, None, &[&tier]);
    fixture.expect(&content, 0..10).await;
    // Waited for from the beginning: afterwards it may be fetched again.
    let (refuted, ()) = tokio::join!(content.became_whole(), async { content.prefetch(0..SIZE) });
    assert_eq!(refuted.expect_err("not it").kind(), Kind::Corrupt);
    assert_eq!(content.read(0..10, Some(0)).await.expect_err("not it").kind(), Kind::Corrupt);
}

/// The right SHA-256 of the fixture's first `size` bytes.
fn sha256(bytes: &[u8]) -> Option<[u8; 32]> {
    use sha2::Digest as _;
    Some(sha2::Sha256::digest(bytes).into())
}

#[tokio::test(flavor = "multi_thread")]
async fn content_of_one_flight_with_flipped_bytes_delivers_none() {
    let mut fixture = ContentFixture::new();
    fixture.bytes.truncate(2 * BLOCK as usize + 99);
    let size = fixture.bytes.len() as u64;
    let blob = Blob { sha256: sha256(&fixture.bytes), size, ..fixture.blob(false) };
    let liar = ScriptedTier::new(&fixture.bytes, &[Fault::Lie], true);
    let content = fixture.content(blob.clone(), None, &[&liar]);
    assert_eq!(content.read(5..10, Some(0)).await.expect_err("flipped").kind(), Kind::Corrupt);
    assert!(content.try_read(5..10).is_none() && content.local_bytes() == 0, "nothing of it is kept");
    drop(content);

    let lied_once = ScriptedTier::new(&fixture.bytes, &[Fault::Lie], false);
    let content = fixture.content(blob, None, &[&lied_once]);
    fixture.expect(&content, 5..10).await;
    fixture.expect(&content, 0..size).await;
    assert_eq!(lied_once.requests.load(Relaxed), 2);
    content.became_whole().await.expect("it is right");
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_compared_first_up_to_four_mib_and_up_to_sixteen_of_a_fast_origin() {
    let fast = (MAX_EXTENT_BLOCKS, Duration::from_millis(200), Duration::from_millis(8));
    let slow = (1, Duration::from_millis(1), Duration::from_secs(2));
    for ((requested, latency, flow), blocks, is_compared) in
        [(fast, 16, true), (fast, 17, false), (slow, 4, true), (slow, 5, false)]
    {
        let mut fixture = ContentFixture::new();
        fixture.bytes = (0..blocks * BLOCK).map(|at| (at ^ (at >> 9)) as u8).collect();
        let blob = Blob { sha256: sha256(&fixture.bytes), size: blocks * BLOCK, ..fixture.blob(false) };
        let mut pace = Pace::default();
        (0..50).for_each(|_| pace.observe(latency, 8 << 20, flow));
        assert_eq!(pace.blocks(), requested);
        let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Lie], true);
        let ladder = Ladder::new(vec![tier], Arc::default(), Arc::default()).with_pace(pace);
        let content = fixture.content_of(blob, None, ladder);
        let read = content.read(5..10, Some(0)).await.map(|pieces| pieces.concat());
        match is_compared {
            true => assert_eq!(read.expect_err("flipped").kind(), Kind::Corrupt, "{blocks} of {requested}"),
            false => assert_ne!(read.expect("it is read while it arrives"), fixture.bytes[5..10]),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_of_one_flight_partly_local_is_proved_with_what_is_here() {
    let mut fixture = ContentFixture::new();
    fixture.bytes.truncate(2 * BLOCK as usize + 99);
    let size = fixture.bytes.len() as u64;
    let blob = Blob { sha256: sha256(&fixture.bytes), size, ..fixture.blob(false) };
    let tier = ScriptedTier::new(&fixture.bytes, &[], true);
    // There is room for its first block and its last, which is short.
    let content = fixture.content(blob, Some(BLOCK * 3 / 2), &[&tier]);
    let read = async |range: Range<u64>| {
        content.await_flights().await;
        content.resources.recent_blocks.forget(&content.blob.key);
        content.read(range, Some(0)).await
    };
    read(0..10).await.expect("right");
    read(BLOCK..size).await.expect("right");
    assert_eq!((content.local_bytes(), tier.sent.load(Relaxed)), (2 * BLOCK, size + BLOCK));
    tier.faults.lock().push_back(Fault::Lie);
    for _ in 0..2 {
        assert_eq!(read(BLOCK..size).await.expect_err("flipped").kind(), Kind::Corrupt);
    }
    tier.faults.lock().clear();
    content.await_retry().await;
    read(0..size).await.expect("right");

    // What is here may be wrong itself.
    let part = content.part().expect("a part");
    crate::cache::io::write(part.file(), 7, b"rot").expect("written");
    let right = read(BLOCK..size).await.expect("right").concat();
    assert!(right == fixture.bytes[BLOCK as usize..]);
    assert!(read(0..BLOCK).await.expect("right").concat() == fixture.bytes[..BLOCK as usize]);
}

/// Counts the removals that it is told of.
#[derive(Debug, Default)]
struct RemovalCounter(AtomicU64);

impl RemovalListener for RemovalCounter {
    fn blob_removed(&self, _: &Removal, _: Option<&std::fs::File>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_refuted_after_it_was_read_is_fetched_again() {
    let fixture = ContentFixture::new();
    let blob = Blob { sha256: sha256(&fixture.bytes), ..fixture.blob(false) };
    let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Lie], true);
    let content = fixture.content(blob, None, &[&tier]);
    let removals = Arc::new(RemovalCounter::default());
    let listener: std::sync::Weak<RemovalCounter> = Arc::downgrade(&removals);
    content.resources.cache.removal_listeners().add(listener);
    // Waited for from the beginning: the rest comes after what is read. On a busy machine it may be fetched again, and refuted
    // again, before who waits looks.
    let (refuted, wrong) = tokio::join!(content.became_whole(), async {
        // It does not fit into one flight, so its first bytes leave before it can be proved.
        let wrong = content.read(0..10, Some(0)).await.expect("bytes").concat();
        content.prefetch(0..SIZE);
        wrong
    });
    assert!(wrong != fixture.bytes[..10]);
    assert_eq!(refuted.expect_err("not it").kind(), Kind::Corrupt);
    assert!(content.local_bytes() == 0 && removals.0.load(Relaxed) >= 1);
    assert!(content.try_read(0..10).is_none());
    tier.faults.lock().clear();
    content.await_retry().await;
    fixture.expect(&content, 0..SIZE).await;
    content.became_whole().await.expect("the origin has healed");
    assert_eq!(content.local_bytes(), SIZE);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuted_content_opened_anew_is_not_fetched_within_its_backoff() {
    let fixture = ContentFixture::new();
    let blob = Blob { sha256: sha256(&fixture.bytes), ..fixture.blob(false) };
    let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Lie], false);
    let content = fixture.content(blob.clone(), None, &[&tier]);
    let (resources, ladder) = (content.resources.clone(), content.ladder());
    let (refuted, ()) = tokio::join!(content.became_whole(), async { content.prefetch(0..SIZE) });
    assert_eq!(refuted.expect_err("not it").kind(), Kind::Corrupt);
    content.await_flights().await;
    drop(content);
    let asked = tier.requests.load(Relaxed);
    let open = || {
        let content = Content::new(blob.clone(), resources.clone(), ladder.clone());
        content.open();
        content
    };
    for _ in 0..3 {
        assert_eq!(open().read(0..10, Some(0)).await.expect_err("too soon").kind(), Kind::Corrupt);
    }
    assert_eq!(tier.requests.load(Relaxed), asked);
    let content = open();
    content.await_retry().await;
    fixture.expect(&content, 0..SIZE).await;
    content.became_whole().await.expect("the origin has healed");
    assert!(resources.refutations.of(&blob.key).last().is_none(), "that is over");
}

#[tokio::test(flavor = "multi_thread")]
async fn content_without_conditions_is_read_when_it_is_whole_and_proved() {
    let fixture = ContentFixture::new();
    let version = Bytes::from_static(b"sha256 00ff");
    let blob = Blob { sha256: sha256(&fixture.bytes), version, ..fixture.blob(false) };
    // The second of its requests is answered from another state.
    let mixed = ScriptedTier::new(&fixture.bytes, &[Fault::BreakAfter(3 * BLOCK), Fault::Lie], false);
    let content = fixture.content(blob.clone(), None, &[&mixed]);
    // A fast origin is asked for all of it at once, so that the mixture is found out before it is stored.
    if let Err(error) = content.read(5..10, Some(0)).await {
        assert_eq!(error.kind(), Kind::Corrupt, "a mixture");
        assert!(content.try_read(5..10).is_none() && content.local_bytes() == 0, "nothing of it is kept");
        content.await_retry().await;
    }
    fixture.expect(&content, 5..10).await;
    fixture.expect(&content, 0..SIZE).await;
    assert_eq!(content.local_bytes(), SIZE);
    drop(content);

    // Where it can't be kept, it can't be proved.
    let fixture = ContentFixture::new();
    let content = fixture.content(blob, Some(BLOCK), &[&ScriptedTier::new(&fixture.bytes, &[], false)]);
    assert_eq!(content.read(5..10, Some(0)).await.expect_err("no room").kind(), Kind::NoSpace);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_with_rotten_part_in_use_is_scrubbed_and_fetched_again() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let content = fixture.content(fixture.blob(true), None, &[&tier]);
    fixture.expect(&content, 0..4 * BLOCK).await;
    content.await_flights().await;
    let part = content.part().expect("a part");
    crate::cache::io::write(part.file(), BLOCK + 7, b"rot").expect("written");
    content.resources.recent_blocks.forget(&content.blob.key);
    let rotten = content.try_read(BLOCK..BLOCK + 100).expect("the map calls it present").concat();
    assert!(rotten != fixture.bytes[BLOCK as usize..BLOCK as usize + 100]);
    let cache = &content.resources.cache;
    let scrub = || crate::cache::scrub::scrub(cache, &AtomicBool::new(false)).expect("a scrub");
    assert_eq!(scrub().damaged.len(), 1);
    assert!(content.try_read(BLOCK..BLOCK + 100).is_none(), "it is not here any more");
    assert!(content.try_read(0..BLOCK).is_some(), "what is right stays");
    fixture.expect(&content, 0..4 * BLOCK).await;
    content.await_flights().await;
    assert!(scrub().damaged.is_empty());
}
