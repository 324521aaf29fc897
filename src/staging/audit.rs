//! Audits: verify the whole blobs of a snapshot in the cache again.

use std::ops::RangeInclusive;
use std::sync::Weak;

use crate::cache::layout::BlobFile;
use crate::cache::scrub::{self, ScrubPace, ScrubTotals};
use crate::error::Result;
use crate::snapshot::Snapshot;

use super::abandoned;

/// Verifies the blobs of `snapshot` that are whole in the cache and were not verified within `period`, in
/// seconds since 1970. What is not right is removed, as [`scrub::verify`] does. Ends early when `pace` says
/// so, or the snapshot is dropped. Blocks on the local disk.
///
/// # Errors
/// Those of [`scrub::verify`]; [`Corrupt`](crate::error::Kind::Corrupt) when the manifest is.
pub fn audit(
    snapshot: &Weak<Snapshot>,
    period: &RangeInclusive<i64>,
    pace: ScrubPace<'_>,
) -> Result<ScrubTotals> {
    let held = snapshot.upgrade().ok_or_else(abandoned)?;
    let (manifest, cache) = (held.shared_manifest(), held.resources().cache.clone());
    drop(held);
    let mut due = Vec::new();
    for blob in 0..manifest.blobs() {
        let found = cache.find(&manifest.key(blob)?, BlobFile::Whole);
        due.extend(found.filter(|found| found.is_due(period)));
    }
    scrub::verify(&cache, &due, &|bytes| snapshot.strong_count() > 0 && pace(bytes))
}
