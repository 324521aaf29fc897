//! The conformance suite, which every tier passes.

use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use futures_util::{StreamExt, TryStreamExt};

use super::{Origin, Tier, Urgency};
use crate::blob::Blob;
use crate::block::BLOCK;
use crate::error::{Error, Kind, Result};
use crate::manifest::{Listing, Manifest, Node};
use crate::source::Patterns;

/// A tier with a way to change what it holds.
pub trait Subject: Sync {
    /// The tier.
    fn tier(&self) -> &dyn Tier;

    /// Puts a file of this content at `path`, in place of the one that may be there, and returns the blob
    /// that a snapshot taken now pins.
    fn put<'a>(&'a self, path: &'a str, content: Bytes) -> BoxFuture<'a, Blob>;

    /// Whether blobs are known by their content: then another version is another blob, and the former is merely not there.
    fn is_by_content(&self) -> bool {
        false
    }

    /// Removes the file at `path`.
    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()>;
}

/// The blob of the file at `path`, as a snapshot of `origin` taken now pins it.
///
/// # Errors
/// Those of the listing; [`Kind::NotFound`] when there is no such file in it.
pub async fn pinned(origin: &dyn Origin, path: &str) -> Result<Blob> {
    // So little is listed that nothing is put there.
    let mut listing = Listing::new(&origin.identity(), Patterns::default(), Path::new("/"));
    origin.list(&mut listing).await?;
    let mut bytes = Vec::new();
    listing.finish(&mut bytes)?;
    let manifest = Manifest::from_bytes(bytes)?;
    let missing = || Error::new(Kind::NotFound, format!("{path} is not listed"));
    let mut entry = 0;
    for name in path.split('/') {
        entry = manifest.lookup(entry, name.as_bytes())?.ok_or_else(missing)?;
    }
    match manifest.entry(entry)?.node {
        Node::File(slice) => manifest.blob(slice.blob),
        _ => Err(missing()),
    }
}

/// Runs the whole suite.
///
/// # Panics
/// At what the tier does wrong.
pub async fn suite(subject: &dyn Subject) {
    fetched_ranges_are_exact(subject).await;
    concurrent_fetches_are_independent(subject).await;
    dropped_body_leaves_the_tier_usable(subject).await;
    changed_content_is_not_sent(subject).await;
    removed_content_is_not_sent(subject).await;
}

/// Content that differs at every offset's neighbourhood, so that a shifted range shows.
fn content(len: u64, seed: u64) -> Bytes {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ (at >> 16) ^ seed) as u8).collect()
}

async fn fetch(subject: &dyn Subject, blob: &Blob, range: Range<u64>) -> Result<Option<Bytes>> {
    let Some(body) = subject.tier().fetch(blob, range, Urgency::Read).await? else { return Ok(None) };
    let pieces: Vec<Bytes> = body.try_collect().await?;
    Ok(Some(pieces.concat().into()))
}

async fn check(subject: &dyn Subject, blob: &Blob, content: &Bytes, range: Range<u64>) {
    let got = fetch(subject, blob, range.clone()).await.unwrap_or_else(|e| panic!("{range:?}: {e}"));
    let got = got.unwrap_or_else(|| panic!("{range:?}: a miss of what was put"));
    assert_eq!(got.len() as u64, range.end - range.start, "the length of {range:?}");
    assert!(got == content[range.start as usize..range.end as usize], "the bytes of {range:?}");
}

async fn fetched_ranges_are_exact(subject: &dyn Subject) {
    let size = 3 * BLOCK + 12_345;
    let content = content(size, 1);
    let blob = subject.put("conformance/large", content.clone()).await;
    assert_eq!(blob.size, size);
    let edges =
        [0..1, size - 1..size, BLOCK - 1..BLOCK + 1, BLOCK..2 * BLOCK, 2 * BLOCK..3 * BLOCK, 3 * BLOCK..size];
    for range in edges.into_iter().chain([0..size, 1..size - 1, 777_777..777_778, 100..2 * BLOCK + 100]) {
        check(subject, &blob, &content, range).await;
    }
    for size in [1, BLOCK - 1, BLOCK, BLOCK + 1] {
        let content = self::content(size, size);
        let blob = subject.put("conformance/small", content.clone()).await;
        check(subject, &blob, &content, 0..size).await;
        check(subject, &blob, &content, size - 1..size).await;
    }
}

async fn concurrent_fetches_are_independent(subject: &dyn Subject) {
    let size = 4 * BLOCK;
    let (one, two) = (content(size, 2), content(size, 3));
    let first = subject.put("conformance/one", one.clone()).await;
    let second = subject.put("conformance/two", two.clone()).await;
    let ranges = (0..16).map(|i| {
        let start = i * BLOCK / 5;
        start..start + BLOCK / 2 + i
    });
    let checks = ranges.flat_map(|range| {
        [check(subject, &first, &one, range.clone()), check(subject, &second, &two, range)]
    });
    join_all(checks).await;
}

async fn dropped_body_leaves_the_tier_usable(subject: &dyn Subject) {
    let size = 8 * BLOCK;
    let content = content(size, 4);
    let blob = subject.put("conformance/dropped", content.clone()).await;
    for _ in 0..4 {
        let body = subject.tier().fetch(&blob, 0..size, Urgency::Stage).await.expect("it is there");
        let first = body.expect("no miss").next().await.expect("not empty").expect("no failure");
        assert_eq!(first, content[..first.len()]);
        drop(subject.tier().fetch(&blob, 0..size, Urgency::Ahead));
    }
    check(subject, &blob, &content, 0..size).await;
}

/// Two sizes: a change that shows in the length, and one that does not.
async fn changed_content_is_not_sent(subject: &dyn Subject) {
    for size in [BLOCK + 5, BLOCK + 6] {
        let old = subject.put("conformance/changed", content(BLOCK + 5, 5)).await;
        let new = content(size, 6);
        let blob = subject.put("conformance/changed", new.clone()).await;
        for range in [0..1, 0..old.size] {
            match fetch(subject, &old, range).await {
                Ok(None) if subject.is_by_content() => {}
                Ok(_) => panic!("another version is there"),
                Err(error) => assert_eq!(error.kind(), Kind::Changed, "{error}"),
            }
        }
        check(subject, &blob, &new, 0..size).await;
    }
}

async fn removed_content_is_not_sent(subject: &dyn Subject) {
    let blob = subject.put("conformance/gone", content(9, 7)).await;
    subject.put("conformance/stays", content(9, 7)).await;
    subject.remove("conformance/gone").await;
    match fetch(subject, &blob, 0..9).await {
        Ok(None) => {}
        Ok(Some(_)) => panic!("bytes of a file that is gone"),
        Err(error) => assert_eq!(error.kind(), Kind::Changed, "{error}"),
    }
}
