//! A cluster in virtual time: the real ranks, seats, servers and ladders; what nodes hold, their links and the mirror are
//! models. A seed determines all of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use bdnfs::blob::{Blob, Key, Stored};
use bdnfs::block::{self, Arrival, BLOCK, Check};
use bdnfs::digest::Digest;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::fetch::{Ladder, Reach};
use bdnfs::flight::{Boarding, Flight, Flights, Landing};
use bdnfs::metrics::Counters;
use bdnfs::peer::client::{Holder, Link, Peers};
use bdnfs::peer::members::Members;
use bdnfs::peer::server::{Caller, Server, Shelf};
use bdnfs::peer::wire::{Ask, Reply, Role};
use bdnfs::peer::{Member, PROTOCOL, token};
use bdnfs::tier::{Body, Rung, Tier, Urgency};
use bdnfs_tests::tree::Dice;
use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::sleep;

const TENANT: &str = "t";
/// 64 groups.
const BLOCKS: u64 = 256;

/// How fast things are: a mirror that takes its time, a network of 10 Gbit/s.
const MIRROR: Duration = Duration::from_millis(40);
const MIRROR_BLOCK: Duration = Duration::from_millis(10);
const NETWORK: Duration = Duration::from_micros(300);
const NETWORK_BLOCK: Duration = Duration::from_millis(1);
/// How long it takes until a member hears of another, and of its end.
const NEWS: (u64, u64) = (300, 3000);
const DEATH: (u64, u64) = (4000, 9000);

/// All of it.
pub struct Sim {
    dice: Mutex<Dice>,
    nodes: Mutex<BTreeMap<String, Arc<Node>>>,
    /// Who is on the other side of a partition.
    beyond: Mutex<HashSet<String>>,
    read: AtomicU64,
    beset: AtomicU64,
    born: AtomicU64,
    page: Bytes,
}

pub struct Node {
    id: String,
    sim: Weak<Sim>,
    peers: OnceLock<Arc<Peers>>,
    server: Arc<Server>,
    view: Arc<View>,
    blobs: Mutex<HashMap<Digest, Arc<Held>>>,
    holders: Mutex<Vec<Holder>>,
    moved: AtomicU64,
    alive: Mutex<bool>,
}

/// What is heard of a node.
#[derive(Clone, Copy, Debug)]
enum Sign {
    Life,
    Silence,
}

/// What a node has of a blob.
struct Held {
    blob: Blob,
    present: Mutex<Vec<bool>>,
    waiting: Flights,
    direct: Flights,
    ladder: Ladder,
}

/// What a node knows of the others.
#[derive(Default)]
struct View {
    members: Mutex<Arc<[Arc<Member>]>>,
    told: OnceLock<(Weak<Sim>, String)>,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("View")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic")
}

impl View {
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Member>>)) {
        let mut members = lock(&self.members);
        let mut list = members.to_vec();
        change(&mut list);
        *members = list.into();
    }

    /// What it says of `id`.
    fn of(&self, id: &str) -> Option<Arc<Member>> {
        lock(&self.members).iter().find(|member| member.id == id).cloned()
    }

    fn forget(&self, id: &str) {
        self.change(|list| list.retain(|known| known.id != id));
    }

    fn learn(&self, member: Member) {
        self.change(|list| {
            list.retain(|known| known.id != member.id);
            list.push(Arc::new(member));
        });
    }
}

impl Members for View {
    fn live(&self) -> Arc<[Arc<Member>]> {
        lock(&self.members).clone()
    }

    fn announce(&self, holds: Vec<u64>) {
        let Some((sim, me)) = self.told.get() else { return };
        let Some(sim) = sim.upgrade() else { return };
        // The dead say nothing, not even that they let go of what they had.
        if !lock(&sim.nodes).contains_key(me) {
            return;
        }
        if let Some(own) = self.of(me) {
            let member = Member { holds, ..(*own).clone() };
            self.learn(member);
            sim.spread(me, NEWS, Sign::Life);
        }
    }
}

