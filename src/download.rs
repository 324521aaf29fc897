//! Downloads: copies what a mirror has of a source into a directory, without a mount or a cache.
//!
//! The content is written beside the directory, under a name with the snapshot's digest that ends in `.partial`, which takes the
//! directory's name when all of it is there: a directory is whole, or not there. Every block is verified before it is written.
//! Large files that a download left unfinished are verified block by block by the next one, which fetches what they lack.

mod partial_directory;
mod partial_tree;
mod small_file;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::{TryStreamExt, stream};

use crate::blob::Blob;
use crate::block::{self, Arrival};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::fetch::{FetchScope, Ladder};
use crate::manifest::Manifest;
use crate::mirror::Mirror;
use crate::stage::Progress;
use crate::task::blocking;
use crate::tier::Urgency;

use partial_tree::PartialTree;

pub use partial_directory::PartialDirectory;
pub use small_file::read_small_file;

/// The number of blocks that one request asks for: as many as the largest request of a mount.
const BLOCKS_PER_REQUEST: usize = 16;
/// The number of requests that are under way at once. Each holds a few blocks in memory.
const REQUESTS_IN_FLIGHT: usize = 16;
/// The time for which the mirror is asked again while nothing arrives.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Progress of a download. Counted while it runs; read by a display.
#[derive(Debug, Default)]
pub struct DownloadProgress {
    files: AtomicU64,
    bytes: AtomicU64,
    /// Files whose last block was written or found.
    files_done: AtomicU64,
    bytes_done: AtomicU64,
    bytes_found: AtomicU64,
}

impl DownloadProgress {
    /// The current progress.
    pub fn read(&self) -> Progress {
        Progress {
            files: self.files.load(Relaxed),
            files_done: self.files_done.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            bytes_done: self.bytes_done.load(Relaxed),
            bytes_found: self.bytes_found.load(Relaxed),
        }
    }
}

/// Copies the snapshot `id` of `mirror` into `directory`, which must be missing or empty.
///
/// # Errors
/// [`Kind::Invalid`] for a directory that is not empty, [`Kind::NotFound`] for a snapshot that is not there, [`Kind::Corrupt`] for
/// content that is not what was saved, [`Kind::Disk`], [`Kind::NoSpace`]; those of the store.
pub async fn download(
    mirror: &Mirror,
    id: &Digest,
    directory: &Path,
    progress: &DownloadProgress,
) -> Result<()> {
    download_tree(mirror, id, directory, None, progress).await
}

/// Copies the entries at `paths` of the snapshot `id` of `mirror`, and the directories that they lie in, into `directory`, which
/// must be missing or empty.
///
/// # Errors
/// Those of [`download`].
pub async fn download_some(
    mirror: &Mirror,
    id: &Digest,
    directory: &Path,
    paths: BTreeSet<Vec<u8>>,
    progress: &DownloadProgress,
) -> Result<()> {
    download_tree(mirror, id, directory, Some(paths), progress).await
}

async fn download_tree(
    mirror: &Mirror,
    id: &Digest,
    directory: &Path,
    paths: Option<BTreeSet<Vec<u8>>>,
    progress: &DownloadProgress,
) -> Result<()> {
    // At once, for each request is a round trip. With read-only credentials there is no lease: the collector's grace period
    // protects the snapshot.
    let (lease, manifest) = tokio::join!(mirror.serve_lease(id), find_manifest(mirror, id));
    let (lease, manifest) = (lease.ok(), Arc::new(manifest?));
    let (listed, id, target) = (Arc::clone(&manifest), *id, directory.to_owned());
    let tree = Arc::new(blocking(move || PartialTree::create(listed, &id, &target, paths.as_ref())).await?);
    let (files, bytes) = tree.totals();
    progress.files.fetch_add(files, Relaxed);
    progress.bytes.fetch_add(bytes, Relaxed);
    let ladder = Ladder::new(vec![Arc::new(mirror.clone())], Arc::default(), Arc::default());
    let requests = stream::iter((0..manifest.blobs()).map(Ok)).and_then(|blob| plan(&tree, blob, progress));
    let requests = requests.map_ok(|requests| stream::iter(requests.into_iter().map(Ok))).try_flatten();
    requests
        .try_for_each_concurrent(REQUESTS_IN_FLIGHT, |request| fetch(&ladder, &tree, request, progress))
        .await?;
    blocking(move || tree.finish()).await?;
    if let Some(lease) = lease {
        lease.release().await;
    }
    Ok(())
}

