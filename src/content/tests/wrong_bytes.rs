//! What is found to be wrong: before it is delivered, afterwards, and on the disk.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn content_with_wrong_sha256_is_discarded() {
    let bench = Bench::new();
    let tier = Scripted::new(&bench.bytes, &[], false);
    let blob = Blob { sha256: Some([7; 32]), ..bench.blob(false) };
    let content = bench.content(blob, None, &[&tier]);
    bench.expect(&content, 0..10).await;
    content.prefetch(0..SIZE);
    assert_eq!(content.became_whole().await.expect_err("not it").kind(), Kind::Corrupt);
    assert_eq!(content.read(0..10, 0).await.expect_err("not it").kind(), Kind::Corrupt);
}

/// The right SHA-256 of the bench's first `size` bytes.
fn sha256(bytes: &[u8]) -> Option<[u8; 32]> {
    use sha2::Digest as _;
    Some(sha2::Sha256::digest(bytes).into())
}

#[tokio::test(flavor = "multi_thread")]
async fn content_of_one_flight_with_flipped_bytes_delivers_none() {
    let mut bench = Bench::new();
    bench.bytes.truncate(2 * BLOCK as usize + 99);
    let size = bench.bytes.len() as u64;
    let blob = Blob { sha256: sha256(&bench.bytes), size, ..bench.blob(false) };
    let liar = Scripted::new(&bench.bytes, &[Fault::Lie], true);
    let content = bench.content(blob.clone(), None, &[&liar]);
    assert_eq!(content.read(5..10, 0).await.expect_err("flipped").kind(), Kind::Corrupt);
    assert!(content.try_read(5..10).is_none() && content.local_bytes() == 0, "nothing of it is kept");
    drop(content);

    let lied_once = Scripted::new(&bench.bytes, &[Fault::Lie], false);
    let content = bench.content(blob, None, &[&lied_once]);
    bench.expect(&content, 5..10).await;
    bench.expect(&content, 0..size).await;
    assert_eq!(lied_once.requests.load(Relaxed), 2);
    content.became_whole().await.expect("it is right");
}

/// Counts the removals that it is told of.
#[derive(Debug, Default)]
struct Removals(AtomicU64);

impl crate::cache::removal::RemovalListener for Removals {
    fn blob_removed(&self, _: &Key, _: Option<&std::fs::File>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_refuted_after_it_was_read_starts_anew() {
    let bench = Bench::new();
    let blob = Blob { sha256: sha256(&bench.bytes), ..bench.blob(false) };
    let tier = Scripted::new(&bench.bytes, &[Fault::Lie], false);
    let content = bench.content(blob, None, &[&tier]);
    let removals = Arc::new(Removals::default());
    let listener: std::sync::Weak<Removals> = Arc::downgrade(&removals);
    content.resources.cache.removal_listeners().add(listener);
    // It does not fit into one flight, so its first bytes leave before it can be proved.
    let wrong = content.read(0..10, 0).await.expect("bytes").concat();
    assert!(wrong != bench.bytes[..10]);
    content.prefetch(0..SIZE);
    assert_eq!(content.became_whole().await.expect_err("not it").kind(), Kind::Corrupt);
    assert_eq!((content.local_bytes(), removals.0.load(Relaxed)), (0, 1));
    assert!(content.try_read(0..10).is_none());
    content.await_retry().await;
    bench.expect(&content, 0..SIZE).await;
    content.became_whole().await.expect("the origin has healed");
    assert_eq!(content.local_bytes(), SIZE);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_without_conditions_is_read_when_it_is_whole_and_proved() {
    let bench = Bench::new();
    let version = Bytes::from_static(b"sha256 00ff");
    let blob = Blob { sha256: sha256(&bench.bytes), version, ..bench.blob(false) };
    // The second of its requests is answered from another state.
    let mixed = Scripted::new(&bench.bytes, &[Fault::BreakAfter(3 * BLOCK), Fault::Lie], false);
    let content = bench.content(blob.clone(), None, &[&mixed]);
    assert_eq!(content.read(5..10, 0).await.expect_err("a mixture").kind(), Kind::Corrupt);
    assert!(content.try_read(5..10).is_none() && content.local_bytes() == 0, "nothing of it is kept");
    content.await_retry().await;
    bench.expect(&content, 5..10).await;
    bench.expect(&content, 0..SIZE).await;
    assert_eq!(content.local_bytes(), SIZE);
    drop(content);

    // Where it can't be kept, it can't be proved.
    let bench = Bench::new();
    let content = bench.content(blob, Some(BLOCK), &[&Scripted::new(&bench.bytes, &[], false)]);
    assert_eq!(content.read(5..10, 0).await.expect_err("no room").kind(), Kind::NoSpace);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_with_rotten_part_in_use_is_scrubbed_and_fetched_again() {
    let bench = Bench::new();
    let tier = Scripted::new(&bench.bytes, &[], false);
    let content = bench.content(bench.blob(true), None, &[&tier]);
    bench.expect(&content, 0..4 * BLOCK).await;
    content.await_flights().await;
    let part = content.part().expect("a part");
    crate::cache::io::write(part.file(), BLOCK + 7, b"rot").expect("written");
    content.resources.recent_blocks.forget(&content.blob.key);
    let rotten = content.try_read(BLOCK..BLOCK + 100).expect("the map calls it present").concat();
    assert!(rotten != bench.bytes[BLOCK as usize..BLOCK as usize + 100]);
    let cache = &content.resources.cache;
    let scrub = || crate::cache::scrub::scrub(cache, &AtomicBool::new(false)).expect("a scrub");
    assert_eq!(scrub().damaged.len(), 1);
    assert!(content.try_read(BLOCK..BLOCK + 100).is_none(), "it is not here any more");
    assert!(content.try_read(0..BLOCK).is_some(), "what is right stays");
    bench.expect(&content, 0..4 * BLOCK).await;
    content.await_flights().await;
    assert!(scrub().damaged.is_empty());
}