impl Sim {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            dice: Mutex::new(Dice(seed)),
            nodes: Mutex::default(),
            beyond: Mutex::default(),
            read: AtomicU64::new(0),
            beset: AtomicU64::new(0),
            born: AtomicU64::new(0),
            page: vec![7; BLOCK as usize].into(),
        })
    }

    pub fn roll(&self, below: u64) -> u64 {
        lock(&self.dice).below(below)
    }

    /// Blocks that were read of the mirror, by whomever.
    pub fn read(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// The most requests that any node had under way at once.
    pub fn beset(&self) -> u64 {
        self.beset.load(Relaxed)
    }

    pub fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.nodes).values().cloned().collect()
    }

    /// A new node, which hears of the others, and they of it, by and by.
    pub fn join(self: &Arc<Self>) -> Arc<Node> {
        let number = self.born.fetch_add(1, Relaxed);
        let id = format!("n{number}");
        let member = Member {
            id: id.clone(),
            address: ([10, 0, (number >> 8) as u8, number as u8], 1).into(),
            zone: format!("z{}", number % 3),
            capacity: (1 + number % 2) << 40,
            protocol: PROTOCOL,
            draining: false,
            tenants: vec![token(&[TENANT.as_bytes()])],
            holds: Vec::new(),
        };
        let view = Arc::new(View::default());
        view.learn(member.clone());
        view.told.set((Arc::downgrade(self), id.clone())).expect("once");
        let node = Arc::new(Node {
            id: id.clone(),
            sim: Arc::downgrade(self),
            peers: OnceLock::new(),
            server: Arc::new(Server::default()),
            view: view.clone(),
            blobs: Mutex::default(),
            holders: Mutex::default(),
            moved: AtomicU64::new(0),
            alive: Mutex::new(true),
        });
        let wire = Wire { sim: Arc::downgrade(self), me: id.clone() };
        node.peers.set(Peers::new(member.clone(), view, Arc::new(wire))).expect("once");
        node.server.host(TENANT, Arc::new(Rack(Arc::downgrade(&node))));
        // It hears of the others as they hear of it.
        for other in self.nodes() {
            self.tell(&node, &other.id, NEWS, Sign::Life);
        }
        lock(&self.nodes).insert(id.clone(), node.clone());
        self.spread(&id, NEWS, Sign::Life);
        node
    }

    /// A node ends without a word.
    pub fn kill(self: &Arc<Self>, node: &Node) {
        *lock(&node.alive) = false;
        lock(&self.nodes).remove(&node.id);
        // What it did for others ends with it.
        lock(&node.blobs).clear();
        self.spread(&node.id, DEATH, Sign::Silence);
    }

    /// Cuts some nodes off from the others, for as long as `lasts`. Gossip is as slow to notice as for the dead.
    pub async fn partition(self: &Arc<Self>, nodes: &[Arc<Node>], lasts: Duration) {
        lock(&self.beyond).extend(nodes.iter().map(|node| node.id.clone()));
        self.across(DEATH, Sign::Silence);
        sleep(lasts).await;
        let beyond = std::mem::take(&mut *lock(&self.beyond));
        for id in &beyond {
            self.spread(id, NEWS, Sign::Life);
        }
        for node in nodes {
            self.nodes().iter().for_each(|other| self.tell(node, &other.id, NEWS, Sign::Life));
        }
    }

    /// Tells all nodes of those on the other side.
    fn across(self: &Arc<Self>, delay: (u64, u64), sign: Sign) {
        for node in self.nodes() {
            for other in self.nodes().iter().filter(|other| !self.reachable(&node.id, &other.id)) {
                self.tell(&node, &other.id, delay, sign);
            }
        }
    }

    /// Tells every node but `of` of it, each at its time.
    fn spread(self: &Arc<Self>, of: &str, delay: (u64, u64), sign: Sign) {
        for node in self.nodes().into_iter().filter(|node| node.id != of) {
            self.tell(&node, of, delay, sign);
        }
    }

    /// Has `node` hear of `other` after a while: how it is by then, or that nothing has been heard of it for so long, if it
    /// is out of reach by then.
    fn tell(self: &Arc<Self>, node: &Arc<Node>, other: &str, (least, most): (u64, u64), sign: Sign) {
        let (sim, node, other) = (self.clone(), node.clone(), other.to_owned());
        let after = least + self.roll(most - least);
        tokio::spawn(async move {
            sleep(Duration::from_millis(after)).await;
            let there = lock(&sim.nodes).get(&other).cloned().filter(|_| sim.reachable(&node.id, &other));
            match (sign, there.and_then(|there| there.view.of(&other))) {
                (Sign::Life, Some(member)) => node.view.learn((*member).clone()),
                (Sign::Silence, None) => node.view.forget(&other),
                _ => {}
            }
        });
    }

    fn reachable(&self, from: &str, to: &str) -> bool {
        let beyond = lock(&self.beyond);
        beyond.contains(from) == beyond.contains(to)
    }

    /// A blob that the mirror has.
    pub fn publish(&self, name: u64) -> Blob {
        let (path, version) = Default::default();
        let checks = vec![Check([0; 32]); BLOCKS as usize].into();
        let key = Key::Content(Digest::of(&name.to_le_bytes()));
        Blob {
            key,
            size: BLOCKS * BLOCK,
            checks: Some(checks),
            path,
            version,
            sha256: None,
            stored: Stored::default(),
        }
    }

    /// Has every node stage `blob` at once.
    pub async fn burst(&self, blob: &Blob) {
        join_all(self.nodes().iter().map(|node| node.stage(blob))).await;
    }
}

