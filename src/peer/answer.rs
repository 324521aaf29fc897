//! Answers: the frames that come on a stream.

use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::pool::{Pool, To};
use super::stream::{Stream, ended};
use super::wire::{Frame, Frames, HEAD, Head, PART};
use crate::buffer::{Buffer, BufferPool};
use crate::error::Result;

/// An answer under way.
pub(super) struct Answer {
    stream: Stream,
    /// Where the stream goes when all was read.
    pool: Option<(Arc<Pool>, To)>,
    buffers: Arc<BufferPool>,
    /// Bytes that are to be given when so many are there.
    data: Option<(Buffer, usize)>,
}

impl Answer {
    /// What comes on `stream`, which goes to `pool` then, if anywhere. It comes to lie in `buffers`.
    pub(super) fn new(stream: Stream, pool: Option<(Arc<Pool>, To)>, buffers: Arc<BufferPool>) -> Self {
        Self { stream, pool, buffers, data: None }
    }

    /// What comes, frame by frame.
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
        let mut head = [0; HEAD];
        match self.stream.fill(&mut &mut head[..], HEAD).await? {
            0 => return Ok(None),
            HEAD => {}
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

    /// Reads on until `room` holds `due` bytes, or a [`PART`] more.
    async fn fill(&mut self, mut room: Buffer, due: usize) -> Result<Frame> {
        let until = due.min(room.len() + PART);
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
