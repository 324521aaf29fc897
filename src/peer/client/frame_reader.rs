//! Frame reader: decodes the frames of a response as they arrive on a connection.

use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::connection::{PeerConnection, ended};
use super::pool::{ConnectionPool, PoolKey};
use crate::buffer::{Buffer, BufferPool};
use crate::error::Result;
use crate::peer::wire::{FRAME_HEADER_BYTES, Frame, Frames, Head, MAX_PART_BYTES};

/// Reads the frames of one response.
pub(super) struct FrameReader {
    stream: PeerConnection,
    /// The pool that the connection returns to when all was read.
    pool: Option<(Arc<ConnectionPool>, PoolKey)>,
    buffers: Arc<BufferPool>,
    /// A data frame that is being read, and its length.
    data: Option<(Buffer, usize)>,
}

impl FrameReader {
    /// Reads from `stream` into `buffers`, and puts it into `pool` at the end, if there is one.
    pub(super) fn new(
        stream: PeerConnection,
        pool: Option<(Arc<ConnectionPool>, PoolKey)>,
        buffers: Arc<BufferPool>,
    ) -> Self {
        Self { stream, pool, buffers, data: None }
    }

    /// The frames, in order.
    pub(super) fn frames(self) -> Frames {
        stream::try_unfold(Some(self), |answer| async {
            let Some(mut answer) = answer else { return Ok(None) };
            match answer.next().await? {
                Some(Frame::End) => Ok(Some((Frame::End, None))),
                Some(frame) => Ok(Some((frame, Some(answer)))),
                None => {
                    if let Some((pool, to)) = answer.pool {
                        pool.keep(to, answer.stream);
                    }
                    Ok(None)
                }
            }
        })
        .boxed()
    }

    async fn next(&mut self) -> Result<Option<Frame>> {
        if let Some((room, due)) = self.data.take() {
            return self.fill(room, due).await.map(Some);
        }
        let mut head = [0; FRAME_HEADER_BYTES];
        match self.stream.fill(&mut &mut head[..], FRAME_HEADER_BYTES).await? {
            0 => return Ok(None),
            FRAME_HEADER_BYTES => {}
            _ => return Err(ended()),
        }
        match Head::parse(&head)? {
            Head::Data(len) => {
                let room = self.buffers.take(len.into());
                self.fill(room, len as usize).await.map(Some)
            }
            Head::Wait => Ok(Some(Frame::Wait)),
            Head::End => Ok(Some(Frame::End)),
        }
    }

    /// Reads until `room` holds `due` bytes, or a [`MAX_PART_BYTES`] more.
    async fn fill(&mut self, mut room: Buffer, due: usize) -> Result<Frame> {
        let until = due.min(room.len() + MAX_PART_BYTES);
        let len = until - room.len();
        if self.stream.fill(&mut *room, len).await? < len {
            return Err(ended());
        }
        if until == due {
            return Ok(Frame::Data(room.freeze()));
        }
        self.data = Some((room, due));
        Ok(Frame::Part)
    }
}
