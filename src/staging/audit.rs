//! Audits: verify the whole blobs of a snapshot in the cache again.

use std::ops::RangeInclusive;
use std::sync::Weak;

use crate::cache::Cache;
use crate::cache::layout::BlobFile;
use crate::cache::partition::CachedFile;
use crate::cache::scrub::{self, ScrubPace, ScrubTotals};
use crate::cache::verification_time;
use crate::error::{Error, Kind, Result};
use crate::manifest::Manifest;
use crate::snapshot::Snapshot;
use crate::task::blocking;

use super::abandoned;

/// The number of blobs that are verified before damage that was found in them is told.
const AUDIT_PART_LEN: usize = 8;

/// Verifies the manifest of `snapshot`, its blobs that are whole in the cache, and what native mounts have copied of them, as far
/// as they were not verified within `period`, in seconds since 1970. What is not right is removed, as [`scrub::verify`] does. Ends
/// early when `pace` says so, or the snapshot is dropped. `tell` gets a line for whatever is damaged, soon after it is found.
/// Blocks on the local disk.
///
/// # Errors
/// Those of [`scrub::verify`]; [`Corrupt`](Kind::Corrupt) when the manifest is, also in memory.
pub fn audit(
    snapshot: &Weak<Snapshot>,
    period: &RangeInclusive<i64>,
    pace: ScrubPace<'_>,
    tell: &mut dyn FnMut(String),
) -> Result<()> {
    let held = snapshot.upgrade().ok_or_else(abandoned)?;
    let (manifest, cache) = (held.shared_manifest(), held.resources().cache.clone());
    let (id, listed, pack) = (held.id(), held.listed_manifest().clone(), held.native_pack());
    drop(held);
    let pace = |bytes| snapshot.strong_count() > 0 && pace(bytes);
    let verified = scrub::verify_manifest(&cache, &id, period, &pace)?;
    if listed.digest() != id {
        let source = listed.source().escape_debug();
        let text = format!("the manifest of {source} is damaged in memory: unmount it and mount it again");
        return Err(Error::new(Kind::Corrupt, text));
    }
    verified.damaged_manifests.into_iter().for_each(&mut *tell);
    let mut outcome = Ok(());
    for part in due_blobs(&cache, &manifest, 0..manifest.blobs(), period)?.chunks(AUDIT_PART_LEN) {
        match scrub::verify(&cache, part, &pace) {
            Ok(totals) => totals.damaged.into_iter().for_each(&mut *tell),
            Err(error) if error.kind() == Kind::Interrupted => return Err(error),
            // What can't be read keeps nothing else from being verified.
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    if pack.strong_count() > 0 {
        outcome = outcome.and(audit(&pack, period, &pace, tell));
    }
    outcome
}

/// Verifies all of `snapshot` that was not verified since the time `since`, in seconds since 1970, as [`audit`] does; true where
/// nothing was damaged.
///
/// # Errors
/// Those of [`audit`].
pub async fn audit_since(snapshot: Weak<Snapshot>, since: i64) -> Result<bool> {
    blocking(move || {
        let now = snapshot.upgrade().ok_or_else(abandoned)?.resources().cache.now();
        let mut is_right = true;
        // What was verified in the future was not: the clock was wrong.
        let period = since..=verification_time::seconds(now);
        audit(&snapshot, &period, &|_| true, &mut |_| is_right = false)?;
        Ok(is_right)
    })
    .await
}

/// Verifies `blobs` of `manifest` as [`audit`] does all of them.
///
/// # Errors
/// Those of [`scrub::verify`]; [`Corrupt`](Kind::Corrupt) when the manifest is.
pub fn audit_blobs(
    cache: &Cache,
    manifest: &Manifest,
    blobs: impl IntoIterator<Item = u32>,
    period: &RangeInclusive<i64>,
    pace: ScrubPace<'_>,
) -> Result<ScrubTotals> {
    scrub::verify(cache, &due_blobs(cache, manifest, blobs, period)?, pace)
}

/// Those of `blobs` that are whole in the cache and were not verified within `period`.
fn due_blobs(
    cache: &Cache,
    manifest: &Manifest,
    blobs: impl IntoIterator<Item = u32>,
    period: &RangeInclusive<i64>,
) -> Result<Vec<CachedFile>> {
    let mut due = Vec::new();
    for blob in blobs {
        let found = cache.find(&manifest.key(blob)?, BlobFile::Whole);
        due.extend(found.filter(|found| found.is_due(period)));
    }
    Ok(due)
}
