//! Peer reads: the blocks of a content for other nodes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use crate::block::{self, BLOCK};
use crate::budget::Permit;
use crate::error::{Error, Kind, Result};
use crate::fetch::FetchScope;
use crate::tier::{Body, Urgency};

use super::{Content, Requester, SharedResources};

/// A buffer of bytes that are being sent to another node. They count against the budget until they have left.
struct SendBuffer {
    bytes: Bytes,
    _permit: Permit,
}

impl AsRef<[u8]> for SendBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl SharedResources {
    /// Waits until the budget allows `len` more bytes to be sent to other nodes, then reads them with `read`.
    pub(crate) async fn send_buffer(
        &self,
        len: u64,
        urgency: Urgency,
        read: impl Future<Output = Result<Vec<Bytes>>>,
    ) -> Result<Bytes> {
        let closed = || Error::new(Kind::Interrupted, "this node is shutting down");
        let permit = self.send_budget.queue(len, urgency).await_grant().await.ok_or_else(closed)?;
        let bytes = match &read.await?[..] {
            [only] => only.clone(),
            pieces => pieces.concat().into(),
        };
        self.blocks_transferred.fetch_add(1, Relaxed);
        Ok(Bytes::from_owner(SendBuffer { bytes, _permit: permit }))
    }
}

impl Content {
    /// Whether all of `range` is present.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        block::touched(range).all(|index| self.is_present(index))
    }

    /// Whether all of `range` is present, or being fetched by flights that wait for no other node.
    pub(crate) fn has_or_fetches(&self, range: &Range<u64>) -> bool {
        block::touched(range).all(|index| self.is_present(index) || self.direct_flights.find(index).is_some())
    }

    /// Reads `range` for another node, block by block. What is missing is fetched directly, never from a peer that may wait for
    /// another node in turn.
    pub(crate) fn serve_range(self: Arc<Self>, range: Range<u64>, urgency: Urgency) -> Body {
        let blocks = block::touched(&range);
        let end = blocks.end;
        // All flights start first, so that they run in parallel.
        let joined = blocks
            .map(|index| (index, self.join_or_start_in(FetchScope::Direct, index, end - index, urgency)));
        let joined: Vec<_> = joined.collect();
        stream::iter(joined)
            .then(move |(index, flight)| {
                let content = self.clone();
                let start = (index * BLOCK).max(range.start);
                let end = (index * BLOCK + block::len(content.blob().size, index)).min(range.end);
                async move {
                    // Read the block first: budget that waits for it would be of no use to others.
                    if let Some(flight) = &flight {
                        flight.block(index).await?;
                    }
                    let read = content.read_block(
                        (Requester::Peer(urgency), Instant::now()),
                        index,
                        flight,
                        start..end,
                    );
                    content.resources.send_buffer(end - start, urgency, read).await
                }
            })
            .boxed()
    }
}
