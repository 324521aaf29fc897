//! The client: peers as tiers of a snapshot's ladder.

mod connection;
mod frame_reader;
pub mod http;
mod owner_search;
mod pool;
mod response_body;
mod snapshot_placement;
mod stability;

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

use super::backoff::{BackoffTable, PeerState};
use super::membership::Membership;
use super::rendezvous::{self, BlockGroup};
use super::wire::{BlockRequest, BlockResponse, Role};
use super::{Member, PROTOCOL, token};
use crate::backoff::jittered;
use crate::blob::{Blob, Key};
use crate::block::BLOCK;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::placement::ClusterTier;
use crate::tier::{Body, Tier, TierKind, Urgency};
use crate::timeout::within;

use owner_search::OwnerSearch;
use response_body::ResponseBody;

/// The time in which a peer must respond, including to connect. A peer that works responds at once: what takes time comes with the
/// body.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of times that staging asks a busy peer. A reader goes on to the next tier.
const BUSY_RETRY_LIMIT: u32 = 3;

/// The token that the snapshot `snapshot` of `tenant` is announced as.
pub fn snapshot_token(tenant: &str, snapshot: &Digest) -> u64 {
    token(&[tenant.as_bytes(), &snapshot.0])
}

/// Sends requests to peers.
pub trait PeerClient: Send + Sync + fmt::Debug + 'static {
    /// Sends one request to `peer`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when it can't be reached, or its response can't be understood.
    fn request<'a>(
        &'a self,
        peer: &'a Member,
        request: &'a BlockRequest,
    ) -> BoxFuture<'a, Result<BlockResponse>>;
}

/// The other nodes of the cluster, as this node sees them.
#[derive(Debug)]
pub struct Peers {
    me: Member,
    members: Arc<dyn Membership>,
    client: Arc<dyn PeerClient>,
    backoffs: BackoffTable,
    /// The requests in flight by number: they say which peer sent wrong bytes.
    in_flight: Mutex<HashMap<u64, InFlightRequest>>,
    counters: PeerCounters,
    /// Until when stages don't wait for a stable membership, since the last wait timed out.
    unstable_until: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct InFlightRequest {
    candidate: Candidate,
    blob: Digest,
    range: Range<u64>,
    peer: Arc<Member>,
}

/// Counters of this node's requests to peers, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PeerStats {
    /// Requests that were sent.
    pub asked: u64,
    /// Requests for blocks that the peer does not have.
    pub missed: u64,
    /// Requests to a peer that was busy.
    pub busy: u64,
    /// Requests that failed: no response, or one that ended early.
    pub failed: u64,
    /// The number of times that a peer was banned for wrong bytes.
    pub bans: u64,
}

#[derive(Debug, Default)]
struct PeerCounters {
    next: AtomicU64,
    missed: AtomicU64,
    busy: AtomicU64,
    failed: AtomicU64,
    bans: AtomicU64,
}

/// The candidate for a request: which peer a tier stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidate {
    /// A peer that has all of the snapshot.
    Holder,
    /// The first owner, 0, or the second, 1.
    Owner(usize),
    /// The draining node that was the first owner before; only the first owner of now asks it.
    Draining,
}

impl Candidate {
    fn is_owner(self) -> bool {
        matches!(self, Candidate::Owner(_))
    }
}

/// One candidate among the peers, as a tier of one snapshot's ladder.
#[derive(Debug)]
struct PeerTier {
    peers: Arc<Peers>,
    candidate: Candidate,
    tenant: String,
    snapshot: Digest,
}

impl Peers {
    /// The peers of the node `me` among `members`.
    pub fn new(me: Member, members: Arc<dyn Membership>, client: Arc<dyn PeerClient>) -> Arc<Self> {
        let (backoffs, in_flight, counters, unstable_until) = Default::default();
        Arc::new(Self { me, members, client, backoffs, in_flight, counters, unstable_until })
    }

    /// The live members, this node among them.
    pub fn members(&self) -> Arc<[Arc<Member>]> {
        self.members.live()
    }

    /// Announces to all members that this node has all of the snapshots with these [tokens](snapshot_token), and of no others.
    pub fn announce(&self, snapshots: Vec<u64>) {
        self.members.announce(snapshots);
    }

    /// The ids of the members that are banned for wrong bytes.
    pub fn banned(&self) -> Vec<String> {
        self.backoffs.banned()
    }

