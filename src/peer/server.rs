//! The server: what this node gives its peers.

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

use super::gossip::Letterbox;
use super::wire::{Ask, Frame, Frames, Reply};
use crate::error::Result;
use crate::tier::{Body, Urgency};

/// How many requests are answered at once: one holds little but a place, for the bytes under way have a limit of their
/// own. Of these, [`KEPT`] are not for staging.
const MOST: usize = 1024;
const KEPT: usize = MOST / 4;

/// When to come back if there are more.
const LATER: Duration = Duration::from_secs(1);

/// How often it is said that the bytes are on their way. A peer is given up after a second of silence.
const SIGN: Duration = Duration::from_millis(250);

/// How long that is said although nothing moves here. A mirror may take a moment for a first byte.
const HOPE: Duration = Duration::from_secs(3);

/// What a node has of one tenant's, and can get from the mirror.
pub trait Shelf: Send + Sync + fmt::Debug + 'static {
    /// What is asked for; `None` when it isn't here and may not, or can't, be fetched. Answers at once: what takes time
    /// comes with the body, which yields exactly the range or fails.
    ///
    /// # Errors
    /// Those of the local disk.
    fn lend<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Option<Body>>>;

    /// A number that grows with whatever arrives here or leaves: as long as it does, waiting makes sense.
    fn moved(&self) -> u64;
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// What its certificate says it is; `None` where there are none.
    pub id: Option<String>,
    /// The tenants that it may host, by its certificate; `None`: whoever can connect may host all.
    pub tenants: Option<Vec<String>>,
}

impl Caller {
    /// Somebody who needs no certificate.
    pub const ANYBODY: Self = Self { id: None, tenants: None };

    fn may_have(&self, tenant: &str) -> bool {
        self.tenants.as_ref().is_none_or(|tenants| tenants.iter().any(|t| t == tenant))
    }
}

/// Answers peers.
#[derive(Debug)]
pub struct Server {
    shelves: RwLock<HashMap<String, Arc<dyn Shelf>>>,
    slots: Arc<Semaphore>,
    sent: AtomicU64,
    letterbox: OnceLock<Letterbox>,
}

impl Default for Server {
    fn default() -> Self {
        let (shelves, sent, letterbox) = Default::default();
        Self { shelves, slots: Arc::new(Semaphore::new(MOST)), sent, letterbox }
    }
}

impl Server {
    /// From now on, what belongs to `tenant` is taken from `shelf`.
    pub fn host(&self, tenant: &str, shelf: Arc<dyn Shelf>) {
        self.shelves.write().insert(tenant.into(), shelf);
    }

    /// From now on, nothing that belongs to `tenant` is given to anybody.
    pub fn turn_out(&self, tenant: &str) {
        self.shelves.write().remove(tenant);
    }

    /// From now on, letters from other members are put there. Once.
    pub fn take_letters(&self, letterbox: Letterbox) {
        self.letterbox.set(letterbox).ok();
    }

    /// Where letters are put, if anywhere.
    pub(super) fn letterbox(&self) -> Option<&Letterbox> {
        self.letterbox.get()
    }

    /// How many answers are under way.
    pub fn busy(&self) -> usize {
        MOST - self.slots.available_permits()
    }

    /// Bytes that were given to peers.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Answers `ask`. Whether something is there is looked up only for who may have it: nobody else learns it, not even
    /// from how long the answer takes.
    pub async fn answer(self: &Arc<Self>, caller: &Caller, ask: Ask) -> Reply {
        let shelf = || self.shelves.read().get(&ask.tenant).cloned();
        let Some(shelf) = caller.may_have(&ask.tenant).then(shelf).flatten() else { return Reply::Miss };
        let Some(slot) = self.slot(ask.urgency) else { return Reply::Busy(LATER) };
        match shelf.lend(&ask).await {
            Ok(Some(body)) => Reply::Frames(self.frames(shelf, body, slot)),
            Ok(None) => Reply::Miss,
            Err(error) => {
                tracing::warn!(%error, "cannot serve a peer");
                Reply::Miss
            }
        }
    }

    fn slot(&self, urgency: Urgency) -> Option<OwnedSemaphorePermit> {
        if urgency == Urgency::Stage && self.slots.available_permits() <= KEPT {
            return None;
        }
        self.slots.clone().try_acquire_owned().ok()
    }

    fn frames(self: &Arc<Self>, shelf: Arc<dyn Shelf>, body: Body, slot: OwnedSemaphorePermit) -> Frames {
        let sending = Sending::new(self.clone(), shelf, body, slot);
        stream::unfold(Some(sending), |sending| async {
            let mut sending = sending?;
            let frame = sending.next().await?;
            let more = (frame != Frame::End).then_some(sending);
            Some((Ok(frame), more))
        })
        .boxed()
    }
}

/// One answer under way.
struct Sending {
    server: Arc<Server>,
    shelf: Arc<dyn Shelf>,
    body: Body,
    signs: Interval,
    /// What [`Shelf::moved`] last was, and since when.
    moved: (u64, Instant),
    _slot: OwnedSemaphorePermit,
}

impl Sending {
    fn new(server: Arc<Server>, shelf: Arc<dyn Shelf>, body: Body, slot: OwnedSemaphorePermit) -> Self {
        let mut signs = interval(SIGN);
        signs.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once: the answer itself is the first sign.
        signs.reset();
        let moved = (shelf.moved(), Instant::now());
        Self { server, shelf, body, signs, moved, _slot: slot }
    }

    /// The next frame; `None` when all was sent.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            tokio::select! {
                biased;
                piece = self.body.next() => return match piece? {
                    Ok(bytes) => {
                        self.server.sent.fetch_add(bytes.len() as u64, Relaxed);
                        self.signs.reset();
                        Some(Frame::Data(bytes))
                    }
                    Err(error) => {
                        tracing::debug!(%error, "a peer is told to look elsewhere");
                        Some(Frame::End)
                    }
                },
                _ = self.signs.tick() => if self.is_hopeful() {
                    return Some(Frame::Wait);
                },
            }
        }
    }

    /// Whether anything moved lately.
    fn is_hopeful(&mut self) -> bool {
        let (moved, now) = (self.shelf.moved(), Instant::now());
        if moved != self.moved.0 {
            self.moved = (moved, now);
        }
        now.duration_since(self.moved.1) < HOPE
    }
}
