//! The client: peers as tiers of a snapshot's ladder.

mod calm;
mod holder;
mod incoming;
mod placement;
mod search;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::health::{Health, Standing};
use super::members::Members;
use super::patience::within;
use super::rank::{self, Group};
use super::wire::{Ask, Reply, Role};
use super::{Member, PROTOCOL, token};
use crate::blob::{Blob, Key};
use crate::block::BLOCK;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::placement::ClusterTier;
use crate::tier::{Body, Tier, TierKind, Urgency};

pub use holder::{Holder, held};
use incoming::Incoming;
use search::Search;

/// How long a peer may take to answer, the connection included (DESIGN, section 6). It answers at once or is out of order:
/// what takes time comes behind the answer.
pub const ANSWER: Duration = Duration::from_secs(1);

/// How often staging asks again where it was told to come back later. A reader goes on to the next tier.
const BUSY_TRIES: u32 = 3;

/// Brings requests to peers, and the answers back.
pub trait Link: Send + Sync + fmt::Debug + 'static {
    /// Asks `peer`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when it can't be reached or does not say what a peer would.
    fn ask<'a>(&'a self, peer: &'a Member, ask: &'a Ask) -> BoxFuture<'a, Result<Reply>>;
}

/// The cluster in the eyes of this node.
#[derive(Debug)]
pub struct Peers {
    me: Member,
    members: Arc<dyn Members>,
    link: Arc<dyn Link>,
    health: Health,
    /// Who was asked for what, as long as it is under way: whom to blame for wrong bytes. One for each flight.
    asked: Mutex<HashMap<u64, Asked>>,
    figures: Counts,
    /// The snapshots that this node has all of, the newest last.
    holds: Mutex<Vec<u64>>,
    /// Until when it is not waited for calm, because that was in vain.
    tired: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Asked {
    place: Place,
    blob: Digest,
    range: Range<u64>,
    peer: Arc<Member>,
}

/// What was counted of a node's requests to its peers, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// Requests that were made.
    pub asked: u64,
    /// Those that were answered with what isn't there.
    pub missed: u64,
    /// Those that were answered with a later time.
    pub busy: u64,
    /// Those that failed: no answer, or one that broke off.
    pub failed: u64,
    /// How often a peer was banned for wrong bytes.
    pub bans: u64,
}

#[derive(Debug, Default)]
struct Counts {
    next: AtomicU64,
    missed: AtomicU64,
    busy: AtomicU64,
    failed: AtomicU64,
    bans: AtomicU64,
}

/// Whom a tier stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Somebody who has all of the snapshot.
    Holder,
    /// The first owner, 0, or the second, 1.
    Owner(usize),
    /// The one that was the first owner and is about to leave, asked by the one who is it now.
    Leaver,
}

impl Place {
    fn is_owner(self) -> bool {
        matches!(self, Place::Owner(_))
    }
}

/// One place among the peers, as a tier of one snapshot's ladder.
#[derive(Debug)]
struct Seat {
    peers: Arc<Peers>,
    place: Place,
    tenant: String,
    snapshot: Digest,
}

impl Peers {
    /// The peers of the node `me` among `members`, asked over `link`.
    pub fn new(me: Member, members: Arc<dyn Members>, link: Arc<dyn Link>) -> Arc<Self> {
        let (health, asked, figures, holds, tired) = Default::default();
        Arc::new(Self { me, members, link, health, asked, figures, holds, tired })
    }

    /// Who is there.
    pub fn members(&self) -> Arc<[Arc<Member>]> {
        self.members.live()
    }

    /// Who is banned for wrong bytes.
    pub fn banned(&self) -> Vec<String> {
        self.health.banned()
    }

    /// How the member `id` is doing, in the eyes of this node.
    pub fn standing(&self, id: &str) -> Standing {
        self.health.standing(id)
    }

    /// This node, as it announced itself at first.
    pub fn me(&self) -> &Member {
        &self.me
    }

    /// What was counted up to now.
    pub fn figures(&self) -> Figures {
        let Counts { next, missed, busy, failed, bans } = &self.figures;
        let [asked, missed, busy, failed, bans] = [next, missed, busy, failed, bans].map(|n| n.load(Relaxed));
        Figures { asked, missed, busy, failed, bans }
    }

    /// Those that can own what belongs to `tenant`, this node among them, also those that are about to leave.
    fn able(&self, tenant: &str) -> Vec<Arc<Member>> {
        let tenant = token(&[tenant.as_bytes()]);
        let fit = |m: &&Arc<Member>| m.protocol == PROTOCOL && m.hosts(tenant);
        self.members.live().iter().filter(fit).cloned().collect()
    }

    /// Those that pass for owners of what belongs to `tenant`, this node among them: all, and those that are well.
    fn owners(&self, tenant: &str) -> (Vec<Arc<Member>>, Vec<Arc<Member>>) {
        let mut all = self.able(tenant);
        all.retain(|m| !m.draining);
        let well = all.iter().filter(|m| self.is_well(m)).cloned().collect();
        (all, well)
    }

    fn is_well(&self, member: &Member) -> bool {
        let back = || {
            self.members.roll().since(&member.id).is_some_and(|back| self.health.is_back(&member.id, back))
        };
        member.id == self.me.id || self.health.is_well(&member.id) || back()
    }

    /// Whether `member` is no more to be asked: others have noticed, too, or not yet.
    fn is_lost(&self, member: &Member) -> bool {
        !self.is_well(member) || self.members.roll().since(&member.id).is_none()
    }