    /// Whether requests are sent to the member `id`.
    pub fn state_of(&self, id: &str) -> PeerState {
        self.backoffs.state_of(id)
    }

    /// The member that this node announced itself as when it started.
    pub fn local_member(&self) -> &Member {
        &self.me
    }

    /// The counters.
    pub fn stats(&self) -> PeerStats {
        let PeerCounters { next, missed, busy, failed, bans } = &self.counters;
        let [asked, missed, busy, failed, bans] = [next, missed, busy, failed, bans].map(|n| n.load(Relaxed));
        PeerStats { asked, missed, busy, failed, bans }
    }

    /// The members that host `tenant`, this node among them; draining ones, too.
    fn hosting_members(&self, tenant: &str) -> Vec<Arc<Member>> {
        let tenant = token(&[tenant.as_bytes()]);
        let is_eligible = |m: &&Arc<Member>| m.protocol == PROTOCOL && m.hosts(tenant);
        self.members.live().iter().filter(is_eligible).cloned().collect()
    }

    /// The members that may own blocks of `tenant`, this node among them: all, and those that are available.
    fn owners(&self, tenant: &str) -> (Vec<Arc<Member>>, Vec<Arc<Member>>) {
        let mut all = self.hosting_members(tenant);
        all.retain(|m| !m.draining);
        let available = all.iter().filter(|m| self.is_available(m)).cloned().collect();
        (all, available)
    }

    fn is_available(&self, member: &Member) -> bool {
        let has_rejoined = || {
            self.members
                .view()
                .since(&member.id)
                .is_some_and(|back| self.backoffs.forgive_if_rejoined(&member.id, back))
        };
        member.id == self.me.id || self.backoffs.is_available(&member.id) || has_rejoined()
    }

    /// Whether `member` was lost: it does not respond, or gossip has removed it.
    fn is_lost(&self, member: &Member) -> bool {
        !self.is_available(member) || self.members.view().since(&member.id).is_none()
    }

    /// The peer that the candidate `candidate` stands for now; `None`: there is none, or it is this node.
    fn choose(
        &self,
        candidate: Candidate,
        group: BlockGroup,
        tenant: &str,
        snapshot: &Digest,
    ) -> Option<Arc<Member>> {
        let chosen = match candidate {
            Candidate::Owner(nth) => {
                let (all, available) = self.owners(tenant);
                let [top, _] = rendezvous::owners(group, &all);
                let [first, second] = rendezvous::owners(group, &available);
                // When the first was just lost, all nodes ask the one that will be the first owner.
                let lost = top.is_some_and(|top| !self.is_available(top));
                if nth == 0 || lost { first.cloned() } else { second.cloned() }
            }
            Candidate::Draining => {
                let mut hosting = self.hosting_members(tenant);
                hosting.retain(|m| self.is_available(m));
                let [before, _] = rendezvous::owners(group, &hosting);
                // All other nodes ask the new owner, and so do draining ones.
                before.filter(|before| before.draining && self.owns(group, tenant)).cloned()
            }
            Candidate::Holder => {
                let held = snapshot_token(tenant, snapshot);
                let live = self.members.live();
                let is_eligible = |m: &&Arc<Member>| {
                    m.protocol == PROTOCOL && m.holds.contains(&held) && self.is_available(m)
                };
                let holders: Vec<_> = live.iter().filter(is_eligible).collect();
                rendezvous::choose_source_peer(group, &self.me, &holders).cloned()
            }
        };
        chosen.filter(|peer| peer.id != self.me.id)
    }

    /// Whether this node is the first owner of `group`.
    fn owns(&self, group: BlockGroup, tenant: &str) -> bool {
        let (_, available) = self.owners(tenant);
        let [first, _] = rendezvous::owners(group, &available);
        first.is_none_or(|first| first.id == self.me.id)
    }

    /// Records a failed request.
    fn record_failure(&self, peer: &Member, error: &Error) {
        self.counters.failed.fetch_add(1, Relaxed);
        if error.kind() == Kind::Timeout && self.backoffs.is_busy(&peer.id) {
            return tracing::debug!(peer = %peer.id, %error, "a busy peer is too slow for one request");
        }
        if self.backoffs.record_failure(&peer.id) {
            tracing::warn!(peer = %peer.id, %error, "a peer does not respond; backing off");
            let live = self.members.live();
            self.backoffs.retain(|id| live.iter().any(|m| m.id == id));
        }
    }

