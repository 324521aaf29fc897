//! The server: serves this node's blocks to its peers.

pub mod listener;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use parking_lot::RwLock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::identity::Caller;
use super::membership::gossip::GossipSender;
use super::wire::{BlockRequest, BlockResponse, Frame, Frames};
use crate::error::Result;
use crate::tier::{Body, Urgency};

/// The number of responses that may be sent at once: one holds little memory, for the bytes in flight have a limit of their own. Of
/// these, [`READER_SLOTS`] are not for staging.
const MAX_RESPONSES: usize = 1024;
const READER_SLOTS: usize = MAX_RESPONSES / 4;

/// When a peer may retry if there are more.
const BUSY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The interval of heartbeats while there are no bytes to send. A peer is given up after a second of silence.
const PEER_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);

/// The time for which heartbeats are sent although this node makes no progress. A mirror may take a moment for a first byte.
const STALL_LIMIT: Duration = Duration::from_secs(3);

/// Provides the blocks of one tenant that a node has, or can fetch from the mirror.
pub trait BlockProvider: Send + Sync + fmt::Debug + 'static {
    /// The requested range; `None` when the node does not have it and may not, or can't, fetch it. Returns at once: what takes
    /// time comes with the body, which yields exactly the range or fails.
    ///
    /// # Errors
    /// Those of the local disk.
    fn provide<'a>(&'a self, request: &'a BlockRequest) -> BoxFuture<'a, Result<Option<Body>>>;

    /// A number that grows with whatever this node receives or sends: as long as it does, peers should wait.
    fn progress(&self) -> u64;
}

/// Responds to the requests of peers.
#[derive(Debug)]
pub struct PeerServer {
    providers: RwLock<HashMap<String, Arc<dyn BlockProvider>>>,
    slots: Arc<Semaphore>,
    sent: AtomicU64,
    gossip_sender: OnceLock<GossipSender>,
}

impl Default for PeerServer {
    fn default() -> Self {
        let (providers, sent, gossip_sender) = Default::default();
        Self { providers, slots: Arc::new(Semaphore::new(MAX_RESPONSES)), sent, gossip_sender }
    }
}

impl PeerServer {
    /// Serves the blocks of `tenant` from `provider` from now on.
    pub fn host(&self, tenant: &str, provider: Arc<dyn BlockProvider>) {
        self.providers.write().insert(tenant.into(), provider);
    }

    /// Serves no blocks of `tenant` any more.
    pub fn stop_hosting(&self, tenant: &str) {
        self.providers.write().remove(tenant);
    }

    /// Sends incoming gossip messages there from now on. To be called once.
    pub fn set_gossip_sender(&self, sender: GossipSender) {
        self.gossip_sender.set(sender).ok();
    }

    /// The queue of incoming gossip messages, if there is one.
    pub(super) fn gossip_sender(&self) -> Option<&GossipSender> {
        self.gossip_sender.get()
    }

    /// Returns the number of responses that are being sent.
    pub fn busy(&self) -> usize {
        MAX_RESPONSES - self.slots.available_permits()
    }

    /// Bytes that were sent to peers.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Responds to `request`. The blob is looked up only for a caller that may have it: no other learns whether it exists,
    /// not even from the time that the response takes.
    pub async fn answer(self: &Arc<Self>, caller: &Caller, request: BlockRequest) -> BlockResponse {
        let provider = || self.providers.read().get(&request.tenant).cloned();
        let Some(provider) = caller.may_have(&request.tenant).then(provider).flatten() else {
            return BlockResponse::Miss;
        };
        let Some(slot) = self.slot(request.urgency) else { return BlockResponse::Busy(BUSY_RETRY_AFTER) };
        match provider.provide(&request).await {
            Ok(Some(body)) => BlockResponse::Frames(self.frames(provider, body, slot)),
            Ok(None) => BlockResponse::Miss,
            Err(error) => {
                tracing::warn!(%error, "cannot serve a peer's request");
                BlockResponse::Miss
            }
        }
    }

    fn slot(&self, urgency: Urgency) -> Option<OwnedSemaphorePermit> {
        if urgency == Urgency::Stage && self.slots.available_permits() <= READER_SLOTS {
            return None;
        }
        self.slots.clone().try_acquire_owned().ok()
    }

    fn frames(
        self: &Arc<Self>,
        provider: Arc<dyn BlockProvider>,
        body: Body,
        slot: OwnedSemaphorePermit,
    ) -> Frames {
        let sending = ResponseFrames::new(self.clone(), provider, body, slot);
        stream::unfold(Some(sending), |sending| async {
            let mut sending = sending?;
            let frame = sending.next().await?;
            let more = (frame != Frame::End).then_some(sending);
            Some((Ok(frame), more))
        })
        .boxed()
    }
}

/// One response that is being sent.
struct ResponseFrames {
    server: Arc<PeerServer>,
    provider: Arc<dyn BlockProvider>,
    body: Body,
    heartbeats: Interval,
    /// The last value of [`BlockProvider::progress`], and since when.
    progress: (u64, Instant),
    _slot: OwnedSemaphorePermit,
}

impl ResponseFrames {
    fn new(
        server: Arc<PeerServer>,
        provider: Arc<dyn BlockProvider>,
        body: Body,
        slot: OwnedSemaphorePermit,
    ) -> Self {
        let mut heartbeats = interval(PEER_HEARTBEAT_INTERVAL);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once, and not needed: the head of the response is a sign of life.
        heartbeats.reset();
        let progress = (provider.progress(), Instant::now());
        Self { server, provider, body, heartbeats, progress, _slot: slot }
    }

    /// The next frame; `None` when all was sent.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            tokio::select! {
                biased;
                piece = self.body.next() => return match piece? {
                    Ok(bytes) => {
                        self.server.sent.fetch_add(bytes.len() as u64, Relaxed);
                        self.heartbeats.reset();
                        Some(Frame::Data(bytes))
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot send the rest of a response to a peer");
                        Some(Frame::End)
                    }
                },
                _ = self.heartbeats.tick() => if self.makes_progress() {
                    return Some(Frame::Wait);
                },
            }
        }
    }

    /// Whether this node has made progress recently.
    fn makes_progress(&mut self) -> bool {
        let (progress, now) = (self.provider.progress(), Instant::now());
        if progress != self.progress.0 {
            self.progress = (progress, now);
        }
        now.duration_since(self.progress.1) < STALL_LIMIT
    }
}
