//! A node: the real peer tiers, server and ladders; what it holds is a model.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bdnfs::blob::{Blob, Key, MirrorLocation};
use bdnfs::block::{self, Arrival, BLOCK, Check};
use bdnfs::digest::Digest;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::fetch::{FetchOutcome, FetchScope, Ladder};
use bdnfs::flight::{Delivery, Flight, Flights, JoinOutcome};
use bdnfs::peer::Member;
use bdnfs::peer::client::{Peers, snapshot_token};
use bdnfs::peer::server::{BlockProvider, PeerServer};
use bdnfs::peer::wire::{BlockRequest, Role};
use bdnfs::tier::{Body, Urgency};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::view::SimView;
use super::wire::{SimMirror, SimNetwork};
use super::{BLOCKS_PER_BLOB, STREAMS, Sim, TENANT};

/// How long a node waits after it has begun.
const MEMBERSHIP_SETTLE_TIME: Duration = Duration::from_secs(4);

/// One of them.
pub struct SimNode {
    pub id: String,
    pub server: Arc<PeerServer>,
    pub view: Arc<SimView>,
    sim: Weak<Sim>,
    peers: OnceLock<Arc<Peers>>,
    blobs: Mutex<HashMap<Digest, Arc<SimContent>>>,
    announced: Mutex<Vec<u64>>,
    moved: AtomicU64,
    alive: Mutex<bool>,
    nodes_started: Instant,
}

/// What a node has in memory: requests to others and of others, flights, and those of whom it remembers something.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimLoad {
    pub asking: usize,
    pub answering: usize,
    pub flights: usize,
    pub tracked_peers: usize,
}

/// The part of a blob that a node has.
struct SimContent {
    blob: Blob,
    present: Mutex<Vec<bool>>,
    waiting: Flights,
    direct: Flights,
    ladder: Ladder,
}

/// A blob of this name.
pub fn named(digest: Digest) -> Blob {
    let (path, version) = Default::default();
    let (checks, stored) = (vec![Check([0; 32]); BLOCKS_PER_BLOB as usize].into(), MirrorLocation::default());
    Blob {
        key: Key::Content(digest),
        size: BLOCKS_PER_BLOB * BLOCK,
        checks: Some(checks),
        path,
        version,
        sha256: None,
        stored,
    }
}

impl SimNode {
    /// A node that announces itself as `member`, and knows no others yet.
    pub fn new(sim: &Arc<Sim>, member: Member) -> Arc<Self> {
        let view = Arc::new(SimView::default());
        view.learn(member.clone());
        view.told.set((Arc::downgrade(sim), member.id.clone())).expect("once");
        let node = Arc::new(Self {
            id: member.id.clone(),
            server: Arc::default(),
            view: view.clone(),
            sim: Arc::downgrade(sim),
            peers: OnceLock::new(),
            blobs: Mutex::default(),
            announced: Mutex::default(),
            moved: AtomicU64::new(0),
            alive: Mutex::new(true),
            nodes_started: Instant::now(),
        });
        let wire = SimNetwork { sim: Arc::downgrade(sim), me: member.id.clone() };
        node.peers.set(Peers::new(member, view, Arc::new(wire))).expect("once");
        node.server.host(TENANT, Arc::new(SimPeerService(Arc::downgrade(&node))));
        node
    }

    /// Ends: what it did for others ends with it.
    pub fn end(&self) {
        *self.alive.lock() = false;
        self.blobs.lock().clear();
    }

    pub fn is_alive(&self) -> bool {
        *self.alive.lock()
    }

    fn held(self: &Arc<Self>, blob: &Blob) -> Arc<SimContent> {
        let Key::Content(digest) = blob.key else { panic!("by content") };
        let mut blobs = self.blobs.lock();
        let held = blobs.entry(digest).or_insert_with(|| {
            // Each blob is a snapshot of its own.
            let ladder =
                Ladder::new(vec![Arc::new(SimMirror(self.sim.clone()))], Arc::default(), Arc::default());
            Arc::new(SimContent {
                blob: blob.clone(),
                present: Mutex::new(vec![false; BLOCKS_PER_BLOB as usize]),
                waiting: Flights::default(),
                direct: Flights::default(),
                ladder: ladder.with_placement(Some(self.peers().placement(TENANT, digest))).with_seed(|| 0),
            })
        });
        held.clone()
    }

    pub fn peers(&self) -> &Arc<Peers> {
        self.peers.get().expect("set")
    }

    /// Brings all of a blob, some groups at a time. Ends early if the node does.
    pub async fn stage(self: &Arc<Self>, blob: &Blob) {
        // A node that has just begun waits until it has heard of the others.
        sleep_until(self.nodes_started + MEMBERSHIP_SETTLE_TIME).await;
        let begin = Instant::now();
        let held = self.held(blob);
        let flights = stream::iter(held.ladder.stage_order(blob, 0)).for_each_concurrent(STREAMS, |run| {
            let held = held.clone();
            let absent = move |held: &SimContent| run.clone().find(|i| !held.present.lock()[*i as usize]);
            async move {
                while let Some(index) = absent(&held).filter(|_| self.is_alive()) {
                    held.ladder.await_stable_membership(&held.blob).await;
                    if let Some(flight) = held.join_or_start(self, None, index) {
                        flight.await_stored().await.ok();
                    }
                }
            }
        });
        flights.await;
        if self.is_alive() {
            assert!(held.present.lock().iter().all(|present| *present));
            if let Some(sim) = self.sim.upgrade() {
                sim.slowest.fetch_max(begin.elapsed().as_secs(), Relaxed);
            }
            let Key::Content(digest) = blob.key else { panic!("by content") };
            let mut announced = self.announced.lock();
            announced.push(snapshot_token(TENANT, &digest));
            self.peers().announce(announced.clone());
        }
    }

