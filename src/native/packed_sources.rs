//! The blobs that a pack is made of: whether they are right, and whether they still are those that it was made of.
//!
//! A pack is a copy, and its digest only proves that it is what was copied. So it notes which files that was, and is made again
//! where the cache has others by now: what was damaged when it was copied has come again since.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::RangeInclusive;

use rustix::fs::{AtFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;

use super::data_layout::DataLayout;
use crate::blob::Key;
use crate::block::BLOCK;
use crate::cache::commit::{DIGEST_XATTR, known_digest};
use crate::cache::file_version::{self, FileVersion};
use crate::cache::layout::{BlobFile, Layout as CacheLayout};
use crate::cache::{Cache, file_notes};
use crate::digest::Digest;
use crate::error::Result;
use crate::manifest::Node;
use crate::snapshot::Snapshot;
use crate::staging::audit;

/// The extended attribute of a pack: the [identity](current) of the files that it was made of.
const SOURCES_XATTR: &str = "user.bdnfs.sources";

/// The blobs of which something lies in the pack.
fn blobs(snapshot: &Snapshot, layout: &DataLayout) -> Result<BTreeSet<u32>> {
    let mut blobs = BTreeSet::new();
    for (_, part) in layout.packed_from(0) {
        if let Node::File(slice) = snapshot.manifest().entry(part.entry)?.node {
            blobs.insert(slice.blob);
        }
    }
    Ok(blobs)
}

/// Identifies the files that the cache has of the packed blobs; `None` where it lacks one. What is fetched again is another
/// file, or one with another [time of damage](file_version::damaged_at).
pub(super) fn current(snapshot: &Snapshot, layout: &DataLayout) -> Result<Option<Digest>> {
    let (manifest, cache) = (snapshot.manifest(), snapshot.resources().cache.layout());
    let mut hasher = blake3::Hasher::new();
    for blob in blobs(snapshot, layout)? {
        let (key, size) = (manifest.key(blob)?, manifest.blob_size(blob)?);
        let name = CacheLayout::name(&key, BlobFile::Whole);
        let mask = StatxFlags::INO | StatxFlags::SIZE | StatxFlags::BTIME;
        let stat = rustix::fs::statx(cache.blobs(), name, AtFlags::SYMLINK_NOFOLLOW, mask);
        let Some(stat) = stat.ok().filter(|stat| stat.stx_size == size) else { return Ok(None) };
        hasher.update(&stat.stx_ino.to_le_bytes());
        // Inode numbers are given again.
        hasher.update(&stat.stx_btime.tv_sec.to_le_bytes()).update(&stat.stx_btime.tv_nsec.to_le_bytes());
        // Only what the kernel reads by itself is repaired in place: large files, whose ends are packed.
        if size > BLOCK {
            let Some(file) = cache.open_blob(&key, BlobFile::Whole)? else { return Ok(None) };
            hasher.update(&file_version::damaged_at(&file).unwrap_or_default());
        }
    }
    Ok(Some(Digest(*hasher.finalize().as_bytes())))
}

/// Notes that `pack` was made of the files that are `sources`; false where another mount has withdrawn it meanwhile. Best effort: a
/// disk may keep no notes.
pub(super) fn note(pack: &Snapshot, sources: &Digest) -> Result<bool> {
    let (key, layout) = (pack.manifest().key(0)?, pack.resources().cache.layout());
    let Some(file) = layout.open_blob(&key, BlobFile::Whole)? else { return Ok(false) };
    let noted = rustix::fs::fsetxattr(&file, SOURCES_XATTR, &sources.0, XattrFlags::empty());
    if let Err(error) = noted {
        tracing::debug!(%key, %error, "a pack is kept without a note of what it is made of");
    }
    Ok(true)
}

/// Withdraws `pack`, as what is damaged, if it is whole and was not made of the files that the cache has now. A disk that keeps no
/// notes does not tell: there it is withdrawn only where files `have_changed`.
pub(super) fn withdraw_stale(
    pack: &Snapshot,
    snapshot: &Snapshot,
    layout: &DataLayout,
    have_changed: bool,
) -> Result<()> {
    let (key, cache) = (pack.manifest().key(0)?, &pack.resources().cache);
    let Some(file) = cache.open_whole(&key, pack.manifest().blob_size(0)?)? else { return Ok(()) };
    let version = version(cache, &key, &file)?;
    let noted = file_notes::read(&file, SOURCES_XATTR);
    if noted == Err(Errno::OPNOTSUPP) && !have_changed {
        return Ok(());
    }
    let noted = noted.ok().flatten().map(Digest);
    if noted.is_none() || noted != current(snapshot, layout)? {
        cache.withdraw(&key, &file, &version)?;
    }
    Ok(())
}

fn version(cache: &Cache, key: &Key, file: &File) -> Result<FileVersion> {
    FileVersion::of(file).map_err(|e| cache.layout().fault("stat", key, e))
}

/// Whether the packed blobs are whole in the cache, and right: those that were not verified within `period`, in seconds since 1970,
/// are read.
pub(super) fn are_right(
    snapshot: &Snapshot,
    layout: &DataLayout,
    period: &RangeInclusive<i64>,
) -> Result<bool> {
    let (manifest, cache) = (snapshot.manifest(), &snapshot.resources().cache);
    let mut blobs = blobs(snapshot, layout)?;
    for blob in &blobs {
        if !cache.has(&manifest.key(*blob)?, manifest.blob_size(*blob)?) {
            return Ok(false);
        }
    }
    // Of a large file only the end is copied, and all of it would be read: a scrub that finds it damaged has the pack made again.
    for blob in layout.device_blobs() {
        blobs.remove(blob);
    }
    let audited = audit::audit_blobs(cache, manifest, blobs, period, &|_| true)?;
    Ok(audited.damaged.is_empty())
}

/// Withdraws the packed blobs that can't be verified, so that they are fetched again. They were not verified within `period`, and
/// no digest of them is known. Not on a disk that keeps no digests, where nothing could be used twice.
pub(super) fn withdraw_unverifiable(
    snapshot: &Snapshot,
    layout: &DataLayout,
    period: &RangeInclusive<i64>,
) -> Result<()> {
    let (manifest, cache) = (snapshot.manifest(), &snapshot.resources().cache);
    for blob in blobs(snapshot, layout)? {
        let key = manifest.key(blob)?;
        let found = cache.find(&key, BlobFile::Whole);
        if !found.is_some_and(|found| found.is_due(period)) {
            continue;
        }
        let Some(file) = cache.layout().open_blob(&key, BlobFile::Whole)? else { continue };
        let keeps_digests = file_notes::read::<0>(&file, DIGEST_XATTR) != Err(Errno::OPNOTSUPP);
        if keeps_digests && known_digest(&key, &file).is_none() {
            cache.withdraw(&key, &file, &version(cache, &key, &file)?)?;
        }
    }
    Ok(())
}