/// Counts the snapshot `id` of `mirror` as found: an earlier run has downloaded it whole.
///
/// # Errors
/// [`Kind::NotFound`] for a snapshot that is not there; those of the store.
pub async fn count_found(mirror: &Mirror, id: &Digest, progress: &DownloadProgress) -> Result<()> {
    let manifest = find_manifest(mirror, id).await?;
    for files in [&progress.files, &progress.files_done] {
        files.fetch_add(manifest.files(), Relaxed);
    }
    for bytes in [&progress.bytes, &progress.bytes_done, &progress.bytes_found] {
        bytes.fetch_add(manifest.bytes(), Relaxed);
    }
    Ok(())
}

async fn find_manifest(mirror: &Mirror, id: &Digest) -> Result<Manifest> {
    let missing = || Error::new(Kind::NotFound, format!("no such manifest in the mirror: {id}"));
    mirror.manifest(id).await?.ok_or_else(missing)
}

/// Blocks that one request asks for.
#[derive(Debug)]
struct MissingBlocks {
    number: u32,
    blob: Blob,
    blocks: Vec<u64>,
}

/// The requests for what is missing of blob `number`.
async fn plan(
    tree: &Arc<PartialTree>,
    number: u32,
    progress: &DownloadProgress,
) -> Result<Vec<MissingBlocks>> {
    let blob = tree.manifest().blob(number)?;
    let input = (Arc::clone(tree), blob.clone());
    let missing = blocking(move || input.0.missing(number, &input.1)).await?;
    let found: u64 = (0..block::count(blob.size))
        .filter(|index| missing.binary_search(index).is_err())
        .map(|index| tree.bytes_in(number, &blob, index))
        .sum();
    progress.bytes_found.fetch_add(found, Relaxed);
    progress.bytes_done.fetch_add(found, Relaxed);
    if missing.is_empty() {
        progress.files_done.fetch_add(tree.files(number), Relaxed);
    }
    let request = |blocks: &[u64]| MissingBlocks { number, blob: blob.clone(), blocks: blocks.to_vec() };
    Ok(missing.chunks(BLOCKS_PER_REQUEST).map(request).collect())
}

/// Fetches blocks, and writes them to the files that they are part of.
async fn fetch(
    ladder: &Ladder,
    tree: &Arc<PartialTree>,
    request: MissingBlocks,
    progress: &DownloadProgress,
) -> Result<()> {
    let MissingBlocks { number, blob, blocks } = request;
    let is_last = blocks.last() == Some(&(block::count(blob.size).saturating_sub(1)));
    let accept = async |arrival: Arrival| {
        let (tree, blob) = (Arc::clone(tree), blob.clone());
        let written = blocking(move || {
            let unknown = || Error::new(Kind::Corrupt, "the manifest has no checks for it");
            let checks = blob.checks.as_ref().ok_or_else(unknown)?;
            let check = checks.get(arrival.index as usize);
            let verified = arrival.verify(check)?;
            tree.write(number, &blob, &verified)?;
            Ok((verified.index(), tree.bytes_in(number, &blob, verified.index())))
        });
        let (index, bytes) = written.await?;
        progress.bytes_done.fetch_add(bytes, Relaxed);
        Ok(index)
    };
    ladder.fetch(&blob, blocks, (FetchScope::Direct, &|| Urgency::Stage), STALL_TIMEOUT, accept).await?;
    if is_last {
        progress.files_done.fetch_add(tree.files(number), Relaxed);
    }
    Ok(())
}
