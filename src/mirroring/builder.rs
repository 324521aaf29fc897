//! Builds blobs: content from the origin, hashed and compressed as it passes, stored in the mirror.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::encoding::{BlobEncoding, EncodedBlocks, FrameEnds, record};
use super::hash_first;
use super::origin_reader::read;
use super::packing::Recipe;
use super::progress::MirrorProgress;
use super::reuse::PreviousSnapshot;
use crate::blob::Blob;
use crate::block::{self, BLOCK};
use crate::error::{Error, Kind, Result};
use crate::extent::{Extent, MAX_EXTENT_BLOCKS};
use crate::fetch::Ladder;
use crate::manifest::Manifest;
use crate::mirror::Mirror;
use crate::mirror::draft::Draft;
use crate::mirror::frames;
use crate::mirror::lease::MirrorLease;
use crate::mirror::record::MirrorRecord;
use crate::mirror::upload::MIN_PART_BYTES;
use crate::origin;
use crate::task::blocking;

/// Up to this size a blob is made in memory, where its digest is known before it is sent, unless that were more than a
/// quarter of all.
const MAX_IN_MEMORY_BYTES: u64 = 64 << 20;
/// The number of extents of a larger blob that are read at once.
const READS_IN_FLIGHT: usize = 4;
/// The number of files of a pack that are read at once.
const FILES_IN_FLIGHT: usize = 64;
/// Memory that the upload of a larger blob holds: extents as they came and compressed, and parts in transfer.
const STREAM_MEMORY_BYTES: u64 = 2 * READS_IN_FLIGHT as u64 * MAX_EXTENT_BLOCKS * BLOCK + 5 * MIN_PART_BYTES;

/// Builds the blobs of one mirroring run.
pub(super) struct BlobBuilder<'a> {
    mirror: &'a Mirror,
    listing: &'a Manifest,
    origin: Ladder,
    previous: Option<PreviousSnapshot>,
    hash_first: bool,
    /// The lease of the run: nothing that the run relies on may be older.
    lease: &'a MirrorLease,
    /// Permits for memory, in MiB.
    memory: Semaphore,
    memory_mib: u32,
    in_memory: u64,
}

impl<'a> BlobBuilder<'a> {
    pub(super) fn new(
        mirror: &'a Mirror,
        listing: &'a Manifest,
        origin: Ladder,
        previous: Option<PreviousSnapshot>,
        lease: &'a MirrorLease,
        memory: u64,
    ) -> Self {
        let memory_mib = memory.div_ceil(BLOCK).clamp(1, u64::from(u32::MAX) / 2) as u32;
        let in_memory = MAX_IN_MEMORY_BYTES.min(memory / 4);
        let semaphore = Semaphore::new(memory_mib as usize);
        let (memory, hash_first) = (semaphore, false);
        Self { mirror, listing, origin, previous, hash_first, lease, memory, memory_mib, in_memory }
    }

    /// Whether what the mirror may have under another name is read once more to find out.
    pub(super) fn hash_first(self, hash_first: bool) -> Self {
        Self { hash_first, ..self }
    }

    /// Finds the blob of `recipe` in the mirror, or makes it.
    pub(super) async fn find_or_build(
        &self,
        recipe: &Recipe,
        progress: &MirrorProgress,
    ) -> Result<MirrorRecord> {
        let known = match self.mirror.find_by_recipe(&recipe.name, self.lease.began()).await? {
            None => self.find_previous(recipe).await?,
            known => known,
        };
        let record = match known {
            Some(record) if record.size == recipe.size => {
                progress.bytes_done.fetch_add(recipe.size, Relaxed);
                record
            }
            _ => self.build(recipe, progress).await?,
        };
        progress.files_done.fetch_add(recipe.files.len() as u64, Relaxed);
        Ok(record)
    }

    /// The blob of a file that is listed as the previous snapshot has it, with no version of its own.
    async fn find_previous(&self, recipe: &Recipe) -> Result<Option<MirrorRecord>> {
        let ([file], Some(previous)) = (&recipe.files[..], &self.previous) else { return Ok(None) };
        match previous.digest(&self.listing.blob(*file)?)? {
            Some(digest) => self.mirror.record(&digest, self.lease.began()).await,
            None => Ok(None),
        }
    }

