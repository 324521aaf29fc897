//! Uploads: objects written in parts of one size while their content is still being read.
//!
//! Before its first part is sent, a draft ([`super::draft`]) says that it is under way: so one that breaks off can be
//! continued, or be deleted by the garbage collection.

use std::collections::BTreeMap;

use bytes::Bytes;
use object_store::PutPayload;
use object_store::path::Path;
use tokio::task::JoinSet;

use super::Mirror;
use super::multipart::UploadId;
use crate::error::{Error, Kind, Result};

/// The least size of a part, in bytes: large enough that requests don't show, small enough for several in memory. S3
/// asks for 5 MiB at least.
pub const MIN_PART_BYTES: u64 = 16 << 20;
/// The number of parts that an object may have: S3 allows 10,000, and some room is for what doesn't compress.
const MAX_PARTS: u64 = 9_000;
/// The number of parts that are on their way at once.
const PARTS_IN_FLIGHT: usize = 4;

/// The index of a part, and the result of its upload.
type PartUpload = (usize, object_store::Result<String>);
type PartResult = std::result::Result<PartUpload, tokio::task::JoinError>;

/// An object under way.
#[derive(Debug)]
pub(super) struct Upload {
    mirror: Mirror,
    id: UploadId,
    part: u64,
    pending: Vec<Bytes>,
    pending_len: u64,
    /// The parts that were cut off.
    sent: usize,
    /// The store's identifiers of the parts that it has.
    uploaded: BTreeMap<usize, String>,
    in_flight: JoinSet<PartUpload>,
    /// The number of parts that it took from us.
    accepted: usize,
    rejected: bool,
}

/// The end of a part.
#[derive(Debug)]
pub(super) struct PartEnd {
    /// The number of parts before it.
    pub parts: usize,
    /// The bytes just written that follow it.
    pub rest: Bytes,
}

/// The size of the parts of an object of about `size` bytes.
fn part(size: u64) -> u64 {
    MIN_PART_BYTES.max(size.div_ceil(MAX_PARTS).next_multiple_of(1 << 20))
}

impl Upload {
    /// Begins the object `key` of about `size` bytes.
    pub(super) async fn begin(mirror: &Mirror, key: Path, size: u64) -> Result<Self> {
        let begun = mirror.store.parts.begin(key.clone()).await;
        let id = begun.map_err(|e| mirror.failure("write", &key, &e))?;
        Ok(Self::resume(mirror, id, part(size), Vec::new(), Bytes::new()))
    }

    /// Resumes an upload that has these parts; `rest` follows them.
    pub(super) fn resume(mirror: &Mirror, id: UploadId, part: u64, parts: Vec<String>, rest: Bytes) -> Self {
        Self {
            mirror: mirror.clone(),
            id,
            part,
            pending_len: rest.len() as u64,
            pending: vec![rest],
            sent: parts.len(),
            uploaded: parts.into_iter().enumerate().collect(),
            in_flight: JoinSet::new(),
            accepted: 0,
            rejected: false,
        }
    }

    pub(super) fn id(&self) -> &UploadId {
        &self.id
    }

    /// The size of its parts.
    pub(super) fn part(&self) -> u64 {
        self.part
    }

    /// Returns the number of parts that have arrived, without a gap.
    pub(super) fn uploaded(&self) -> usize {
        (0..).zip(self.uploaded.keys()).take_while(|(index, uploaded)| index == *uploaded).count()
    }

    /// The store's identifiers of the first `count` parts.
    pub(super) fn parts(&self, count: usize) -> impl Iterator<Item = &str> {
        self.uploaded.values().take(count).map(String::as_str)
    }

    /// Whether the store refused it, and never took a part.
    pub(super) fn is_rejected(&self) -> bool {
        self.rejected && self.accepted == 0
    }

    /// Writes more of the object, at most a part. Waits while too many parts are in flight. Returns the end of a part, if
    /// any.
    pub(super) async fn write(&mut self, mut bytes: Bytes) -> Result<Option<PartEnd>> {
        let room = self.part - self.pending_len;
        if (bytes.len() as u64) < room {
            self.pending_len += bytes.len() as u64;
            self.pending.push(bytes);
            return Ok(None);
        }
        let rest = bytes.split_off(room as usize);
        self.pending.push(bytes);
        self.send().await?;
        self.pending_len = rest.len() as u64;
        self.pending.push(rest.clone());
        Ok(Some(PartEnd { parts: self.sent, rest }))
    }

    /// Sends what is left, and waits until all has arrived.
    pub(super) async fn flush(&mut self) -> Result<()> {
        if self.pending_len > 0 || self.sent == 0 {
            self.send().await?;
        }
        self.await_parts().await
    }

    /// Waits until all that was sent has arrived.
    pub(super) async fn await_parts(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.await_part().await?;
        }
        Ok(())
    }

    /// Completes the upload, when all parts have arrived: from now on the object is there.
    pub(super) async fn complete(&mut self, len: u64) -> Result<()> {
        let parts = self.uploaded.values().cloned().collect();
        let Err(error) = self.mirror.store.parts.complete(&self.id, parts).await else { return Ok(()) };
        // The upload may have been completed before, without a response.
        if self.mirror.head(&self.id.key).await?.is_some_and(|meta| meta.size == len) {
            return Ok(());
        }
        self.rejected = true;
        Err(self.mirror.failure("finish", &self.id.key, &error))
    }

    /// Aborts the upload.
    pub(super) async fn abort(&mut self) {
        self.in_flight.shutdown().await;
        if let Err(error) = self.mirror.store.parts.abort(&self.id).await {
            tracing::debug!(%error, "an upload is left to its store to clean up");
        }
    }

    async fn send(&mut self) -> Result<()> {
        while let Some(uploaded) = self.in_flight.try_join_next() {
            self.record_part(Some(uploaded))?;
        }
        while self.in_flight.len() >= PARTS_IN_FLIGHT {
            self.await_part().await?;
        }
        let payload: PutPayload = self.pending.drain(..).collect();
        let (parts, id, index, part) =
            (self.mirror.store.parts.clone(), self.id.clone(), self.sent, self.part);
        let put = async move { (index, parts.put(&id, index, index as u64 * part, payload).await) };
        self.in_flight.spawn(put);
        (self.sent, self.pending_len) = (index + 1, 0);
        Ok(())
    }

    async fn await_part(&mut self) -> Result<()> {
        let uploaded = self.in_flight.join_next().await;
        self.record_part(uploaded)
    }

    fn record_part(&mut self, uploaded: Option<PartResult>) -> Result<()> {
        match uploaded {
            None => Ok(()),
            Some(Ok((index, Ok(content)))) => {
                self.accepted += 1;
                self.uploaded.insert(index, content);
                Ok(())
            }
            Some(Ok((_, Err(e)))) => {
                self.rejected = true;
                Err(self.mirror.failure("write", &self.id.key, &e))
            }
            Some(Err(e)) => Err(Error::with(Kind::Interrupted, "a part of an upload was lost", e)),
        }
    }
}