    /// Which blocks of `blob` it has.
    pub fn provider(&self, blob: &Blob) -> Vec<bool> {
        let Key::Content(digest) = blob.key else { panic!("by content") };
        let held = self.blobs.lock().get(&digest).cloned();
        held.map_or_else(Vec::new, |held| held.present.lock().clone())
    }

    /// Whether it neither makes a request nor waits for one.
    pub fn is_at_rest(&self) -> bool {
        let idle = |held: &Arc<SimContent>| held.waiting.all().is_empty() && held.direct.all().is_empty();
        self.blobs.lock().values().all(idle)
            && self.peers().requests_in_flight() == 0
            && self.server.busy() == 0
    }

    /// How much it has in memory that is bounded by what it does itself, and by the cluster's size.
    pub fn load(&self) -> SimLoad {
        let flights = |held: &Arc<SimContent>| held.waiting.all().len() + held.direct.all().len();
        SimLoad {
            asking: self.peers().requests_in_flight(),
            answering: self.server.busy(),
            flights: self.blobs.lock().values().map(flights).sum(),
            tracked_peers: self.peers().tracked_peers(),
        }
    }
}

impl SimContent {
    /// As `Content` does it.
    fn join_or_start(
        self: &Arc<Self>,
        node: &Arc<SimNode>,
        asked: Option<FetchScope>,
        index: u64,
    ) -> Option<Arc<Flight>> {
        let scope = asked.unwrap_or_else(|| self.ladder.scope(&self.blob, index));
        let most = self.ladder.extent_blocks(&self.blob, index);
        if let Some(flight) = self.direct.find(index) {
            return Some(flight);
        }
        let flights = if scope == FetchScope::All { &self.waiting } else { &self.direct };
        match flights.join(index, most, |i| i < BLOCKS_PER_BLOB && !self.present.lock()[i as usize]) {
            JoinOutcome::Present => None,
            JoinOutcome::Joined(flight) => Some(flight),
            JoinOutcome::New(flight) => {
                tokio::spawn(self.clone().fly(Arc::downgrade(node), scope, flight.clone()));
                Some(flight)
            }
        }
    }

    async fn fly(self: Arc<Self>, node: Weak<SimNode>, scope: FetchScope, flight: Arc<Flight>) {
        let accept = |arrival: Arrival| {
            self.present.lock()[arrival.index as usize] = true;
            if let Some(node) = node.upgrade() {
                node.moved.fetch_add(1, Relaxed);
            }
            flight.deliver(arrival.index, Delivery::Bytes(arrival.bytes));
            std::future::ready(Ok(arrival.index))
        };
        let wanted: Vec<_> = flight.extent().range().collect();
        let stall_limit = Duration::from_secs(30);
        let outcome =
            self.ladder.fetch(&self.blob, wanted, (scope, &|| Urgency::Stage), stall_limit, accept).await;
        let outcome = match outcome {
            Ok(FetchOutcome::Complete) => Ok(()),
            Ok(FetchOutcome::BecameOwner) => {
                Err(Error::new(Kind::Interrupted, "it is fetched directly instead"))
            }
            Err(error) => Err(error),
        };
        let flights = if scope == FetchScope::All { &self.waiting } else { &self.direct };
        flights.remove(&flight);
        flight.end(outcome);
    }
}

/// What a node gives to others.
struct SimPeerService(Weak<SimNode>);

impl std::fmt::Debug for SimPeerService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rack")
    }
}

impl BlockProvider for SimPeerService {
    fn provide<'a>(&'a self, request: &'a BlockRequest) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            let Some((node, sim)) =
                self.0.upgrade().and_then(|node| Some((node.clone(), node.sim.upgrade()?)))
            else {
                return Ok(None);
            };
            let blocks = request.range.start / BLOCK..request.range.end / BLOCK;
            let known = node.blobs.lock().get(&request.blob).cloned();
            let has = |held: &Arc<SimContent>, index: u64| held.present.lock()[index as usize];
            let brings =
                |held: &Arc<SimContent>, index| has(held, index) || held.direct.find(index).is_some();
            let gives = |held: &Arc<SimContent>| match request.role {
                Role::Owner => true,
                Role::Holder => blocks.clone().all(|index| has(held, index)),
                Role::Draining => blocks.clone().all(|index| brings(held, index)),
            };
            if !known.as_ref().map_or(request.role == Role::Owner, gives) {
                return Ok(None);
            }
            let Some(held) = known.or_else(|| sim.find(request.blob).map(|blob| node.held(&blob))) else {
                return Ok(None);
            };
            let boarded: Vec<_> =
                blocks.map(|index| (index, join_or_start_direct(&held, &node, index))).collect();
            let body = stream::iter(boarded).then(move |(index, flight)| {
                let (page, held, node) = (sim.page.clone(), held.clone(), node.clone());
                async move {
                    if let Some(flight) = flight {
                        flight.block(index).await?;
                    }
                    node.moved.fetch_add(1, Relaxed);
                    let len = block::len(held.blob.size, index) as usize;
                    Ok(page.slice(..len))
                }
            });
            Ok(Some(body.boxed()))
        }
        .boxed()
    }

    fn progress(&self) -> u64 {
        self.0.upgrade().map_or(0, |node| node.moved.load(Relaxed))
    }
}

fn join_or_start_direct(held: &Arc<SimContent>, node: &Arc<SimNode>, index: u64) -> Option<Arc<Flight>> {
    if held.present.lock()[index as usize] {
        None
    } else {
        held.join_or_start(node, Some(FetchScope::Direct), index)
    }
}