    async fn build(&self, recipe: &Recipe, progress: &MirrorProgress) -> Result<MirrorRecord> {
        let streamed = recipe.files.len() == 1 && recipe.size > self.in_memory;
        if let [file] = recipe.files[..] {
            self.check_ranges(&self.listing.blob(file)?)?;
        }
        // Content as it comes, assembled, and compressed.
        let held = if streamed { STREAM_MEMORY_BYTES } else { 3 * recipe.size };
        let held = (held.div_ceil(BLOCK) as u32).min(self.memory_mib);
        let _held = self
            .memory
            .acquire_many(held)
            .await
            .map_err(|e| Error::with(Kind::Interrupted, "the publication was cancelled", e))?;
        let (record, new) = match &recipe.files[..] {
            [file] if streamed => return self.copy_large(recipe, &self.listing.blob(*file)?, progress).await,
            [file] => {
                let blob = self.listing.blob(*file)?;
                let extents = extents(0, blob.size).map(|extent| read(&self.origin, &blob, extent));
                let blocks = stream::iter(extents).buffered(READS_IN_FLIGHT).try_concat().await?;
                progress.read.fetch_add(blob.size, Relaxed);
                let beginning = hash_first::fingerprint(blob.size, &blocks);
                let put = self.put_in_memory(recipe, blocks, Some(blob)).await?;
                if recipe.size > MAX_EXTENT_BLOCKS * BLOCK {
                    self.mirror.put_recipe(&beginning, &put.0.digest).await?;
                }
                put
            }
            files => self.put_in_memory(recipe, self.pack(files, recipe.size, progress).await?, None).await?,
        };
        let stored = record.stored.len(record.size).unwrap_or_default();
        progress.written.fetch_add(if new { stored } else { 0 }, Relaxed);
        progress.bytes_done.fetch_add(recipe.size, Relaxed);
        Ok(record)
    }

    /// Refuses a file that would be read from its beginning for each of its parts.
    fn check_ranges(&self, blob: &Blob) -> Result<()> {
        if !origin::is_sequential(&blob.version) || blob.size <= MAX_EXTENT_BLOCKS * BLOCK {
            return Ok(());
        }
        let text = "the server ignores Range, so a mirror takes no file over 16 MiB from it; copy it, or mount it without a mirror";
        Err(Error::new(Kind::Unsupported, text).context(blob))
    }

    /// The content of a pack, in blocks.
    async fn pack(&self, files: &[u32], size: u64, progress: &MirrorProgress) -> Result<Vec<Bytes>> {
        let mut before = match &self.previous {
            Some(previous) => previous.content(self.listing, files).await,
            None => HashMap::new(),
        };
        let files = files.iter().map(|file| (*file, before.remove(file)));
        let files = stream::iter(files).map(|(file, before)| async move {
            let blob = self.listing.blob(file)?;
            // The version may be that of other bytes, as with a server whose files keep their size and time.
            let is_right = |content: &Bytes| check_sha256(&blob, std::slice::from_ref(content)).is_ok();
            if let Some(content) = before.filter(is_right) {
                return Ok(content);
            }
            let content = read(&self.origin, &blob, Extent { first: 0, blocks: 1 }).await?.swap_remove(0);
            progress.read.fetch_add(blob.size, Relaxed);
            check_sha256(&blob, std::slice::from_ref(&content))?;
            Ok::<_, Error>(content)
        });
        let mut files = files.buffered(FILES_IN_FLIGHT);
        let mut content = Vec::with_capacity(size as usize);
        while let Some(file) = files.try_next().await? {
            content.extend_from_slice(&file);
        }
        let content = Bytes::from(content);
        let cut =
            |at: u64| content.slice((at * BLOCK) as usize..(at * BLOCK + block::len(size, at)) as usize);
        Ok((0..block::count(size)).map(cut).collect())
    }

