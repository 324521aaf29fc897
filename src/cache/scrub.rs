//! Scrubbing: reads what the cache holds and removes what has rotted.

mod manifest_check;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::blob::Key;
use crate::block::{self, BLOCK};
use crate::cache::Cache;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

use super::commit::known_digest;
use super::direct_io::DirectFile;
use super::file_version::FileVersion;
use super::inventory;
use super::layout::BlobFile;
use super::partition::{CachedFile, Partition};
use super::presence::BlockState;
use super::{io as positioned, verification_time};

pub use manifest_check::{verify_manifest, verify_manifests};

/// The result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubTotals {
    /// Blobs that were read.
    pub blobs: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Blobs without a known digest, or that are being fetched now.
    pub unknown: u64,
    /// Damaged content that was removed: the path of a file, or the blob's key where that is unknown.
    pub damaged: Vec<String>,
    /// Damaged files that were removed before, and that a program has open or mapped.
    pub still_open: Vec<String>,
    /// Manifests that were damaged on the disk, and what was done about each.
    pub damaged_manifests: Vec<String>,
    /// Sources of which mounts in use have a damaged manifest, and so have to be mounted again.
    pub mounts_to_renew: Vec<String>,
}

/// Outcome of the check of one blob.
enum BlobVerdict {
    Right(u64),
    Wrong(u64),
    Unknown,
}

/// The time in which the kernel must drop what it caches of removed content: longer only where a read of it is under way, or the
/// process that does it is stopped.
const KERNEL_CACHE_TIMEOUT: Duration = Duration::from_secs(5);

/// Paces a scrub: gets the number of bytes read just now, may wait, and returns whether to go on.
pub type ScrubPace<'a> = &'a (dyn Fn(u64) -> bool + Sync);

/// Reads every manifest and every blob of a tenant, as [`verify_manifests`] and [`verify`] do. Ends early when `give_up` is set.
///
/// # Errors
/// Those of [`verify`].
pub fn scrub(cache: &Cache, give_up: &AtomicBool) -> Result<ScrubTotals> {
    let pace = |_| !give_up.load(Relaxed);
    // First: what is damaged in blobs is named from them.
    let manifests = verify_manifests(cache, None, &pace)?;
    let (found, still_open) = (cache.partition.scan(), cache.partition.still_open()?);
    let mut totals = verify(cache, &found, &pace)?;
    totals.bytes += manifests.bytes;
    totals.damaged_manifests = manifests.damaged_manifests;
    totals.mounts_to_renew = manifests.mounts_to_renew;
    let still_open = names(&cache.partition, &Vec::from_iter(still_open))?.into_iter();
    totals.still_open = still_open
        .map(|name| format!("{name}: removed before, and still open or mapped; close and reopen it"))
        .collect();
    Ok(totals)
}

/// Reads the blobs `found` and removes what is not right, even if it is in use: no lease protects wrong bytes. Its readers are
/// [notified](super::removal), and it is fetched again: at once where it was staged, else when it is next read. What is right is
/// [marked](verification_time). Several blobs are read by as many threads as there are processors, one by the caller's.
///
/// # Errors
/// [`Kind::Disk`]; [`Kind::Interrupted`] where `pace` says so.
pub fn verify(cache: &Cache, found: &[CachedFile], pace: ScrubPace<'_>) -> Result<ScrubTotals> {
    let (next, verified) = (AtomicUsize::new(0), Mutex::new((ScrubTotals::default(), Vec::new())));
    let failed = Mutex::new(None);
    let work = || {
        while let Some(found) = found.get(next.fetch_add(1, Relaxed)) {
            let verdict = check_blob(cache, found, pace);
            let (sum, wrong) = &mut *verified.lock();
            match verdict {
                Ok(BlobVerdict::Unknown) => sum.unknown += 1,
                Ok(BlobVerdict::Right(bytes)) => (sum.blobs, sum.bytes) = (sum.blobs + 1, sum.bytes + bytes),
                Ok(BlobVerdict::Wrong(bytes)) => {
                    (sum.blobs, sum.bytes) = (sum.blobs + 1, sum.bytes + bytes);
                    wrong.push(found.key);
                }
                Err(error) => {
                    let cancelled = error.kind() == Kind::Interrupted;
                    failed.lock().get_or_insert(error);
                    if cancelled {
                        return;
                    }
                }
            }
        }
    };
    match thread::available_parallelism().map_or(1, usize::from).min(found.len()) {
        0 | 1 => work(),
        threads => thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work)))),
    }
    let (sum, wrong) = verified.into_inner();
    if !wrong.is_empty() {
        // Who is told that damage was removed reads none of it.
        cache.partition.removal_marks.await_invalidations(KERNEL_CACHE_TIMEOUT);
    }
    // Named by their keys at least, for they are removed.
    let damaged = names(&cache.partition, &wrong).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot tell which files are damaged");
        wrong.iter().map(|key| format!("blob {key}")).collect()
    });
    match failed.into_inner() {
        // What is removed is named, whatever else cannot be read.
        Some(error) if !damaged.is_empty() => {
            Err(error.context(format!("damaged, and removed: {}; then", damaged.join(", "))))
        }
        Some(error) => Err(error),
        None => Ok(ScrubTotals { damaged, ..sum }),
    }
}

