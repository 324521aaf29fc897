//! Verification: checks that all objects which refs reach exist and, on demand, every byte of them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::catalog::Ref;
use super::keys::ObjectKind;
use super::record::MirrorRecord;
use super::{Mirror, damaged};
use crate::blob::{Blob, Key};
use crate::block::{self, Arrival, BLOCK};
use crate::error::{Error, Kind, Result};
use crate::extent::{Extent, MAX_EXTENT_BLOCKS};
use crate::manifest::Manifest;
use crate::task::blocking;
use crate::tier::{Tier, Urgency};

/// The number of blobs that are checked for existence at once, and of those that are read.
const HEADS_IN_FLIGHT: usize = 64;
const READS_IN_FLIGHT: usize = 4;

/// The number of checks of a blob that others repair again and again.
const CHECK_LIMIT: usize = 3;

/// Progress of a verification.
#[derive(Debug, Default)]
pub struct VerifyProgress {
    /// Refs.
    pub refs: AtomicU64,
    /// Different blobs that they reach.
    pub blobs: AtomicU64,
    /// Bytes of these in the store.
    pub stored: AtomicU64,
}

impl Mirror {
    /// Verifies what `refs` reach: that it is there and as long as it should be; when `deep`, every byte of it.
    /// Each fault goes to `report`, and a blob at fault is forgotten, so that adding its source repairs it.
    ///
    /// # Errors
    /// Those of the store, which leave open what else is wrong.
    pub async fn verify(
        &self,
        refs: Vec<Result<Ref>>,
        deep: bool,
        progress: &VerifyProgress,
        mut report: impl FnMut(Error),
    ) -> Result<()> {
        let mut blobs = HashSet::new();
        for found in refs {
            progress.refs.fetch_add(1, Ordering::Relaxed);
            let manifest = match self.snapshot(found).await {
                Ok(manifest) => manifest,
                Err(fault) if fault.kind() == Kind::Corrupt => {
                    report(fault);
                    continue;
                }
                Err(e) => return Err(e),
            };
            self.verify_blobs(&manifest, deep, progress, &mut blobs, &mut report).await?;
        }
        Ok(())
    }

    /// The manifest of a ref.
    async fn snapshot(&self, found: Result<Ref>) -> Result<Manifest> {
        let found = found?;
        let key = self.key(ObjectKind::Manifests, &found.manifest);
        let manifest = self.manifest(&found.manifest).await.map_err(|e| e.context(&found.source))?;
        let missing = || damaged(self.url_of(&key), format!("{} needs it; it is missing", found.source));
        let manifest = manifest.ok_or_else(missing)?;
        let url_of = self.url_of(&key);
        blocking(move || manifest.check().map(|()| manifest).map_err(|e| e.context(url_of))).await
    }

    async fn verify_blobs(
        &self,
        manifest: &Manifest,
        deep: bool,
        progress: &VerifyProgress,
        decode_recipe: &mut HashSet<[u8; 32]>,
        report: &mut impl FnMut(Error),
    ) -> Result<()> {
        // The same blob may be kept in another form, or elsewhere, in another manifest.
        let new = (0..manifest.blobs()).filter_map(|index| match manifest.blob(index) {
            Ok(blob) if blob.size == 0 => None,
            Ok(blob) => {
                let form = format!("{}{:?}", blob.key, blob.stored);
                decode_recipe.insert(*blake3::hash(form.as_bytes()).as_bytes()).then_some(Ok(blob))
            }
            Err(e) => Some(Err(e)),
        });
        let checked = stream::iter(new).map(|blob| async move {
            let blob = blob?;
            progress.blobs.fetch_add(1, Ordering::Relaxed);
            let fault = self.check_blob(&blob, deep).await.err();
            progress.stored.fetch_add(blob.stored.len(blob.size).unwrap_or_default(), Ordering::Relaxed);
            Ok(fault)
        });
        let mut checked = checked.buffer_unordered(if deep { READS_IN_FLIGHT } else { HEADS_IN_FLIGHT });
        while let Some(fault) = checked.try_next().await? {
            let Some(fault) = fault else { continue };
            if fault.kind() != Kind::Corrupt {
                return Err(fault);
            }
            report(fault.context(manifest.source()));
        }
        Ok(())
    }

    /// Checks a blob. One at fault is forgotten, unless another run repairs it meanwhile: what was read then was the damage, and
    /// not what is there now.
    async fn check_blob(&self, blob: &Blob, deep: bool) -> Result<()> {
        let check = async || if deep { self.read_all(blob).await } else { self.check_object(blob).await };
        let Key::Content(digest) = blob.key else { return check().await };
        let record = self.key(ObjectKind::Records, &digest);
        let Some((fault, is_lasting)) = damage(check, || self.head(&record)).await? else { return Ok(()) };
        if is_lasting && let Err(error) = self.forget(&digest).await {
            tracing::warn!(%error, "a damaged blob is not marked: adding its source will not repair it");
        }
        Err(fault)
    }