    /// Bans a peer that sent `what`.
    fn ban_for_corruption(&self, peer: &Member, what: &str) {
        self.counters.bans.fetch_add(1, Relaxed);
        self.backoffs.ban_for_corruption(&peer.id);
        let (id, address) = (&peer.id, peer.address);
        tracing::warn!("the peer {id} at {address} sent {what}; banned for 5 minutes");
    }

    async fn send_request(
        self: &Arc<Self>,
        candidate: Candidate,
        peer: Arc<Member>,
        request: BlockRequest,
    ) -> Result<Option<Body>> {
        let mut tries = 0;
        loop {
            let number = self.counters.next.fetch_add(1, Relaxed);
            let timed_out = || {
                Error::new(
                    Kind::Timeout,
                    format!("the peer {} did not respond within {RESPONSE_TIMEOUT:?}", peer.id),
                )
            };
            let response = within(RESPONSE_TIMEOUT, self.client.request(&peer, &request)).await;
            let response = response
                .unwrap_or_else(|| Err(timed_out()))
                .inspect_err(|error| self.record_failure(&peer, error))?;
            self.backoffs.record_heard(&peer.id);
            match response {
                BlockResponse::Miss => {
                    self.counters.missed.fetch_add(1, Relaxed);
                    return Ok(None);
                }
                BlockResponse::Busy(wait) => {
                    self.counters.busy.fetch_add(1, Relaxed);
                    tries += 1;
                    if request.urgency > Urgency::Stage || tries == BUSY_RETRY_LIMIT {
                        return Err(Error::new(Kind::Unavailable, format!("the peer {} is busy", peer.id)));
                    }
                    // The others that it has sent away come back at other times.
                    tokio::time::sleep(jittered(2 * wait.min(RESPONSE_TIMEOUT))).await;
                }
                BlockResponse::Frames(frames) => {
                    let sent = InFlightRequest {
                        candidate,
                        blob: request.blob,
                        range: request.range.clone(),
                        peer: peer.clone(),
                    };
                    self.in_flight().insert(number, sent);
                    return Ok(Some(ResponseBody::new(self.clone(), number, peer, &request, frames).body()));
                }
            }
        }
    }

    /// Returns the number of requests to peers that are in flight.
    pub fn requests_in_flight(&self) -> usize {
        self.in_flight().len()
    }

    /// Returns the number of peers that have an entry in the tables of backoffs and activity.
    pub fn tracked_peers(&self) -> usize {
        self.backoffs.tracked_peers()
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<u64, InFlightRequest>> {
        // Each change is one statement.
        self.in_flight.lock()
    }
}

impl Tier for PeerTier {
    fn kind(&self) -> TierKind {
        TierKind::Peer
    }

    /// Asks only for blobs whose checks are known beforehand. The owner of the first byte is asked for all of the range.
    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            let (Key::Content(digest), Some(_)) = (blob.key, &blob.checks) else { return Ok(None) };
            let group = BlockGroup::of(&self.tenant, &digest, blob.size, range.start / BLOCK);
            let role = match self.candidate {
                Candidate::Holder => Role::Holder,
                Candidate::Owner(_) => Role::Owner,
                Candidate::Draining => Role::Draining,
            };
            let (tenant, snapshot, size) = (self.tenant.clone(), self.snapshot, blob.size);
            let request = BlockRequest { tenant, snapshot, blob: digest, size, range, role, urgency };
            let (peers, candidate) = (self.peers.clone(), self.candidate);
            OwnerSearch { peers, candidate, group, request, begin: Instant::now() }.body().await
        }
        .boxed()
    }

    fn locate(&self, blob: &Blob) -> String {
        format!("a peer's blob {}", blob.key)
    }
}

impl ClusterTier for PeerTier {
    fn is_owner(&self) -> bool {
        self.candidate.is_owner()
    }

    fn report_corruption(&self, blob: &Blob, index: u64) {
        let Key::Content(digest) = blob.key else { return };
        let sent = |request: &&InFlightRequest| {
            request.candidate == self.candidate
                && request.blob == digest
                && request.range.contains(&(index * BLOCK))
        };
        let sender = self.peers.in_flight().values().find(sent).map(|request| request.peer.clone());
        if let Some(sender) = sender {
            self.peers.ban_for_corruption(&sender, &format!("wrong bytes as block {index} of {blob}"));
        }
    }
}
