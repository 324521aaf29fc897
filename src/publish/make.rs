//! Making blobs: content from the origin, hashed and compressed as it passes, put on the mirror's shelf.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::{StreamExt, TryStreamExt, stream};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::before::Before;
use super::plan::Recipe;
use super::progress::Progress;
use super::{blocking, read::read};
use crate::blob::{Blob, Stored};
use crate::block::{self, BLOCK, Check};
use crate::error::{Error, Kind, Result};
use crate::extent::{Extent, LONGEST};
use crate::fetch::Ladder;
use crate::manifest::Manifest;
use crate::mirror::Mirror;
use crate::mirror::frames;
use crate::mirror::record::Record;
use crate::mirror::upload::{PART, Upload};

/// Up to this size a blob is made in memory, where its digest is known before it is sent, unless that were more than a
/// quarter of all. It is the size of a full pack.
const IN_MEMORY: u64 = 64 << 20;
/// How many extents of a larger blob are read at once.
const READS: usize = 4;
/// How many files of a pack are.
const FILES: usize = 64;
/// What a larger blob holds in memory meanwhile: extents as they came and compressed, and parts on their way.
const STREAMED: u64 = 2 * READS as u64 * LONGEST * BLOCK + 5 * PART;

/// What makes blobs.
pub(super) struct Maker<'a> {
    mirror: &'a Mirror,
    listing: &'a Manifest,
    origin: Ladder,
    before: Option<Before>,
    /// When the lease began: nothing that is relied on may be dated before.
    since: DateTime<Utc>,
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
        since: DateTime<Utc>,
        memory: u64,
    ) -> Self {
        let most = memory.div_ceil(BLOCK).clamp(1, u64::from(u32::MAX) / 2) as u32;
        let in_memory = IN_MEMORY.min(memory / 4);
        let semaphore = Semaphore::new(most as usize);
        Self { mirror, listing, origin, before, since, memory: semaphore, most, in_memory }
    }

    /// Finds the blob of `recipe` in the mirror, or makes it.
    pub(super) async fn make(&self, recipe: &Recipe, progress: &Progress) -> Result<Record> {
        let record = match self.mirror.recall(&recipe.name, self.since).await? {
            Some(record) if record.size == recipe.size => record,
            _ => {
                let (record, written) = self.made(recipe, progress).await?;
                let stored = record.stored.len(record.size).unwrap_or_default();
                progress.written.fetch_add(if written { stored } else { 0 }, Relaxed);
                record
            }
        };
        progress.files_done.fetch_add(recipe.files.len() as u64, Relaxed);
        progress.bytes_done.fetch_add(recipe.size, Relaxed);
        Ok(record)
    }

    async fn made(&self, recipe: &Recipe, progress: &Progress) -> Result<(Record, bool)> {
        let streamed = recipe.files.len() == 1 && recipe.size > self.in_memory;
        // Content as it comes, put together, and compressed.
        let held = if streamed { STREAMED } else { 3 * recipe.size };
        let held = (held.div_ceil(BLOCK) as u32).min(self.most);
        let _held =
            self.memory.acquire_many(held).await.map_err(|e| Error::with(Kind::Interrupted, "the end", e))?;
        match &recipe.files[..] {
            [file] if streamed => self.stream(recipe, &self.listing.blob(*file)?, progress).await,
            [file] => {
                let blob = self.listing.blob(*file)?;
                let extents = extents(blob.size).map(|extent| read(&self.origin, &blob, extent));
                let blocks = stream::iter(extents).buffered(READS).try_concat().await?;
                progress.read.fetch_add(blob.size, Relaxed);
                self.put(recipe, blocks, blob.sha256).await
            }
            files => self.put(recipe, self.pack(files, recipe.size, progress).await?, None).await,
        }
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
        self.mirror.shelve(&recipe.name, record, content, self.since).await
    }

    /// Copies a file that is too large for memory: its digest is known when all of it has passed.
    async fn stream(&self, recipe: &Recipe, blob: &Blob, progress: &Progress) -> Result<(Record, bool)> {
        let mut upload = self.mirror.upload(blob.size).await?;
        let record = match self.pass(blob, &mut upload, progress).await {
            Ok(record) => record,
            Err(error) => {
                upload.abort().await;
                return Err(error);
            }
        };
        self.mirror.shelve_upload(&recipe.name, record, upload, self.since).await
    }

    async fn pass(&self, blob: &Blob, upload: &mut Upload, progress: &Progress) -> Result<Record> {
        let mut extents = extents(blob.size);
        let first = extents.next().unwrap_or(Extent { first: 0, blocks: 1 });
        let sample = read(&self.origin, blob, first).await?;
        let blocks = sample.clone();
        let form =
            blocking(move || Ok(if frames::pay(&blocks) { Form::Frames } else { Form::Plain })).await?;
        let piece =
            move |size, first: Extent, blocks| blocking(move || Piece::new(size, first.first, blocks, form));
        let rest = extents.map(|extent| async move {
            let blocks = read(&self.origin, blob, extent).await?;
            piece(blob.size, extent, blocks).await
        });
        let pieces = stream::once(piece(blob.size, first, sample)).chain(stream::iter(rest).buffered(READS));
        let mut pieces = std::pin::pin!(pieces);
        let (mut checks, mut ends) = (Vec::new(), Ends::new(form));
        let mut sha256 = blob.sha256.is_some().then(Sha256::new);
        while let Some(piece) = pieces.try_next().await? {
            if let Some(hasher) = sha256.take() {
                sha256 = Some(
                    blocking(move || Ok(piece.raw.iter().fold(hasher, |h, b| h.chain_update(b)))).await?,
                );
            }
            progress.read.fetch_add(piece.len, Relaxed);
            checks.extend(piece.checks);
            for bytes in piece.content {
                ends.push(bytes.len());
                upload.write(bytes).await?;
            }
        }
        if sha256.map(|hasher| hasher.finalize().into()) != blob.sha256 {
            return Err(unproved().within(blob));
        }
        let stored = Stored { place: upload.place().to_owned().into(), ..ends.stored() };
        record(blob.size, checks, stored)
    }
}

/// The extents of a file of `size` bytes.
fn extents(size: u64) -> impl Iterator<Item = Extent> {
    let blocks = block::count(size);
    let starts = (0..blocks).step_by(LONGEST as usize);
    starts.map(move |first| Extent { first, blocks: LONGEST.min(blocks - first) })
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
