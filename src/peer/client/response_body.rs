//! The body of a response, with timeouts that fit a peer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use super::Peers;
use crate::error::{Error, Kind, Result};
use crate::peer::Member;
use crate::peer::wire::{BlockRequest, Frame, Frames, MAX_PART_BYTES, Role};
use crate::tier::{Body, Urgency};
use crate::timeout::within;

/// The time for which a peer may be silent, and that which it may take for the next [`MIN_PROGRESS_BYTES`] bytes once it sends.
const PEER_SILENCE_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of bytes that count as progress. A hundred streams that share 100 Mbit/s still send that in a second.
const MIN_PROGRESS_BYTES: u64 = MAX_PART_BYTES as u64;

/// The time that the next bytes may take although the peer sends heartbeats: for a reader, and for a stage. A reader has turned to
/// other tiers by then. A stage has more time, because all nodes wait for the mirror when they stage at once. A holder waits for no
/// other node.
const HEARTBEAT_LIMITS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

fn heartbeat_limit(request: &BlockRequest) -> Duration {
    match (request.urgency, request.role) {
        (Urgency::Stage, _) => HEARTBEAT_LIMITS.1,
        (Urgency::Read, Role::Holder) => PEER_SILENCE_TIMEOUT,
        _ => HEARTBEAT_LIMITS.0,
    }
}

/// The body of one response.
pub(super) struct ResponseBody {
    peers: Arc<Peers>,
    number: u64,
    peer: Arc<Member>,
    frames: Option<Frames>,
    /// Bytes of the range that are still to come.
    due: u64,
    /// The time for which the peer may still be silent, and the number of bytes that came since that was last set.
    left: Duration,
    fresh: u64,
    /// When the last [`MIN_PROGRESS_BYTES`] bytes arrived, and how long heartbeats may stand in for the next.
    since: Instant,
    heartbeat_limit: Duration,
}

impl ResponseBody {
    pub(super) fn new(
        peers: Arc<Peers>,
        number: u64,
        peer: Arc<Member>,
        request: &BlockRequest,
        frames: Frames,
    ) -> Self {
        Self {
            peers,
            number,
            peer,
            frames: Some(frames),
            due: request.range.end - request.range.start,
            left: PEER_SILENCE_TIMEOUT,
            fresh: 0,
            since: Instant::now(),
            heartbeat_limit: heartbeat_limit(request),
        }
    }

    /// The bytes of the range.
    pub(super) fn body(self) -> Body {
        stream::try_unfold(self, |mut this| async move {
            let bytes = this.next().await?;
            Ok(bytes.map(|bytes| (bytes, this)))
        })
        .boxed()
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.due > 0 {
            match self.receive().await.inspect_err(|error| self.record_error(error))? {
                Frame::Data(bytes) => return self.arrived(bytes).map(Some),
                Frame::Part => self.record_bytes(MIN_PROGRESS_BYTES),
                Frame::End => return Err(self.error(Kind::Unavailable, "cannot get the rest of the blocks")),
                Frame::Wait if self.since.elapsed() > self.heartbeat_limit => {
                    let error = self.error(Kind::Timeout, "has sent nothing but heartbeats for too long");
                    self.peers.record_failure(&self.peer, &error);
                    return Err(error);
                }
                Frame::Wait => self.record_alive(),
            }
        }
        Ok(None)
    }

    fn arrived(&mut self, bytes: Bytes) -> Result<Bytes> {
        let len = bytes.len() as u64;
        let Some(due) = self.due.checked_sub(len) else {
            self.peers.ban_for_corruption(&self.peer, "more bytes than requested");
            return Err(self.error(Kind::Corrupt, "sends more bytes than requested"));
        };
        self.due = due;
        self.record_bytes(len);
        if due == 0 {
            self.peers.backoffs.record_success(&self.peer.id);
        }
        Ok(bytes)
    }

    /// Waits for the next frame. Only that time counts: while no more is asked for, the peer can't send any.
    async fn receive(&mut self) -> Result<Frame> {
        let next = match &mut self.frames {
            Some(frames) => within(&mut self.left, frames.next()).await,
            None => Some(None),
        };
        match next {
            Some(Some(frame)) => frame.map_err(|e| e.context(format!("the peer {}", self.peer.id))),
            Some(None) => Err(self.error(Kind::Unavailable, "closed the connection early")),
            None => Err(self.error(Kind::Timeout, "stopped sending")),
        }
    }

    /// Records that so many bytes have arrived.
    fn record_bytes(&mut self, len: u64) {
        self.fresh += len;
        if self.fresh >= MIN_PROGRESS_BYTES {
            self.since = Instant::now();
            self.record_alive();
        }
    }

    /// Records a failed read.
    fn record_error(&self, error: &Error) {
        match error.kind() {
            Kind::Corrupt => self.peers.ban_for_corruption(&self.peer, "an invalid frame"),
            _ => self.peers.record_failure(&self.peer, error),
        }
    }

    /// Records a sign of life.
    fn record_alive(&mut self) {
        (self.left, self.fresh) = (PEER_SILENCE_TIMEOUT, 0);
        self.peers.backoffs.record_heard(&self.peer.id);
    }

    fn error(&self, kind: Kind, what: &str) -> Error {
        Error::new(kind, format!("the peer {} {what}", self.peer.id))
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.peers.in_flight().remove(&self.number);
        // The end of the response follows its last byte; only when it was read can the connection be used again.
        if let (0, Some(frames), Ok(runtime)) = (self.due, self.frames.take(), Handle::try_current()) {
            let (peers, peer) = (self.peers.clone(), self.peer.clone());
            runtime.spawn(async move {
                if timeout(PEER_SILENCE_TIMEOUT, ended(frames)).await == Ok(false) {
                    peers.ban_for_corruption(&peer, "more bytes than requested");
                }
            });
        }
    }
}

/// Whether nothing follows but the end of the response.
async fn ended(mut frames: Frames) -> bool {
    loop {
        match frames.next().await {
            Some(Ok(Frame::Data(_) | Frame::Part)) => return false,
            Some(Ok(Frame::Wait | Frame::End)) => {}
            Some(Err(error)) => return error.kind() != Kind::Corrupt,
            None => return true,
        }
    }
}
