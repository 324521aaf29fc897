//! The plan of a stage: everything is leased, and what is missing put into the order in which it is to come.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread;

use crate::cache::Cache;
use crate::error::{Error, Kind, Result};
use crate::manifest::{Manifest, Node};
use crate::snapshot::Snapshot;
use crate::stage::Stage;

/// The number of blobs that one thread looks for. A look takes about a microsecond: less than this is not worth another thread.
const MIN_BLOBS_PER_THREAD: u32 = 10_000;

/// A blob that isn't whole yet.
pub(super) struct MissingBlob {
    pub(super) blob: u32,
    pub(super) size: u64,
    pub(super) files: u64,
}

impl Stage {
    /// Leases everything, and finds out what is missing, in the order in which it is to come. Blocks on the local disk.
    pub(super) fn plan(&self, snapshot: &Snapshot) -> Result<Vec<MissingBlob>> {
        let (manifest, cache) = (snapshot.manifest(), &snapshot.resources().cache);
        snapshot.admit()?;
        // Set before the scan: a removal after it starts another scan.
        *self.outdated.lock() = false;
        let missing = missing(manifest, cache)?;
        let bytes: u64 = missing.iter().map(|missing| missing.size).sum();
        let here = snapshot.content_bytes()? - bytes;
        self.bytes_done.store(here, Relaxed);
        self.bytes_found.store(here, Relaxed);
        let planned = if missing.is_empty() { missing } else { ordered(manifest, missing)? };
        let files: u64 = planned.iter().map(|missing| missing.files).sum();
        self.files_done.store(self.files.saturating_sub(files), Relaxed);
        self.planned.store(true, Release);
        manifest.release_pages();
        Ok(planned)
    }
}

/// The blobs that aren't whole, by their numbers. A million that are take a second of one core, so all of them look.
fn missing(manifest: &Manifest, cache: &Cache) -> Result<Vec<MissingBlob>> {
    let look = |blobs: Range<u32>| {
        let mut missing = Vec::new();
        for blob in blobs {
            let size = manifest.blob_size(blob)?;
            if size > 0 && !cache.has(&manifest.key(blob)?, size) {
                missing.push(MissingBlob { blob, size, files: 0 });
            }
        }
        Ok(missing)
    };
    let blobs = manifest.blobs();
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let piece = blobs.div_ceil(threads).max(MIN_BLOBS_PER_THREAD);
    if blobs <= piece {
        return look(0..blobs);
    }
    thread::scope(|scope| {
        let starts = (0..blobs).step_by(piece as usize);
        let looks: Vec<_> = starts
            .map(|start| scope.spawn(move || look(start..start.saturating_add(piece).min(blobs))))
            .collect();
        let lost = |_| Error::new(Kind::Disk, "cannot scan the cache: a thread panicked");
        let found: Vec<_> =
            looks.into_iter().map(|look| look.join().map_err(lost)?).collect::<Result<_>>()?;
        Ok(found.into_iter().flatten().collect())
    })
}

/// Sorts missing blobs into the order in which they are fetched, each with the number of files that it holds.
fn ordered(manifest: &Manifest, mut missing: Vec<MissingBlob>) -> Result<Vec<MissingBlob>> {
    let mut files = vec![0u32; manifest.blobs() as usize];
    let mut first = BTreeSet::new();
    for index in 0..manifest.entries() {
        let entry = manifest.entry(index)?;
        if let Node::File(slice) = entry.node {
            files[slice.blob as usize] += 1;
            if is_index_file(entry.name) {
                first.insert(slice.blob);
            }
        }
    }
    for missing in &mut missing {
        missing.files = files[missing.blob as usize].into();
    }
    // Blobs are numbered in the order of the paths that they hold.
    missing.sort_by_key(|missing| (!first.contains(&missing.blob), missing.size, missing.blob));
    Ok(missing)
}

/// Whether a file describes the others: readers of a model or a dataset open it first.
fn is_index_file(name: &[u8]) -> bool {
    name.ends_with(b"config.json")
        || name.ends_with(b".index.json")
        || name.starts_with(b"tokenizer")
        || name.windows(8).any(|part| part.eq_ignore_ascii_case(b"manifest"))
}