    /// Stores content that lies in memory, that of `file` where it is of one.
    async fn put_in_memory(
        &self,
        recipe: &Recipe,
        blocks: Vec<Bytes>,
        file: Option<Blob>,
    ) -> Result<(MirrorRecord, bool)> {
        let size = recipe.size;
        let made = blocking(move || {
            file.map_or(Ok(()), |file| check_sha256(&file, &blocks))?;
            let form =
                if frames::compresses_well(&blocks) { BlobEncoding::Frames } else { BlobEncoding::Plain };
            EncodedBlocks::new(size, 0, blocks, form)
        });
        let EncodedBlocks { checks, content, form, .. } = made.await?;
        let mut ends = FrameEnds::new(form);
        content.iter().for_each(|bytes| ends.push(bytes.len()));
        let record = record(size, checks, ends.stored())?;
        self.mirror.put_blob(&recipe.name, record, content, self.lease.began()).await
    }

    /// Copies a file that is too large for memory: its digest is known when all of it has passed. Resumes
    /// where another run broke off.
    async fn copy_large(
        &self,
        recipe: &Recipe,
        blob: &Blob,
        progress: &MirrorProgress,
    ) -> Result<MirrorRecord> {
        loop {
            let resumed = self.mirror.resume_draft(&recipe.name, blob.size, self.lease).await?;
            // A draft that is resumed is past the beginning, by which the content is found again under another name.
            let sample = match &resumed {
                None => Some(read(&self.origin, blob, first_extent(blob.size)).await?),
                Some(_) if self.hash_first => read(&self.origin, blob, first_extent(blob.size)).await.ok(),
                Some(_) => None,
            };
            let beginning = sample.as_ref().map(|sample| hash_first::fingerprint(blob.size, sample));
            let (mut draft, sha256, sample) = match (resumed, sample) {
                (Some((draft, sha256)), _) => (draft, sha256, None),
                (None, sample) => {
                    let sample = sample.unwrap_or_default();
                    if let Some(record) = self.find_same(recipe, blob, &sample).await? {
                        progress.bytes_done.fetch_add(blob.size, Relaxed);
                        return Ok(record);
                    }
                    self.begin(recipe, blob, sample).await?
                }
            };
            progress.bytes_done.fetch_add(done(&draft, blob), Relaxed);
            let passed = match self.copy_rest(blob, &mut draft, sha256, sample, progress).await {
                Ok(sha256) => {
                    let since = self.lease.began();
                    self.mirror.put_draft(&recipe.name, &mut draft, sha256, since).await
                }
                Err(error) => Err(error),
            };
            match passed {
                Ok((record, new)) => {
                    progress.written.fetch_add(draft.written(), Relaxed);
                    if new {
                        draft.close().await
                    } else {
                        draft.discard().await
                    }
                    if let Some(beginning) = &beginning {
                        self.mirror.put_recipe(beginning, &record.digest).await?;
                    }
                    return Ok(record);
                }
                Err(error) if draft.is_stale() => {
                    tracing::info!(%error, "the draft of an earlier run cannot be resumed");
                    progress.bytes_done.fetch_sub(done(&draft, blob), Relaxed);
                    draft.discard().await;
                }
                Err(error) => {
                    // A draft is useless if the origin lacks its content, or has it wrong.
                    match error.kind() {
                        Kind::Changed | Kind::Corrupt | Kind::NotFound => draft.discard().await,
                        _ => draft.suspend().await,
                    }
                    return Err(error);
                }
            }
        }
    }

    /// The blob with the content of a file that begins with `sample`, if the mirror has it under another name.
    async fn find_same(
        &self,
        recipe: &Recipe,
        blob: &Blob,
        sample: &[Bytes],
    ) -> Result<Option<MirrorRecord>> {
        if !self.hash_first {
            return Ok(None);
        }
        let beginning = hash_first::fingerprint(blob.size, sample);
        let alike = self.mirror.find_by_recipe(&beginning, self.lease.began()).await?;
        let Some(record) = alike.filter(|record| record.size == blob.size) else { return Ok(None) };
        if hash_first::digest(&self.origin, blob, extents(0, blob.size)).await? != record.digest {
            return Ok(None);
        }
        self.mirror.put_recipe(&recipe.name, &record.digest).await?;
        Ok(Some(record))
    }