impl Node {
    fn held(self: &Arc<Self>, blob: &Blob) -> Arc<Held> {
        let Key::Content(digest) = blob.key else { panic!("by content") };
        let mut blobs = lock(&self.blobs);
        let held = blobs.entry(digest).or_insert_with(|| {
            // Each blob is a snapshot of its own.
            let mut tiers: Vec<Arc<dyn Tier>> = self.peers().seats(TENANT, digest).into();
            tiers.push(Arc::new(Store(self.sim.clone())));
            Arc::new(Held {
                blob: blob.clone(),
                present: Mutex::new(vec![false; BLOCKS as usize]),
                waiting: Flights::default(),
                direct: Flights::default(),
                ladder: Ladder::new(tiers, Arc::new(Counters::default())),
            })
        });
        held.clone()
    }

    fn peers(&self) -> &Arc<Peers> {
        self.peers.get().expect("set")
    }

    /// Brings all of a blob, some groups at a time. Ends early if the node does.
    pub async fn stage(self: &Arc<Self>, blob: &Blob) {
        let held = self.held(blob);
        let starts = (0..BLOCKS).step_by(bdnfs::peer::group(BLOCKS) as usize);
        let flights = stream::iter(starts).for_each_concurrent(STREAMS, |index| {
            let held = held.clone();
            async move {
                while *lock(&self.alive) && !lock(&held.present)[index as usize] {
                    if let Some(flight) = held.board(self, None, index) {
                        flight.stored().await.ok();
                    }
                }
            }
        });
        flights.await;
        if *lock(&self.alive) {
            assert!(lock(&held.present).iter().all(|present| *present));
            let Key::Content(digest) = blob.key else { panic!("by content") };
            let holder = self.peers().holder(TENANT, &digest);
            holder.announce();
            lock(&self.holders).push(holder);
        }
    }

    /// Whether it neither makes a request nor waits for one.
    pub fn is_at_rest(&self) -> bool {
        let idle = |held: &Arc<Held>| held.waiting.all().is_empty() && held.direct.all().is_empty();
        lock(&self.blobs).values().all(idle) && self.peers().under_way() == 0 && self.server.busy() == 0
    }

    /// How many others it remembers something of, as its peers.
    pub fn remembered(&self) -> usize {
        self.peers().remembered()
    }
}

impl Held {
    /// As `Content` does it.
    fn board(self: &Arc<Self>, node: &Arc<Node>, asked: Option<Reach>, index: u64) -> Option<Arc<Flight>> {
        let reach = asked.unwrap_or_else(|| self.ladder.reach(&self.blob, index));
        let most = self.ladder.blocks(&self.blob, index);
        if let Some(flight) = self.direct.find(index) {
            return Some(flight);
        }
        let flights = if reach == Reach::All { &self.waiting } else { &self.direct };
        match flights.join(index, most, |i| i < BLOCKS && !lock(&self.present)[i as usize]) {
            Boarding::Present => None,
            Boarding::Joined(flight) => Some(flight),
            Boarding::New(flight) => {
                tokio::spawn(self.clone().fly(Arc::downgrade(node), reach, flight.clone()));
                Some(flight)
            }
        }
    }

    async fn fly(self: Arc<Self>, node: Weak<Node>, reach: Reach, flight: Arc<Flight>) {
        let accept = |arrival: Arrival| {
            lock(&self.present)[arrival.index as usize] = true;
            if let Some(node) = node.upgrade() {
                node.moved.fetch_add(1, Relaxed);
            }
            flight.land(arrival.index, Landing::Bytes(arrival.bytes));
            std::future::ready(Ok(arrival.index))
        };
        let wanted = flight.extent().range().collect();
        let patience = Duration::from_secs(30);
        let outcome = self.ladder.fetch(&self.blob, wanted, (reach, Urgency::Stage), patience, accept).await;
        let flights = if reach == Reach::All { &self.waiting } else { &self.direct };
        flights.leave(&flight);
        flight.end(outcome);
    }
}

