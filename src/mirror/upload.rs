//! Uploads: an object that is written while it is still being made, in parts of one size.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use tokio::task::JoinSet;

use super::Mirror;
use super::layout::{Shelf, fresh};
use crate::error::{Error, Kind, Result};

/// The least size of a part, in bytes: large enough that requests don't show, small enough for several in memory. S3
/// asks for 5 MiB at least.
pub const PART: u64 = 16 << 20;
/// How many parts an object may have: S3 allows 10,000, and some room is for what doesn't compress.
const MOST_PARTS: u64 = 9_000;
/// How many parts are on their way at once.
const FLYING: usize = 4;

/// An object under way.
#[derive(Debug)]
pub struct Upload {
    mirror: Mirror,
    place: String,
    key: Path,
    parts: Box<dyn MultipartUpload>,
    part: usize,
    pending: Vec<Bytes>,
    pending_len: usize,
    len: u64,
    flying: JoinSet<object_store::Result<()>>,
}

impl Mirror {
    /// Begins an object of about `size` bytes, whose name follows later.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn upload(&self, size: u64) -> Result<Upload> {
        let place = format!("{}/{}", Shelf::Uploads.name(), fresh());
        let key = self.below(&place);
        Upload::begin(self.clone(), place, key, size).await
    }
}

impl Upload {
    pub(super) async fn begin(mirror: Mirror, place: String, key: Path, size: u64) -> Result<Self> {
        let parts = mirror.store.put_multipart(&key).await.map_err(|e| mirror.failure("write", &key, &e))?;
        let part = PART.max(size.div_ceil(MOST_PARTS).next_multiple_of(1 << 20)) as usize;
        let (pending, flying) = (Vec::new(), JoinSet::new());
        Ok(Self { mirror, place, key, parts, part, pending, pending_len: 0, len: 0, flying })
    }

    /// Its key below the tenant's.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// How many bytes were written.
    pub fn written(&self) -> u64 {
        self.len
    }

    /// Writes more of it. Waits while too much is on its way.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        self.len += bytes.len() as u64;
        while self.pending_len + bytes.len() >= self.part {
            let rest = bytes.split_off(self.part - self.pending_len);
            self.pending.push(std::mem::replace(&mut bytes, rest));
            self.send().await?;
        }
        self.pending_len += bytes.len();
        self.pending.push(bytes);
        Ok(())
    }

    /// Ends it: from now on it is there.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn finish(mut self) -> Result<()> {
        let outcome = self.complete().await;
        if outcome.is_err() {
            self.abort().await;
        }
        outcome
    }

    async fn complete(&mut self) -> Result<()> {
        if self.pending_len > 0 || self.len == 0 {
            self.send().await?;
        }
        while !self.flying.is_empty() {
            self.land().await?;
        }
        let done = self.parts.complete().await;
        done.map(drop).map_err(|e| self.mirror.failure("finish", &self.key, &e))
    }

    /// Gives it up.
    pub async fn abort(mut self) {
        self.flying.shutdown().await;
        if let Err(error) = self.parts.abort().await {
            tracing::debug!(%error, "an upload is left to its store to clean up");
        }
    }

    async fn send(&mut self) -> Result<()> {
        while self.flying.len() >= FLYING {
            self.land().await?;
        }
        let payload: PutPayload = self.pending.drain(..).collect();
        self.pending_len = 0;
        self.flying.spawn(self.parts.put_part(payload));
        Ok(())
    }

    async fn land(&mut self) -> Result<()> {
        match self.flying.join_next().await {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(e))) => Err(self.mirror.failure("write", &self.key, &e)),
            Some(Err(e)) => Err(Error::with(Kind::Interrupted, "a part of an upload was lost", e)),
        }
    }
}