    /// Whether a blob's object is there, and as long as it should be.
    async fn check_object(&self, blob: &Blob) -> Result<()> {
        let Key::Content(digest) = blob.key else {
            return Err(damaged(self.locate(blob), "a blob without a digest"));
        };
        let key = self.blob_key(&digest, &blob.stored);
        let len = blob.stored.len(blob.size).unwrap_or_default();
        match self.head(&key).await? {
            Some(meta) if meta.size == len => {}
            Some(meta) => return Err(damaged(self.url_of(&key), format!("{} bytes, not {len}", meta.size))),
            None => return Err(damaged(self.url_of(&key), "it is missing")),
        }
        // Without its record, it was found damaged before, and not repaired since.
        let record = self.key(ObjectKind::Records, &digest);
        match self.head(&record).await? {
            Some(_) => Ok(()),
            None => Err(damaged(self.url_of(&key), format!("its record {record} is missing"))),
        }
    }

    /// Whether a blob's record is what was written: the next run that needs the blob believes it.
    async fn check_record(&self, blob: &Blob) -> Result<()> {
        let Key::Content(digest) = blob.key else { return Ok(()) };
        let key = self.key(ObjectKind::Records, &digest);
        let record = self.get(&key).await?.and_then(|got| MirrorRecord::decode(&got.bytes, &digest));
        match record {
            Some(record) if record.size == blob.size => Ok(()),
            _ => Err(damaged(self.url_of(&key), "it is not the record that was written")),
        }
    }

    /// Reads all of a blob and holds it against its checks.
    async fn read_all(&self, blob: &Blob) -> Result<()> {
        self.check_object(blob).await?;
        self.check_record(blob).await?;
        let mut first = 0;
        while first < block::count(blob.size) {
            let extent = Extent { first, blocks: MAX_EXTENT_BLOCKS.min(block::count(blob.size) - first) };
            let body = self.fetch(blob, extent.bytes(blob.size), Urgency::Stage).await?;
            let body = body.ok_or_else(|| damaged(self.locate(blob), "it is missing"))?;
            let bytes = body.try_fold(
                BytesMut::with_capacity((MAX_EXTENT_BLOCKS * BLOCK) as usize),
                |mut all, piece| {
                    all.extend_from_slice(&piece);
                    std::future::ready(Ok(all))
                },
            );
            let (blob, bytes) = (blob.clone(), bytes.await?.freeze());
            let url_of = self.locate(&blob);
            blocking(move || check(&blob, extent, &bytes)).await.map_err(|e| e.context(url_of))?;
            first = extent.range().end;
        }
        Ok(())
    }
}

/// The damage that `check` finds, and whether it found some twice while the `version` of the record did not change.
///
/// # Errors
/// Those of `version`, and of `check` that are no damage.
async fn damage<V: PartialEq>(
    check: impl AsyncFn() -> Result<()>,
    version: impl AsyncFn() -> Result<V>,
) -> Result<Option<(Error, bool)>> {
    let find = async || match check().await {
        Err(fault) if fault.kind() == Kind::Corrupt => Ok(Some(fault)),
        checked => checked.map(|()| None),
    };
    let Some(mut fault) = find().await? else { return Ok(None) };
    for _ in 1..CHECK_LIMIT {
        let before = version().await?;
        let Some(found) = find().await? else { return Ok(None) };
        fault = found;
        if version().await? == before {
            return Ok(Some((fault, true)));
        }
    }
    Ok(Some((fault, false)))
}

/// Verifies the blocks of `extent` by their checks.
fn check(blob: &Blob, extent: Extent, bytes: &Bytes) -> Result<()> {
    let missing = || Error::new(Kind::Corrupt, "the manifest has no checks for it");
    let checks = blob.checks.as_ref().ok_or_else(missing)?;
    for index in extent.range() {
        let start = ((index - extent.first) * BLOCK) as usize;
        let end = bytes.len().min(start + BLOCK as usize);
        let bytes = bytes.slice(start.min(end)..end);
        Arrival { size: blob.size, index, bytes }.verify(checks.get(index as usize))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns the number of checks of a blob that is right from the check number `repaired` on, and the outcome.
    async fn checks(repaired: usize, version: impl Fn(usize) -> usize) -> (usize, Option<bool>) {
        let count = Cell::new(0);
        let check = async || {
            count.set(count.get() + 1);
            if count.get() >= repaired { Ok(()) } else { Err(Error::new(Kind::Corrupt, "damage")) }
        };
        let found = damage(check, async || Ok(version(count.get()))).await.expect("a store");
        (count.get(), found.map(|(_, is_lasting)| is_lasting))
    }

    #[tokio::test]
    async fn blob_that_is_repaired_while_it_is_checked_is_not_forgotten() {
        assert_eq!(checks(1, |_| 0).await, (1, None));
        assert_eq!(checks(2, |_| 0).await, (2, None), "repaired before it was checked again");
        assert_eq!(checks(3, |checked| checked).await, (3, None), "repaired while it was checked again");
        assert_eq!(checks(9, |_| 0).await, (2, Some(true)), "nobody has repaired it");
        assert_eq!(checks(9, |checked| checked).await, (CHECK_LIMIT, Some(false)), "it is repaired for ever");
    }
}
