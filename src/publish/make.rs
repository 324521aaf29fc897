//! Making blobs: content from the origin, hashed and compressed as it passes, put on the mirror's shelf.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::before::Before;
use super::plan::Recipe;
use super::progress::Progress;
use super::read::read;
use crate::blob::{Blob, Stored};
use crate::block::{self, BLOCK, Check};
use crate::error::{Error, Kind, Result};
use crate::extent::{Extent, MAX_EXTENT_BLOCKS};
use crate::fetch::Ladder;
use crate::manifest::Manifest;
use crate::mirror::Mirror;
use crate::mirror::draft::Draft;
use crate::mirror::frames;
use crate::mirror::lease::Lease;
use crate::mirror::record::Record;
use crate::mirror::upload::PART;
use crate::task::blocking;

/// Up to this size a blob is made in memory, where its digest is known before it is sent, unless that were more than a
/// quarter of all.
const IN_MEMORY: u64 = 64 << 20;
/// How many extents of a larger blob are read at once.
const READS: usize = 4;
/// How many files of a pack are.
const FILES: usize = 64;
/// What a larger blob holds in memory meanwhile: extents as they came and compressed, and parts on their way.
const STREAMED: u64 = 2 * READS as u64 * MAX_EXTENT_BLOCKS * BLOCK + 5 * PART;

/// What makes blobs.
pub(super) struct Maker<'a> {
    mirror: &'a Mirror,
    listing: &'a Manifest,
    origin: Ladder,
    before: Option<Before>,
    /// Nothing that is relied on may be dated before it began.
    lease: &'a Lease,
    /// In MiB.
    memory: Semaphore,
    most: u32,
    in_memory: u64,
}

impl<'a> Maker<'a> {
    pub(super) fn new(
        mirror: &'a Mirror,
        listing: &'a Manifest,
        origin: Ladder,
        before: Option<Before>,
        lease: &'a Lease,
        memory: u64,
    ) -> Self {
        let most = memory.div_ceil(BLOCK).clamp(1, u64::from(u32::MAX) / 2) as u32;
        let in_memory = IN_MEMORY.min(memory / 4);
        let semaphore = Semaphore::new(most as usize);
        Self { mirror, listing, origin, before, lease, memory: semaphore, most, in_memory }
    }

    /// Finds the blob of `recipe` in the mirror, or makes it.
    pub(super) async fn make(&self, recipe: &Recipe, progress: &Progress) -> Result<Record> {
        let record = match self.mirror.recall(&recipe.name, self.lease.began()).await? {
            Some(record) if record.size == recipe.size => {
                progress.bytes_done.fetch_add(recipe.size, Relaxed);
                record
            }
            _ => self.made(recipe, progress).await?,
        };
        progress.files_done.fetch_add(recipe.files.len() as u64, Relaxed);
        Ok(record)
    }

    async fn made(&self, recipe: &Recipe, progress: &Progress) -> Result<Record> {
        let streamed = recipe.files.len() == 1 && recipe.size > self.in_memory;
        // Content as it comes, put together, and compressed.
        let held = if streamed { STREAMED } else { 3 * recipe.size };
        let held = (held.div_ceil(BLOCK) as u32).min(self.most);
        let _held =
            self.memory.acquire_many(held).await.map_err(|e| Error::with(Kind::Interrupted, "the end", e))?;
        let (record, new) = match &recipe.files[..] {
            [file] if streamed => return self.stream(recipe, &self.listing.blob(*file)?, progress).await,
            [file] => {
                let blob = self.listing.blob(*file)?;
                let extents = extents(0, blob.size).map(|extent| read(&self.origin, &blob, extent));
                let blocks = stream::iter(extents).buffered(READS).try_concat().await?;
                progress.read.fetch_add(blob.size, Relaxed);
                self.put(recipe, blocks, blob.sha256).await?
            }
            files => self.put(recipe, self.pack(files, recipe.size, progress).await?, None).await?,
        };
        let stored = record.stored.len(record.size).unwrap_or_default();
        progress.written.fetch_add(if new { stored } else { 0 }, Relaxed);
        progress.bytes_done.fetch_add(recipe.size, Relaxed);
        Ok(record)
    }

