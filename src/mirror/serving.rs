//! The mirror as a tier: reads ranges of blobs, decompressing where they are stored in frames.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetResult, GetResultPayload};

use super::{Mirror, damaged, frames};
use crate::blob::{Blob, Key};
use crate::block::{self, BLOCK};
use crate::error::{Error, Kind, Result};
use crate::task::blocking;
use crate::tier::{Body, Tier, TierKind, Urgency};

impl Tier for Mirror {
    fn kind(&self) -> TierKind {
        TierKind::Mirror
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            let Key::Content(digest) = blob.key else { return Ok(None) };
            let key = self.blob_key(&digest, &blob.stored);
            if blob.stored.ends.is_none() {
                return Ok(Some(self.body(&key, range, blob.size).await?));
            }
            self.restored(&key, blob, range).await.map(Some)
        }
        .boxed()
    }

    fn locate(&self, blob: &Blob) -> String {
        match blob.key {
            Key::Content(digest) => self.url_of(&self.blob_key(&digest, &blob.stored)),
            Key::Origin(_) => "the mirror".into(),
        }
    }
}

impl Mirror {
    /// The bytes `range` of the object at `key`, which has `len` bytes.
    async fn body(&self, key: &Path, range: Range<u64>, len: u64) -> Result<Body> {
        let options = GetOptions::new().with_range(Some(range.clone()));
        let got = match self.store.objects.get_opts(key, options).await {
            Ok(got) if got.meta.size == len && got.range == range => got,
            Ok(got) => return Err(damaged(self.url_of(key), format!("{} bytes, not {len}", got.meta.size))),
            Err(e) => return Err(self.explain_unreadable(key, len, e).await),
        };
        let (mirror, key) = (self.clone(), key.clone());
        Ok(pieces(got).map_err(move |e| mirror.failure("read", &key, &e)).boxed())
    }

    /// Returns the error that explains why an object of `len` bytes can't be read: it is gone or cut off, or the store is out of
    /// order.
    async fn explain_unreadable(&self, key: &Path, len: u64, error: object_store::Error) -> Error {
        match self.head(key).await {
            Ok(None) => damaged(self.url_of(key), "it is missing"),
            Ok(Some(meta)) if meta.size != len => {
                damaged(self.url_of(key), format!("{} bytes, not {len}", meta.size))
            }
            _ => self.failure("read", key, &error),
        }
    }

    /// The bytes `range` of a blob that is kept in frames.
    async fn restored(&self, key: &Path, blob: &Blob, range: Range<u64>) -> Result<Body> {
        let blocks = block::touched(&range);
        let unknown = || damaged("a manifest", format!("its record has no frame table for {blob}"));
        let stored = blob.stored.range(blob.size, blocks.clone()).ok_or_else(unknown)?;
        let len = blob.stored.len(blob.size).ok_or_else(unknown)?;
        let mut lens = Vec::new();
        for index in blocks.clone() {
            let frame = blob.stored.range(blob.size, index..index + 1).ok_or_else(unknown)?;
            lens.push((frame.end - frame.start, block::len(blob.size, index)));
        }
        let frames = FrameSplitter { body: self.body(key, stored, len).await?, rest: BytesMut::new() };
        let url_of = self.url_of(key);
        let state = (frames, lens.into_iter().zip(blocks));
        let restored = stream::try_unfold(state, move |(mut frames, mut lens)| {
            let (range, url_of) = (range.clone(), url_of.clone());
            async move {
                let Some(((stored, len), index)) = lens.next() else { return Ok(None) };
                let frame = frames.next(stored as usize).await?;
                let block = blocking(move || frames::decompress(&frame, len as usize)).await;
                let block = block.map_err(|e| e.context(url_of))?;
                let start = range.start.saturating_sub(index * BLOCK);
                let end = (range.end - index * BLOCK).min(len);
                Ok(Some((block.slice(start as usize..end as usize), (frames, lens))))
            }
        });
        Ok(restored.boxed())
    }
}

/// A body, cut into frames.
struct FrameSplitter {
    body: Body,
    rest: BytesMut,
}

impl FrameSplitter {
    async fn next(&mut self, len: usize) -> Result<Bytes> {
        while self.rest.len() < len {
            let piece = self.body.next().await.transpose()?;
            let piece = piece.ok_or_else(|| {
                Error::new(Kind::Unavailable, "the mirror closed the connection before the end of a frame")
            })?;
            self.rest.extend_from_slice(&piece);
        }
        Ok(self.rest.split_to(len).freeze())
    }
}

/// The body of a response. A local file is read in pieces of a block: the store's own are 8 KiB.
fn pieces(got: GetResult) -> stream::BoxStream<'static, object_store::Result<Bytes>> {
    let GetResultPayload::File(file, path) = got.payload else { return got.into_stream() };
    let (file, path) = (Arc::new(file), path.display().to_string());
    let starts = got.range.clone().step_by(BLOCK as usize);
    let reads = starts.map(move |start| {
        let (file, path) = (file.clone(), path.clone());
        let len = BLOCK.min(got.range.end - start) as usize;
        tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; len];
            let failed = |source: std::io::Error| object_store::Error::Generic {
                store: "LocalFileSystem",
                source: format!("{path}: {source}").into(),
            };
            file.read_exact_at(&mut piece, start).map_err(failed)?;
            Ok(Bytes::from(piece))
        })
    });
    stream::iter(reads).then(|read| async { read.await? }).boxed()
}