/// Reads a blob, and removes what of it is damaged.
fn check_blob(cache: &Cache, found: &CachedFile, pace: ScrubPace<'_>) -> Result<BlobVerdict> {
    if found.form == BlobFile::Part {
        return part(cache, found, pace);
    }
    loop {
        // Evicted meanwhile.
        let Some(file) = cache.layout().open_blob(&found.key, BlobFile::Whole)? else {
            return Ok(BlobVerdict::Unknown);
        };
        let Some(expected) = known_digest(&found.key, &file) else { return Ok(BlobVerdict::Unknown) };
        let version = FileVersion::of(&file).map_err(|e| cache.layout().fault("stat", &found.key, e))?;
        let started = cache.now();
        match hash(cache, &file, found, pace) {
            Ok(Some(digest)) if digest == expected => {
                verification_time::mark(&file, started);
                return Ok(BlobVerdict::Right(found.size));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Err(cancelled()),
            // What the disk can't read counts as damaged.
            Err(error) => tracing::warn!(key = %found.key, %error, "a blob cannot be read"),
        }
        // Where it is another by now, that is read.
        if cache.withdraw(&found.key, &file, &version)? {
            return Ok(BlobVerdict::Wrong(found.size));
        }
    }
}

/// Holds the blocks of a part that are said to be here against their checks.
fn part(cache: &Cache, found: &CachedFile, pace: ScrubPace<'_>) -> Result<BlobVerdict> {
    // It was being made, or a power cut left it so: it has not its size yet.
    if found.size == 0 {
        return Ok(BlobVerdict::Unknown);
    }
    // The part that is in use, if any, so that its readers see the result.
    let Some(partial) = cache.resume(&found.key, found.size)? else { return Ok(BlobVerdict::Unknown) };
    let started = cache.now();
    let (mut bytes, mut removal) = (0, None);
    for index in 0..partial.presence().blocks() {
        if partial.presence().state(index) == BlockState::Present {
            bytes += BLOCK;
            if !partial.is_block_right(index) {
                // First: it is removed where it still is not.
                let marked = cache.mark_removal(&found.key);
                if !partial.recheck(index) {
                    removal = Some(marked);
                }
            }
            if !pace(BLOCK) {
                return Err(cancelled());
            }
        }
    }
    let Some(removal) = removal else {
        verification_time::mark(partial.file(), started);
        return Ok(BlobVerdict::Right(bytes));
    };
    cache.notify_removed(&removal, None);
    Ok(BlobVerdict::Wrong(bytes))
}

/// The digest of a whole file; `None` when `pace` cancels. Past the page cache where that can be: what lies on the disk is to be
/// right, and the page cache is left to the readers.
fn hash(cache: &Cache, file: &File, found: &CachedFile, pace: ScrubPace<'_>) -> io::Result<Option<Digest>> {
    let direct = DirectFile::open(cache.layout(), &found.key, BlobFile::Whole);
    let mut hasher = blake3::Hasher::new();
    for index in 0..block::count(found.size) {
        let len = block::len(found.size, index);
        let past_pages = match &direct {
            Some(direct) => direct.read(index * BLOCK, len as usize)?,
            None => None,
        };
        match past_pages {
            Some(bytes) => hasher.update(&bytes),
            None => hasher.update(&positioned::read_anew(file, index * BLOCK, len as usize)?),
        };
        if !pace(len) {
            return Ok(None);
        }
    }
    Ok(Some(Digest(*hasher.finalize().as_bytes())))
}

fn cancelled() -> Error {
    Error::new(Kind::Interrupted, "the verification was cancelled")
}

/// The names of blobs for a person.
fn names(partition: &Partition, keys: &[Key]) -> Result<Vec<String>> {
    let mut names: Vec<String> = keys.iter().map(|key| format!("blob {key}")).collect();
    if keys.is_empty() {
        return Ok(names);
    }
    for (_, manifest) in inventory::manifests(partition)? {
        for blob in (0..manifest.blobs()).filter_map(|blob| manifest.blob(blob).ok()) {
            if let Some(at) = keys.iter().position(|key| *key == blob.key) {
                let path = String::from_utf8_lossy(&blob.path);
                // A pack has no path of its own.
                let path = if path.is_empty() {
                    "a pack of small files".into()
                } else {
                    path.escape_debug().to_string()
                };
                names[at] = format!("{}: {path}", manifest.source());
            }
        }
    }
    Ok(names)
}
