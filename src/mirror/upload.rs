//! Uploads: an object that is written while it is still being made, in parts of one size.
//!
//! Before its first part is sent, a draft ([`super::draft`]) says that it is under way: so one that breaks off can be
//! continued, or be given up by who collects.

use std::collections::BTreeMap;

use bytes::Bytes;
use object_store::PutPayload;
use object_store::path::Path;
use tokio::task::JoinSet;

use super::Mirror;
use super::parts::Id;
use crate::error::{Error, Kind, Result};

/// The least size of a part, in bytes: large enough that requests don't show, small enough for several in memory. S3
/// asks for 5 MiB at least.
pub const PART: u64 = 16 << 20;
/// How many parts an object may have: S3 allows 10,000, and some room is for what doesn't compress.
const MOST_PARTS: u64 = 9_000;
/// How many parts are on their way at once.
const FLYING: usize = 4;

/// A part, and what came of it.
type Put = (usize, object_store::Result<String>);
type Landed = std::result::Result<Put, tokio::task::JoinError>;

/// An object under way.
#[derive(Debug)]
pub(super) struct Upload {
    mirror: Mirror,
    id: Id,
    part: u64,
    pending: Vec<Bytes>,
    pending_len: u64,
    /// The parts that were cut off.
    cut: usize,
    /// What the store calls the contents of those that it has.
    landed: BTreeMap<usize, String>,
    flying: JoinSet<Put>,
    /// How many parts it took from us.
    taken: usize,
    refused: bool,
}

/// Where a part ended.
#[derive(Debug)]
pub(super) struct Cut {
    /// How many parts there are before it.
    pub parts: usize,
    /// What of the bytes just written comes behind it.
    pub rest: Bytes,
}

/// The size of the parts of an object of about `size` bytes.
fn part(size: u64) -> u64 {
    PART.max(size.div_ceil(MOST_PARTS).next_multiple_of(1 << 20))
}

impl Upload {
    /// Begins the object `key` of about `size` bytes.
    pub(super) async fn begin(mirror: &Mirror, key: Path, size: u64) -> Result<Self> {
        let begun = mirror.store.parts.begin(key.clone()).await;
        let id = begun.map_err(|e| mirror.failure("write", &key, &e))?;
        Ok(Self::after(mirror, id, part(size), Vec::new(), Bytes::new()))
    }

    /// Goes on with one that has these parts; `rest` comes behind them.
    pub(super) fn after(mirror: &Mirror, id: Id, part: u64, parts: Vec<String>, rest: Bytes) -> Self {
        Self {
            mirror: mirror.clone(),
            id,
            part,
            pending_len: rest.len() as u64,
            pending: vec![rest],
            cut: parts.len(),
            landed: parts.into_iter().enumerate().collect(),
            flying: JoinSet::new(),
            taken: 0,
            refused: false,
        }
    }

    pub(super) fn id(&self) -> &Id {
        &self.id
    }

    /// The size of its parts.
    pub(super) fn part(&self) -> u64 {
        self.part
    }

    /// How many parts have arrived, without a gap.
    pub(super) fn landed(&self) -> usize {
        (0..).zip(self.landed.keys()).take_while(|(index, landed)| index == *landed).count()
    }

    /// What the store calls the first `count` parts.
    pub(super) fn parts(&self, count: usize) -> impl Iterator<Item = &str> {
        self.landed.values().take(count).map(String::as_str)
    }

    /// Whether the store refused it, and never took a part.
    pub(super) fn is_refused(&self) -> bool {
        self.refused && self.taken == 0
    }

    /// Writes more of it, at most a part. Waits while too much is on its way. Tells when a part ended.
    pub(super) async fn write(&mut self, mut bytes: Bytes) -> Result<Option<Cut>> {
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
        Ok(Some(Cut { parts: self.cut, rest }))
    }

    /// Sends what is left, and waits until all has arrived.
    pub(super) async fn drain(&mut self) -> Result<()> {
        if self.pending_len > 0 || self.cut == 0 {
            self.send().await?;
        }
        self.land_all().await
    }

    /// Waits until all that was sent has arrived.
    pub(super) async fn land_all(&mut self) -> Result<()> {
        while !self.flying.is_empty() {
            self.land().await?;
        }
        Ok(())
    }

    /// Ends it, when all has arrived: from now on the object is there.
    pub(super) async fn complete(&mut self, len: u64) -> Result<()> {
        let parts = self.landed.values().cloned().collect();
        let Err(error) = self.mirror.store.parts.complete(&self.id, parts).await else { return Ok(()) };
        // It may have ended before, with nobody to hear of it.
        if self.mirror.head(&self.id.key).await?.is_some_and(|meta| meta.size == len) {
            return Ok(());
        }
        self.refused = true;
        Err(self.mirror.failure("finish", &self.id.key, &error))
    }

    /// Gives it up.
    pub(super) async fn abort(&mut self) {
        self.flying.shutdown().await;
        if let Err(error) = self.mirror.store.parts.abort(&self.id).await {
            tracing::debug!(%error, "an upload is left to its store to clean up");
        }
    }

    async fn send(&mut self) -> Result<()> {
        while let Some(landed) = self.flying.try_join_next() {
            self.take(Some(landed))?;
        }
        while self.flying.len() >= FLYING {
            self.land().await?;
        }
        let payload: PutPayload = self.pending.drain(..).collect();
        let (parts, id, index, part) =
            (self.mirror.store.parts.clone(), self.id.clone(), self.cut, self.part);
        let put = async move { (index, parts.put(&id, index, index as u64 * part, payload).await) };
        self.flying.spawn(put);
        (self.cut, self.pending_len) = (index + 1, 0);
        Ok(())
    }

    async fn land(&mut self) -> Result<()> {
        let landed = self.flying.join_next().await;
        self.take(landed)
    }

    fn take(&mut self, landed: Option<Landed>) -> Result<()> {
        match landed {
            None => Ok(()),
            Some(Ok((index, Ok(content)))) => {
                self.taken += 1;
                self.landed.insert(index, content);
                Ok(())
            }
            Some(Ok((_, Err(e)))) => {
                self.refused = true;
                Err(self.mirror.failure("write", &self.id.key, &e))
            }
            Some(Err(e)) => Err(Error::with(Kind::Interrupted, "a part of an upload was lost", e)),
        }
    }
}
