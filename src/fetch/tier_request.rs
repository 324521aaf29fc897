//! Requests: one request to one tier, and the blocks that it brings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::blob::Blob;
use crate::block::{Arrival, BLOCK};
use crate::buffer::{Buffer, BufferPool};
use crate::error::{Error, Kind, Result};
use crate::extent::Extent;
use crate::metrics::SnapshotMetrics;
use crate::tier::{Body, Tier, TierKind, Urgency};

/// The counters and buffers that all requests of a ladder use.
pub(super) struct FetchContext<'a> {
    pub counters: &'a SnapshotMetrics,
    pub buffers: &'a Arc<BufferPool>,
    /// Bytes that arrived from all tiers.
    pub received: &'a AtomicU64,
}

/// The state of a request.
enum RequestState<'a> {
    Pending(BoxFuture<'a, Result<Option<Body>>>),
    Arriving(Body),
    /// The tier does not have it.
    Missing,
}

/// A body under way, cut into blocks.
pub(super) struct TierRequest<'a> {
    context: &'a FetchContext<'a>,
    state: RequestState<'a>,
    kind: TierKind,
    size: u64,
    /// The length of what is counted as a block, in bytes: that of one, or of a fragment of one.
    unit: u64,
    began: Instant,
    /// The blocks that are still to come.
    pub extent: Extent,
    /// Time to the first byte, once that has arrived.
    pub latency: Option<Duration>,
    /// Bytes that arrived.
    pub received: u64,
    /// When the last of them did, or when it was made.
    pub last_byte: Instant,
    /// The beginning of the next block.
    buffer: Option<Buffer>,
    /// The bytes that arrived behind that.
    rest: Option<Bytes>,
}

impl<'a> TierRequest<'a> {
    /// Asks `tier` for `extent` of `blob`, which counts units of `unit` bytes.
    pub fn new(
        context: &'a FetchContext<'a>,
        tier: &'a dyn Tier,
        (blob, unit): (&'a Blob, u64),
        extent: Extent,
        urgency: Urgency,
    ) -> Self {
        context.counters.count_request();
        let began = Instant::now();
        Self {
            context,
            state: RequestState::Pending(tier.fetch(blob, extent.bytes_in(unit, blob.size), urgency)),
            kind: tier.kind(),
            size: blob.size,
            unit,
            began,
            extent,
            latency: None,
            received: 0,
            last_byte: began,
            buffer: None,
            rest: None,
        }
    }

    /// Returns the time since it was made.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The index of the next block, or of the block of the next fragment.
    pub fn block(&self) -> u64 {
        self.extent.first * self.unit / BLOCK
    }

    /// The next block, unverified; `None` when the tier does not have it. Giving this future up loses nothing.
    pub async fn next(&mut self) -> Result<Option<Arrival>> {
        loop {
            if let Some(arrival) = self.cut() {
                return Ok(Some(arrival));
            }
            match &mut self.state {
                RequestState::Pending(answer) => {
                    self.state = match answer.await? {
                        Some(body) => RequestState::Arriving(body),
                        None => RequestState::Missing,
                    };
                    let latency = self.began.elapsed();
                    if let RequestState::Arriving(_) = self.state {
                        self.latency = Some(latency);
                        self.context.counters.record_first_byte(self.kind, latency);
                    }
                }
                RequestState::Missing => return Ok(None),
                RequestState::Arriving(body) => match body.next().await.transpose()? {
                    Some(piece) => {
                        self.received += piece.len() as u64;
                        self.last_byte = Instant::now();
                        self.context.received.fetch_add(piece.len() as u64, Relaxed);
                        self.rest = Some(piece).filter(|piece| !piece.is_empty());
                    }
                    None => {
                        let text = format!("the {} broke off within block {}", self.kind, self.block());
                        return Err(Error::new(Kind::Unavailable, text));
                    }
                },
            }
        }
    }

    /// Cuts the next block off what has arrived, if that is enough.
    fn cut(&mut self) -> Option<Arrival> {
        let mut piece = self.rest.take()?;
        let at = self.extent.first * self.unit;
        let want = self.size.saturating_sub(at).min(self.unit) as usize;
        if self.buffer.is_none() && piece.len() >= want {
            let whole = piece.split_to(want);
            self.rest = (!piece.is_empty()).then_some(piece);
            return Some(self.arrival(whole));
        }
        let filled = self.buffer.get_or_insert_with(|| self.context.buffers.take(want as u64));
        let take = piece.split_to(piece.len().min(want - filled.len()));
        filled.extend_from_slice(&take);
        self.rest = (!piece.is_empty()).then_some(piece);
        let full = self.buffer.take_if(|buffer| buffer.len() == want)?;
        Some(self.arrival(full.freeze()))
    }

    fn arrival(&mut self, bytes: Bytes) -> Arrival {
        let index = self.extent.first;
        self.extent = Extent { first: index + 1, blocks: self.extent.blocks - 1 };
        Arrival { size: self.size, index, bytes }
    }
}
