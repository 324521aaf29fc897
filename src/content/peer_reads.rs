//! What a content gives to other nodes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures_util::{StreamExt, stream};

use crate::block::{self, BLOCK};
use crate::budget::Permit;
use crate::error::{Error, Kind, Result};
use crate::tier::{Body, Urgency};

use super::{Content, Requester, SharedResources};

/// Bytes on their way to another node. Until they have left, they count.
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
    /// Waits until `len` bytes may be sent to another node, and takes them from `read` then.
    pub(crate) async fn lend(
        &self,
        len: u64,
        urgency: Urgency,
        read: impl Future<Output = Result<Vec<Bytes>>>,
    ) -> Result<Bytes> {
        let closed = || Error::new(Kind::Interrupted, "this node is about to end");
        let permit = self.lent.queue(len, urgency).granted().await.ok_or_else(closed)?;
        let bytes = match &read.await?[..] {
            [only] => only.clone(),
            pieces => pieces.concat().into(),
        };
        self.moved.fetch_add(1, Relaxed);
        Ok(Bytes::from_owner(SendBuffer { bytes, _permit: permit }))
    }
}

impl Content {
    /// Whether all of `range` is here.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        block::touched(range).all(|index| self.is_present(index))
    }

    /// Whether all of `range` is here, or comes by flights that wait for no other node.
    pub(crate) fn brings(&self, range: &Range<u64>) -> bool {
        block::touched(range).all(|index| self.is_present(index) || self.direct.find(index).is_some())
    }

    /// The bytes `range` for another node, block by block. What isn't here is fetched, and from no one who may wait for
    /// another node in turn.
    pub(crate) fn lend(self: Arc<Self>, range: Range<u64>, urgency: Urgency) -> Body {
        let blocks = block::touched(&range);
        let end = blocks.end;
        // All flights first, so that they fly beside each other.
        let joined = blocks.map(|index| {
            (index, self.join_or_start_in(crate::fetch::FetchScope::Direct, index, end - index, urgency))
        });
        let joined: Vec<_> = joined.collect();
        stream::iter(joined)
            .then(move |(index, flight)| {
                let content = self.clone();
                let start = (index * BLOCK).max(range.start);
                let end = (index * BLOCK + block::len(content.blob().size, index)).min(range.end);
                async move {
                    // The block first: memory that waits for it would be of no use to others.
                    if let Some(flight) = &flight {
                        flight.block(index).await?;
                    }
                    let read = content.read_block(Requester::Peer(urgency), index, flight, start..end);
                    content.resources.lend(end - start, urgency, read).await
                }
            })
            .boxed()
    }
}
