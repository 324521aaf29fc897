//! Scrubbing: reads all that the cache holds and removes what has rotted.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use parking_lot::Mutex;

use crate::blob::Key;
use crate::block::BLOCK;
use crate::cache::Cache;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

use super::commit::DIGEST_XATTR;
use super::inventory::manifests;
use super::layout::BlobFile;
use super::partition::{CachedFile, Partition};
use super::presence::BlockState;

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubTotals {
    /// Blobs that were read.
    pub blobs: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Blobs that nothing is known to hold against, or that are being fetched now.
    pub unknown: u64,
    /// What was not right, and was removed: the path of a file, or where nobody knows that the blob's key. What an earlier scrub
    /// removed is among it as long as a program reads it from a file that it had open.
    pub damaged: Vec<String>,
}

/// Outcome of the check of one blob.
enum BlobVerdict {
    Right(u64),
    Wrong(u64),
    Unknown,
}

/// Reads every blob of a tenant and removes what is not right, whoever uses it: no lease is a promise of wrong bytes. Who serves
/// it is [told](super::removal), and it is fetched again: at once where it was staged, else when it is next read. Ends early when `give_up` is set.
///
/// # Errors
/// [`Kind::Disk`], [`Kind::Interrupted`].
pub fn scrub(cache: &Cache, give_up: &AtomicBool) -> Result<ScrubTotals> {
    let (found, still_open) = (cache.partition.scan(), cache.partition.still_open());
    let (next, verified) = (AtomicUsize::new(0), Mutex::new((ScrubTotals::default(), Vec::new())));
    let failed = Mutex::new(None);
    let work = || {
        while let Some(found) = found.get(next.fetch_add(1, Relaxed)) {
            if give_up.load(Relaxed) {
                return;
            }
            let verdict = check_blob(cache, found);
            let (sum, wrong) = &mut *verified.lock();
            match verdict {
                Ok(BlobVerdict::Unknown) => sum.unknown += 1,
                Ok(BlobVerdict::Right(bytes)) => (sum.blobs, sum.bytes) = (sum.blobs + 1, sum.bytes + bytes),
                Ok(BlobVerdict::Wrong(bytes)) => {
                    (sum.blobs, sum.bytes) = (sum.blobs + 1, sum.bytes + bytes);
                    wrong.push(found.key);
                }
                Err(error) => {
                    failed.lock().get_or_insert(error);
                }
            }
        }
    };
    thread::scope(|scope| {
        let hands = thread::available_parallelism().map_or(1, usize::from);
        (0..hands).for_each(|_| drop(scope.spawn(work)));
    });
    if give_up.load(Relaxed) {
        return Err(Error::new(Kind::Interrupted, "the verification was cancelled"));
    }
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    let (sum, wrong) = verified.into_inner();
    let mut damaged = names(&cache.partition, &wrong)?;
    let still_open = names(&cache.partition, &still_open)?.into_iter();
    damaged.extend(
        still_open.map(|name| format!("{name}: removed before, and still open; close and reopen it")),
    );
    Ok(ScrubTotals { damaged, ..sum })
}

/// Reads a blob, and removes what of it is not right.
fn check_blob(cache: &Cache, found: &CachedFile) -> Result<BlobVerdict> {
    if found.form == BlobFile::Part {
        return part(cache, found);
    }
    let layout = cache.layout();
    // Evicted meanwhile.
    let Some(file) = layout.open_blob(&found.key, BlobFile::Whole)? else { return Ok(BlobVerdict::Unknown) };
    let expected = match &found.key {
        Key::Content(digest) => *digest,
        Key::Origin(_) => match noted_digest(&file) {
            Some(digest) => digest,
            None => return Ok(BlobVerdict::Unknown),
        },
    };
    match hash(file) {
        Ok((digest, bytes)) if digest == expected => return Ok(BlobVerdict::Right(bytes)),
        Ok(_) => {}
        // What the disk can't read is no better than what is wrong.
        Err(error) => tracing::warn!(key = %found.key, %error, "a blob can't be read"),
    }
    layout.remove(&found.key, BlobFile::Whole)?;
    cache.partition.subtract(found.bytes);
    cache.notify_removed(&found.key);
    Ok(BlobVerdict::Wrong(found.size))
}

/// Holds the blocks of a part that are said to be here against their checks.
fn part(cache: &Cache, found: &CachedFile) -> Result<BlobVerdict> {
    // The one that is in use, where it is: whoever reads from it must see what is found.
    let Some(partial) = cache.resume(&found.key, found.size)? else { return Ok(BlobVerdict::Unknown) };
    let mut bytes = 0;
    let mut right = true;
    for index in 0..partial.presence().blocks() {
        if partial.presence().state(index) == BlockState::Present {
            bytes += BLOCK;
            right &= partial.recheck(index);
        }
    }
    if right {
        return Ok(BlobVerdict::Right(bytes));
    }
    cache.notify_removed(&found.key);
    Ok(BlobVerdict::Wrong(bytes))
}

fn noted_digest(file: &File) -> Option<Digest> {
    let mut digest = [0; 32];
    let len = rustix::fs::fgetxattr(file, DIGEST_XATTR, &mut digest[..]).ok()?;
    (len == digest.len()).then_some(Digest(digest))
}

fn hash(mut file: File) -> std::io::Result<(Digest, u64)> {
    let (mut hasher, mut buffer, mut bytes) = (blake3::Hasher::new(), vec![0; BLOCK as usize], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((Digest(*hasher.finalize().as_bytes()), bytes)),
            len => {
                hasher.update(&buffer[..len]);
                bytes += len as u64;
            }
        }
    }
}

/// What a person knows blobs as.
fn names(partition: &Partition, keys: &[Key]) -> Result<Vec<String>> {
    let mut names: Vec<String> = keys.iter().map(|key| format!("blob {key}")).collect();
    if keys.is_empty() {
        return Ok(names);
    }
    for (_, manifest) in manifests(partition)? {
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
