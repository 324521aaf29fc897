//! The body of an answer, cut into blocks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Instant, timeout};

use super::Rung;
use crate::block::{self, Arrival};
use crate::buffer::{Buffer, BufferPool};
use crate::error::{Error, Kind, Result};
use crate::extent::Extent;
use crate::tier::Body;

/// A body that brings less than a block in this time is given up for the next tier. The last tier may be slow, for
/// there is none to turn to, but not silent.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A body, cut into blocks.
pub(super) struct Blocks<'a> {
    pub(super) body: Body,
    pub(super) rung: Rung<'a>,
    pub(super) size: u64,
    /// What is still to come.
    pub(super) extent: Extent,
    /// What arrived behind the end of the last block.
    pub(super) rest: Option<Bytes>,
    pub(super) buffers: &'a Arc<BufferPool>,
}

impl Blocks<'_> {
    /// The next block, unverified.
    pub(super) async fn next(&mut self) -> Result<Arrival> {
        let index = self.extent.first;
        let want = block::len(self.size, index) as usize;
        let mut buffer: Option<Buffer> = None;
        let began = Instant::now();
        loop {
            if let Some(mut piece) = self.rest.take() {
                if buffer.is_none() && piece.len() >= want {
                    let whole = piece.split_to(want);
                    self.rest = (!piece.is_empty()).then_some(piece);
                    return Ok(self.arrival(whole));
                }
                let filled = buffer.get_or_insert_with(|| self.buffers.take(want as u64));
                let take = piece.split_to(piece.len().min(want - filled.len()));
                filled.extend_from_slice(&take);
                self.rest = (!piece.is_empty()).then_some(piece);
            }
            if let Some(full) = buffer.take_if(|buffer| buffer.len() == want) {
                return Ok(self.arrival(full.freeze()));
            }
            let left =
                if self.rung.last { STALL_TIMEOUT } else { STALL_TIMEOUT.saturating_sub(began.elapsed()) };
            let left = self.rung.peer.is_none().then_some(left);
            let stalled = || {
                Error::new(
                    Kind::Timeout,
                    format!("the {} stopped sending within block {index}", self.rung.tier.kind()),
                )
            };
            match within(left, self.body.next()).await.ok_or_else(stalled)? {
                Some(piece) => self.rest = Some(piece?).filter(|p| !p.is_empty()),
                None => {
                    let text = format!("the {} broke off within block {index}", self.rung.tier.kind());
                    return Err(Error::new(Kind::Unavailable, text));
                }
            }
        }
    }

    fn arrival(&mut self, bytes: Bytes) -> Arrival {
        let index = self.extent.first;
        self.extent = Extent { first: index + 1, blocks: self.extent.blocks - 1 };
        Arrival { size: self.size, index, bytes }
    }
}

/// What `work` comes to, if that is within `limit`.
pub(super) async fn within<T>(limit: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => timeout(limit, work).await.ok(),
        None => Some(work.await),
    }
}