    /// The content of a pack, in blocks.
    async fn pack(&self, files: &[u32], size: u64, progress: &Progress) -> Result<Vec<Bytes>> {
        let mut before = match &self.before {
            Some(before) => before.content(self.listing, files).await,
            None => HashMap::new(),
        };
        let files = files.iter().map(|file| (*file, before.remove(file)));
        let files = stream::iter(files).map(|(file, before)| async move {
            if let Some(content) = before {
                return Ok(content);
            }
            let blob = self.listing.blob(file)?;
            let content = read(&self.origin, &blob, Extent { first: 0, blocks: 1 }).await?.swap_remove(0);
            progress.read.fetch_add(blob.size, Relaxed);
            prove(&blob.sha256, std::slice::from_ref(&content)).map_err(|e| e.within(&blob))?;
            Ok::<_, Error>(content)
        });
        let mut files = files.buffered(FILES);
        let mut content = Vec::with_capacity(size as usize);
        while let Some(file) = files.try_next().await? {
            content.extend_from_slice(&file);
        }
        let content = Bytes::from(content);
        let cut =
            |at: u64| content.slice((at * BLOCK) as usize..(at * BLOCK + block::len(size, at)) as usize);
        Ok((0..block::count(size)).map(cut).collect())
    }

    /// Puts content that lies in memory.
    async fn put(
        &self,
        recipe: &Recipe,
        blocks: Vec<Bytes>,
        sha256: Option<[u8; 32]>,
    ) -> Result<(Record, bool)> {
        let size = recipe.size;
        let made = blocking(move || {
            prove(&sha256, &blocks)?;
            let form = if frames::pay(&blocks) { Form::Frames } else { Form::Plain };
            Piece::new(size, 0, blocks, form)
        });
        let Piece { checks, content, form, .. } = made.await?;
        let mut ends = Ends::new(form);
        content.iter().for_each(|bytes| ends.push(bytes.len()));
        let record = record(size, checks, ends.stored())?;
        self.mirror.shelve(&recipe.name, record, content, self.lease.began()).await
    }

    /// Copies a file that is too large for memory: its digest is known when all of it has passed. Goes on where another run
    /// broke off.
    async fn stream(&self, recipe: &Recipe, blob: &Blob, progress: &Progress) -> Result<Record> {
        loop {
            let (mut draft, sha256, sample) = self.draft(recipe, blob).await?;
            progress.bytes_done.fetch_add(done(&draft, blob), Relaxed);
            let passed = match self.pass(blob, &mut draft, sha256, sample, progress).await {
                Ok(sha256) => {
                    let since = self.lease.began();
                    self.mirror.shelve_draft(&recipe.name, &mut draft, sha256, since).await
                }
                Err(error) => Err(error),
            };
            match passed {
                Ok((record, new)) => {
                    progress.written.fetch_add(draft.written(), Relaxed);
                    if new {
                        draft.end().await
                    } else {
                        draft.abandon().await
                    }
                    return Ok(record);
                }
                Err(error) if draft.is_useless() => {
                    tracing::info!(%error, "what another run left is of no use");
                    progress.bytes_done.fetch_sub(done(&draft, blob), Relaxed);
                    draft.abandon().await;
                }
                Err(error) => {
                    // What the origin no longer has, or has wrong, nobody will go on with.
                    match error.kind() {
                        Kind::Changed | Kind::Corrupt | Kind::NotFound => draft.abandon().await,
                        _ => draft.leave().await,
                    }
                    return Err(error);
                }
            }
        }
    }

    /// What another run left of it; else a new draft, with the first extent, which says whether it is compressed.
    async fn draft(
        &self,
        recipe: &Recipe,
        blob: &Blob,
    ) -> Result<(Draft, Option<Sha256>, Option<Vec<Bytes>>)> {
        if let Some((draft, sha256)) = self.mirror.resume(&recipe.name, blob.size, self.lease).await? {
            return Ok((draft, sha256, None));
        }
        let first = extents(0, blob.size).next().unwrap_or(Extent { first: 0, blocks: 1 });
        let sample = read(&self.origin, blob, first).await?;
        let blocks = sample.clone();
        let framed = blocking(move || Ok(frames::pay(&blocks))).await?;
        let draft = self.mirror.draft(&recipe.name, blob.size, framed, self.lease).await?;
        Ok((draft, blob.sha256.map(|_| Sha256::new()), Some(sample)))
    }