    /// Whom `place` stands for now; `None`: nobody, or this node itself.
    fn choose(&self, place: Place, group: Group, tenant: &str, snapshot: &Digest) -> Option<Arc<Member>> {
        let chosen = match place {
            Place::Owner(nth) => {
                let (all, well) = self.owners(tenant);
                let [top, _] = rank::owners(group, &all);
                let [first, second] = rank::owners(group, &well);
                // When the first has just been lost, all turn to the same one: whom those who come later take for the first.
                let lost = top.is_some_and(|top| !self.is_well(top));
                if nth == 0 || lost { first.cloned() } else { second.cloned() }
            }
            Place::Leaver => {
                let mut able = self.able(tenant);
                able.retain(|m| self.is_well(m));
                let [before, _] = rank::owners(group, &able);
                // Whoever else lacks it turns to the new owner, and so do those that leave.
                before.filter(|before| before.draining && self.owns(group, tenant)).cloned()
            }
            Place::Holder => {
                let held = held(tenant, snapshot);
                let live = self.members.live();
                let fit =
                    |m: &&Arc<Member>| m.protocol == PROTOCOL && m.holds.contains(&held) && self.is_well(m);
                let holders: Vec<_> = live.iter().filter(fit).collect();
                rank::holder(group, &self.me, &holders).cloned()
            }
        };
        chosen.filter(|peer| peer.id != self.me.id)
    }

    /// Whether it is this node that others turn to for `group`.
    fn owns(&self, group: Group, tenant: &str) -> bool {
        let (_, well) = self.owners(tenant);
        let [first, _] = rank::owners(group, &well);
        first.is_none_or(|first| first.id == self.me.id)
    }

    /// Notes a request that did not end well.
    fn silent(&self, peer: &Member, error: &Error) {
        self.figures.failed.fetch_add(1, Relaxed);
        if error.kind() == Kind::Timeout && self.health.is_busy(&peer.id) {
            return tracing::debug!(peer = %peer.id, %error, "a busy peer is not waited for");
        }
        if self.health.silent(&peer.id) {
            tracing::warn!(peer = %peer.id, %error, "a peer does not answer: it is left alone for a while");
            let live = self.members.live();
            self.health.forget(|id| live.iter().any(|m| m.id == id));
        }
    }

    /// Bans a peer.
    fn lied(&self, peer: &Member, what: &str) {
        self.figures.bans.fetch_add(1, Relaxed);
        self.health.lied(&peer.id);
        let (id, address) = (&peer.id, peer.address);
        tracing::warn!("the peer {id} at {address} sent {what}: it is not asked for 5 minutes");
    }

    async fn ask(self: &Arc<Self>, place: Place, peer: Arc<Member>, ask: Ask) -> Result<Option<Body>> {
        let mut tries = 0;
        loop {
            let number = self.figures.next.fetch_add(1, Relaxed);
            let late = || Error::new(Kind::Timeout, format!("the peer {} did not answer", peer.id));
            let asked = within(&mut ANSWER.clone(), self.link.ask(&peer, &ask)).await;
            let asked =
                asked.unwrap_or_else(|| Err(late())).inspect_err(|error| self.silent(&peer, error))?;
            self.health.heard(&peer.id);
            match asked {
                Reply::Miss => {
                    self.figures.missed.fetch_add(1, Relaxed);
                    return Ok(None);
                }
                Reply::Busy(wait) => {
                    self.figures.busy.fetch_add(1, Relaxed);
                    tries += 1;
                    if ask.urgency > Urgency::Stage || tries == BUSY_TRIES {
                        return Err(Error::new(Kind::Unavailable, format!("the peer {} is busy", peer.id)));
                    }
                    tokio::time::sleep(wait.min(ANSWER)).await;
                }
                Reply::Frames(frames) => {
                    let asked = Asked { place, blob: ask.blob, range: ask.range.clone(), peer: peer.clone() };
                    self.asked().insert(number, asked);
                    return Ok(Some(Incoming::new(self.clone(), number, peer, &ask, frames).body()));
                }
            }
        }
    }

    /// How many answers of others are under way.
    pub fn under_way(&self) -> usize {
        self.asked().len()
    }

    /// Of how many others something is remembered.
    pub fn remembered(&self) -> usize {
        self.health.remembered()
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<u64, Asked>> {
        // Each change is one statement.
        self.asked.lock()
    }
}

impl Tier for Seat {
    fn kind(&self) -> TierKind {
        TierKind::Peer
    }

    /// What can be held against checks that are known beforehand, and nothing else. Who owns the first byte is asked for
    /// all of the range.
    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            let (Key::Content(digest), Some(_)) = (blob.key, &blob.checks) else { return Ok(None) };
            let group = Group::of(&self.tenant, &digest, blob.size, range.start / BLOCK);
            let role = match self.place {
                Place::Holder => Role::Holder,
                Place::Owner(_) => Role::Owner,
                Place::Leaver => Role::Leaver,
            };
            let (tenant, snapshot, size) = (self.tenant.clone(), self.snapshot, blob.size);
            let ask = Ask { tenant, snapshot, blob: digest, size, range, role, urgency };
            let (peers, place) = (self.peers.clone(), self.place);
            Search { peers, place, group, ask, begin: Instant::now() }.body().await
        }
        .boxed()
    }

    fn locate(&self, blob: &Blob) -> String {
        format!("a peer's blob {}", blob.key)
    }
}

impl ClusterTier for Seat {
    fn is_owner(&self) -> bool {
        self.place.is_owner()
    }

    fn report_corruption(&self, blob: &Blob, index: u64) {
        let Key::Content(digest) = blob.key else { return };
        let sent = |asked: &&Asked| {
            asked.place == self.place && asked.blob == digest && asked.range.contains(&(index * BLOCK))
        };
        let liar = self.peers.asked().values().find(sent).map(|asked| asked.peer.clone());
        if let Some(liar) = liar {
            self.peers.lied(&liar, &format!("wrong bytes as block {index} of {blob}"));
        }
    }
}