    /// A new draft of a file that begins with `sample`, which says whether it is compressed.
    async fn begin(
        &self,
        recipe: &Recipe,
        blob: &Blob,
        sample: Vec<Bytes>,
    ) -> Result<(Draft, Option<Sha256>, Option<Vec<Bytes>>)> {
        let blocks = sample.clone();
        let framed = blocking(move || Ok(frames::compresses_well(&blocks))).await?;
        let draft = self.mirror.begin_draft(&recipe.name, blob.size, framed, self.lease).await?;
        Ok((draft, blob.sha256.map(|_| Sha256::new()), Some(sample)))
    }

    /// Copies the missing rest of a file, of which `sample` was read already. Returns its verified SHA-256,
    /// where its origin publishes one.
    async fn copy_rest(
        &self,
        blob: &Blob,
        draft: &mut Draft,
        mut sha256: Option<Sha256>,
        sample: Option<Vec<Bytes>>,
        progress: &MirrorProgress,
    ) -> Result<Option<Sha256>> {
        let form = if draft.is_framed() { BlobEncoding::Frames } else { BlobEncoding::Plain };
        let mut sample = sample;
        let rest = extents(draft.blocks(), blob.size).map(|extent| {
            let read_already = sample.take();
            async move {
                let blocks = match read_already {
                    Some(blocks) => blocks,
                    None => read(&self.origin, blob, extent).await?,
                };
                let size = blob.size;
                blocking(move || EncodedBlocks::new(size, extent.first, blocks, form)).await
            }
        });
        let mut pieces = std::pin::pin!(stream::iter(rest).buffered(READS_IN_FLIGHT));
        while let Some(piece) = pieces.try_next().await? {
            progress.read.fetch_add(piece.len, Relaxed);
            for ((check, bytes), raw) in piece.checks.into_iter().zip(piece.content).zip(piece.raw) {
                progress.bytes_done.fetch_add(raw.len() as u64, Relaxed);
                if let Some(hasher) = sha256.take() {
                    sha256 = Some(blocking(move || Ok(hasher.chain_update(&raw))).await?);
                }
                draft.push(check, bytes, sha256.clone()).await?;
            }
        }
        let proved = sha256.clone().map(|hasher| hasher.finalize().into()) == blob.sha256;
        if proved { Ok(sha256) } else { Err(wrong_sha256().context(blob)) }
    }
}

/// Returns the number of bytes of a file that are done.
fn done(draft: &Draft, blob: &Blob) -> u64 {
    (draft.blocks() * BLOCK).min(blob.size)
}

/// The extents of a file of `size` bytes from block `first` on.
fn extents(first: u64, size: u64) -> impl Iterator<Item = Extent> {
    let blocks = block::count(size);
    let starts = (first..blocks).step_by(MAX_EXTENT_BLOCKS as usize);
    starts.map(move |first| Extent { first, blocks: MAX_EXTENT_BLOCKS.min(blocks - first) })
}

/// The first extent of a file of `size` bytes.
fn first_extent(size: u64) -> Extent {
    extents(0, size).next().unwrap_or(Extent { first: 0, blocks: 1 })
}

/// Verifies the content of a file by the SHA-256 that its origin publishes, if any.
fn check_sha256(file: &Blob, blocks: &[Bytes]) -> Result<()> {
    let Some(expected) = &file.sha256 else { return Ok(()) };
    let found = blocks.iter().fold(Sha256::new(), |hasher, block| hasher.chain_update(block)).finalize();
    if found.as_slice() == expected { Ok(()) } else { Err(wrong_sha256().context(file)) }
}

fn wrong_sha256() -> Error {
    Error::new(Kind::Corrupt, "the origin sent content that does not have the SHA-256 that it publishes")
}