    /// Passes on what lacks of a file, of which `sample` was read already. Answers with the SHA-256 of all of it, proved,
    /// where its origin publishes one.
    async fn pass(
        &self,
        blob: &Blob,
        draft: &mut Draft,
        mut sha256: Option<Sha256>,
        sample: Option<Vec<Bytes>>,
        progress: &Progress,
    ) -> Result<Option<Sha256>> {
        let form = if draft.is_framed() { Form::Frames } else { Form::Plain };
        let mut sample = sample;
        let rest = extents(draft.blocks(), blob.size).map(|extent| {
            let read_already = sample.take();
            async move {
                let blocks = match read_already {
                    Some(blocks) => blocks,
                    None => read(&self.origin, blob, extent).await?,
                };
                let size = blob.size;
                blocking(move || Piece::new(size, extent.first, blocks, form)).await
            }
        });
        let mut pieces = std::pin::pin!(stream::iter(rest).buffered(READS));
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
        if proved { Ok(sha256) } else { Err(unproved().within(blob)) }
    }
}

/// How many bytes of a file are done.
fn done(draft: &Draft, blob: &Blob) -> u64 {
    (draft.blocks() * BLOCK).min(blob.size)
}

/// The extents of a file of `size` bytes from block `first` on.
fn extents(first: u64, size: u64) -> impl Iterator<Item = Extent> {
    let blocks = block::count(size);
    let starts = (first..blocks).step_by(MAX_EXTENT_BLOCKS as usize);
    starts.map(move |first| Extent { first, blocks: MAX_EXTENT_BLOCKS.min(blocks - first) })
}

/// How a blob is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    Frames,
}

/// Some blocks of a blob, hashed, and in the form in which they are kept.
struct Piece {
    len: u64,
    checks: Vec<Check>,
    content: Vec<Bytes>,
    raw: Vec<Bytes>,
    form: Form,
}

impl Piece {
    /// The blocks from `first` on of a blob of `size` bytes. Keeps a processor busy.
    fn new(size: u64, first: u64, blocks: Vec<Bytes>, form: Form) -> Result<Self> {
        let checks = (first..).zip(&blocks).map(|(index, bytes)| Check::of(size, index, bytes)).collect();
        let content = match form {
            Form::Plain => blocks.clone(),
            Form::Frames => blocks.iter().map(|block| frames::compress(block)).collect::<Result<_>>()?,
        };
        let len = blocks.iter().map(|block| block.len() as u64).sum();
        Ok(Self { len, checks, content, raw: blocks, form })
    }
}

/// Where each frame ends.
struct Ends {
    form: Form,
    at: u64,
    ends: Vec<u8>,
}

impl Ends {
    fn new(form: Form) -> Self {
        Self { form, at: 0, ends: Vec::new() }
    }

    fn push(&mut self, len: usize) {
        self.at += len as u64;
        if self.form == Form::Frames {
            self.ends.extend_from_slice(&self.at.to_le_bytes());
        }
    }

    fn stored(self) -> Stored {
        let ends = (self.form == Form::Frames).then(|| self.ends.into());
        Stored { place: Bytes::new(), ends }
    }
}

fn record(size: u64, checks: Vec<Check>, stored: Stored) -> Result<Record> {
    Ok(Record { digest: Check::combine(size, &checks)?, size, checks: Arc::from(checks), stored })
}

/// Holds content against the SHA-256 that its origin publishes, where it does.
fn prove(sha256: &Option<[u8; 32]>, blocks: &[Bytes]) -> Result<()> {
    let Some(expected) = sha256 else { return Ok(()) };
    let found = blocks.iter().fold(Sha256::new(), |hasher, block| hasher.chain_update(block)).finalize();
    if found.as_slice() == expected { Ok(()) } else { Err(unproved()) }
}

fn unproved() -> Error {
    Error::new(Kind::Corrupt, "the origin sent content that does not have the SHA-256 that it publishes")
}