/// What a node gives to others.
struct Rack(Weak<Node>);

impl std::fmt::Debug for Rack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rack")
    }
}

impl Shelf for Rack {
    fn lend<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            let Some((node, sim)) =
                self.0.upgrade().and_then(|node| Some((node.clone(), node.sim.upgrade()?)))
            else {
                return Ok(None);
            };
            let blocks = ask.range.start / BLOCK..ask.range.end / BLOCK;
            let known = lock(&node.blobs).get(&ask.blob).cloned();
            let has = |held: &Arc<Held>| {
                lock(&held.present)[blocks.start as usize..blocks.end as usize].iter().all(|p| *p)
            };
            if ask.role == Role::Holder && !known.as_ref().is_some_and(has) {
                return Ok(None);
            }
            let held = known.unwrap_or_else(|| {
                let (path, version) = Default::default();
                let checks = vec![Check([0; 32]); BLOCKS as usize].into();
                let (key, size, stored) = (Key::Content(ask.blob), ask.size, Stored::default());
                node.held(&Blob { key, size, checks: Some(checks), path, version, sha256: None, stored })
            });
            let boarded: Vec<_> = blocks.map(|index| (index, board_direct(&held, &node, index))).collect();
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

    fn moved(&self) -> u64 {
        self.0.upgrade().map_or(0, |node| node.moved.load(Relaxed))
    }
}

fn board_direct(held: &Arc<Held>, node: &Arc<Node>, index: u64) -> Option<Arc<Flight>> {
    if lock(&held.present)[index as usize] { None } else { held.board(node, Some(Reach::Direct), index) }
}

/// The way to other nodes.
#[derive(Debug)]
struct Wire {
    sim: Weak<Sim>,
    me: String,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sim")
    }
}

impl Link for Wire {
    fn ask<'a>(&'a self, peer: &'a Member, ask: &'a Ask) -> BoxFuture<'a, Result<Reply>> {
        async move {
            let gone = || Error::new(Kind::Unavailable, format!("{} refuses the connection", peer.id));
            let sim = self.sim.upgrade().ok_or_else(gone)?;
            sleep(NETWORK).await;
            if !sim.reachable(&self.me, &peer.id) {
                std::future::pending::<()>().await;
            }
            let node = lock(&sim.nodes).get(&peer.id).cloned().ok_or_else(gone)?;
            if let Some(me) = lock(&sim.nodes).get(&self.me) {
                sim.beset.fetch_max(me.peers().under_way() as u64, Relaxed);
            }
            let frames = match node.server.answer(&Caller::ANYBODY, ask.clone()).await {
                Reply::Frames(frames) => frames,
                other => return Ok(other),
            };
            let (me, wire) = (self.me.clone(), Arc::downgrade(&sim));
            // Blocks take their time, and what is cut off comes no more.
            let frames = frames.then(move |frame| {
                let (sim, node, me) = (wire.clone(), node.clone(), me.clone());
                async move {
                    sleep(NETWORK_BLOCK).await;
                    match sim.upgrade() {
                        Some(sim) if !sim.reachable(&me, &node.id) => std::future::pending().await,
                        Some(_) if *lock(&node.alive) => frame,
                        _ => Err(Error::new(Kind::Unavailable, "the connection was reset")),
                    }
                }
            });
            Ok(Reply::Frames(frames.boxed()))
        }
        .boxed()
    }
}

/// The mirror.
#[derive(Debug)]
struct Store(Weak<Sim>);

impl Tier for Store {
    fn rung(&self) -> Rung {
        Rung::Mirror
    }

    fn fetch<'a>(
        &'a self,
        _: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            let Some(sim) = self.0.upgrade() else { return Ok(None) };
            sleep(MIRROR).await;
            let pages = stream::iter(range.step_by(BLOCK as usize)).then(move |_| {
                let sim = sim.clone();
                async move {
                    sleep(MIRROR_BLOCK).await;
                    sim.read.fetch_add(1, Relaxed);
                    Ok(sim.page.clone())
                }
            });
            Ok(Some(pages.boxed()))
        }
        .boxed()
    }
}

pub const ALL: u64 = BLOCKS;
/// How many groups of a blob a node fetches at once.
pub const STREAMS: usize = 12;
