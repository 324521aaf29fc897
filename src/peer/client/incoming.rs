//! What a peer sends, as it arrives.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use super::Peers;
use crate::error::{Error, Kind, Result};
use crate::peer::Member;
use crate::peer::patience::within;
use crate::peer::wire::{Ask, Frame, Frames, PART, Role};
use crate::tier::{Body, Urgency};

/// How long a peer may be silent, and how long it may take for the next [`LEAST`] bytes once it sends.
const SILENCE: Duration = Duration::from_secs(1);

/// What makes a second count as sending. A hundred streams that share a link of 100 Mbit/s still make it.
const LEAST: u64 = PART as u64;

/// How long the next bytes may be on their way, whatever the peer says. A reader has turned to other tiers by then, too, but
/// some more may come to wait for the same; a stage has more time, for all nodes wait for the mirror's link when they stage at
/// once. Who has all of it waits for nobody, and has others waiting at most for its own link.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

fn patience(ask: &Ask) -> Duration {
    match (ask.urgency, ask.role) {
        (Urgency::Stage, _) => PATIENCE.1,
        (Urgency::Read, Role::Holder) => SILENCE,
        _ => PATIENCE.0,
    }
}

/// One answer under way.
pub(super) struct Incoming {
    peers: Arc<Peers>,
    number: u64,
    peer: Arc<Member>,
    frames: Option<Frames>,
    /// Bytes of the range that are still to come.
    due: u64,
    /// How much longer the peer may be silent, and how many bytes came since that was last set.
    left: Duration,
    fresh: u64,
    /// When the last [`LEAST`] bytes arrived, and how long the next may take.
    since: Instant,
    patience: Duration,
}

impl Incoming {
    pub(super) fn new(peers: Arc<Peers>, number: u64, peer: Arc<Member>, ask: &Ask, frames: Frames) -> Self {
        Self {
            peers,
            number,
            peer,
            frames: Some(frames),
            due: ask.range.end - ask.range.start,
            left: SILENCE,
            fresh: 0,
            since: Instant::now(),
            patience: patience(ask),
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
            match self.receive().await.inspect_err(|error| self.blame(error))? {
                Frame::Data(bytes) => return self.arrived(bytes).map(Some),
                Frame::Part => self.moved(LEAST),
                Frame::End => return Err(self.error(Kind::Unavailable, "can't get the rest of it")),
                Frame::Wait if self.since.elapsed() > self.patience => {
                    let error = self.error(Kind::Timeout, "has been waiting for too long");
                    self.peers.silent(&self.peer, &error);
                    return Err(error);
                }
                Frame::Wait => self.heard(),
            }
        }
        Ok(None)
    }

    fn arrived(&mut self, bytes: Bytes) -> Result<Bytes> {
        let len = bytes.len() as u64;
        let Some(due) = self.due.checked_sub(len) else {
            self.peers.lied(&self.peer, "more than it was asked for");
            return Err(self.error(Kind::Corrupt, "sends more than it was asked for"));
        };
        self.due = due;
        self.moved(len);
        if due == 0 {
            self.peers.health.did_well(&self.peer.id);
        }
        Ok(bytes)
    }

    /// Waits for the next frame. Only that time counts: while nobody asks for more, the peer can't send any.
    async fn receive(&mut self) -> Result<Frame> {
        let next = match &mut self.frames {
            Some(frames) => within(&mut self.left, frames.next()).await,
            None => Some(None),
        };
        match next {
            Some(Some(frame)) => frame.map_err(|e| e.within(format!("the peer {}", self.peer.id))),
            Some(None) => Err(self.error(Kind::Unavailable, "broke off")),
            None => Err(self.error(Kind::Timeout, "stopped sending")),
        }
    }

    /// Notes that so many bytes have come.
    fn moved(&mut self, len: u64) {
        self.fresh += len;
        if self.fresh >= LEAST {
            self.since = Instant::now();
            self.heard();
        }
    }

    /// Notes that nothing came, or what is no answer.
    fn blame(&self, error: &Error) {
        match error.kind() {
            Kind::Corrupt => self.peers.lied(&self.peer, "what is no frame"),
            _ => self.peers.silent(&self.peer, error),
        }
    }

    /// Notes that the peer is there and gets on.
    fn heard(&mut self) {
        (self.left, self.fresh) = (SILENCE, 0);
        self.peers.health.heard(&self.peer.id);
    }

    fn error(&self, kind: Kind, what: &str) -> Error {
        Error::new(kind, format!("the peer {} {what}", self.peer.id))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.peers.asked().remove(&self.number);
        // The end of the answer follows its last byte, and only who has read it can use the connection again.
        if let (0, Some(frames), Ok(runtime)) = (self.due, self.frames.take(), Handle::try_current()) {
            let (peers, peer) = (self.peers.clone(), self.peer.clone());
            runtime.spawn(async move {
                if timeout(SILENCE, ended(frames)).await == Ok(false) {
                    peers.lied(&peer, "more than it was asked for");
                }
            });
        }
    }
}

/// Whether nothing comes any more but the end of the answer.
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
