//! A cluster in virtual time: the real rendezvous hashing, peer tiers, servers and ladders; what nodes hold, their links and the
//! mirror are models. A seed determines all of it.

mod node;
mod view;
mod wire;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bdnfs::blob::{Blob, Key};
use bdnfs::block::BLOCK;
use bdnfs::digest::Digest;
use bdnfs::peer::{Member, PROTOCOL, token};
use bdnfs_tests::tree::Rng;
use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::sleep;

pub use node::SimNode;

const TENANT: &str = "t";
/// How many blocks a blob has: 64 groups.
pub const BLOCKS_PER_BLOB: u64 = 256;
/// How many groups of a blob a node fetches at once.
pub const STREAMS: usize = 12;

/// How long it takes until a member hears of another, and of its end.
const GOSSIP_DELAY_MS: (u64, u64) = (300, 3000);
const DEATH_NOTICE_MS: (u64, u64) = (4000, 9000);

/// All of it.
pub struct Sim {
    rng: Mutex<Rng>,
    nodes: Mutex<BTreeMap<String, Arc<SimNode>>>,
    /// The nodes on the other side of a partition.
    partitioned: Mutex<HashSet<String>>,
    published: Mutex<Vec<Blob>>,
    /// Blocks that were read of the mirror, and those that had to be, of each blob in the order of their names.
    stats: Mutex<Vec<SimStats>>,
    max_requests_in_flight: AtomicU64,
    slowest: AtomicU64,
    nodes_started: AtomicU64,
    page: Bytes,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sim")
    }
}

/// How often the mirror was read for one blob, in blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimStats {
    /// Reads of the mirror, by all nodes.
    pub read: u64,
    /// The reads of the mirror that are necessary. A block is due once when it is published. While the network is cut in two,
    /// what comes to a side that had none of it can have come from the mirror alone: so a block is due once for each side
    /// that comes to have it during the cut. What dies with the nodes that had it, and has to be read again, is not due.
    pub due: u64,
}

/// What is heard of a node.
#[derive(Clone, Copy, Debug)]
enum MemberEvent {
    Alive,
    Silence,
}

impl Sim {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            rng: Mutex::new(Rng(seed)),
            nodes: Mutex::default(),
            partitioned: Mutex::default(),
            published: Mutex::default(),
            stats: Mutex::default(),
            max_requests_in_flight: AtomicU64::new(0),
            slowest: AtomicU64::new(0),
            nodes_started: AtomicU64::new(0),
            page: vec![7; BLOCK as usize].into(),
        })
    }

    pub fn random_below(&self, below: u64) -> u64 {
        self.rng.lock().below(below)
    }

    /// How often the mirror was read for each of those that were published, in that order.
    pub fn stats(&self) -> Vec<SimStats> {
        self.stats.lock().clone()
    }

    /// Notes that a block of `blob` was read of the mirror.
    fn read(&self, blob: &Blob) {
        let number = self.published.lock().iter().position(|known| known.key == blob.key).expect("published");
        self.stats.lock()[number].read += 1;
    }

    /// All that the mirror has.
    pub fn published(&self) -> Vec<Blob> {
        self.published.lock().clone()
    }

    /// Whether the network is in two parts.
    pub fn is_cut(&self) -> bool {
        !self.partitioned.lock().is_empty()
    }

    /// The most requests that any node had under way at once.
    pub fn max_requests_in_flight(&self) -> u64 {
        self.max_requests_in_flight.load(Relaxed)
    }

    /// The longest that a node has taken to stage a blob, in seconds.
    pub fn slowest(&self) -> u64 {
        self.slowest.load(Relaxed)
    }

    pub fn nodes(&self) -> Vec<Arc<SimNode>> {
        self.nodes.lock().values().cloned().collect()
    }

    /// Adds a node; it and the others learn of each other with the delay of gossip.
    pub fn join(self: &Arc<Self>) -> Arc<SimNode> {
        let number = self.nodes_started.fetch_add(1, Relaxed);
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
        let node = SimNode::new(self, member);
        // It hears of the others as they hear of it.
        for other in self.nodes() {
            self.deliver(&node, &other.id, GOSSIP_DELAY_MS, MemberEvent::Alive);
        }
        self.nodes.lock().insert(id.clone(), node.clone());
        self.announce(&id, GOSSIP_DELAY_MS, MemberEvent::Alive);
        node
    }

    /// Kills a node: it announces nothing.
    pub fn kill(self: &Arc<Self>, node: &SimNode) {
        self.nodes.lock().remove(&node.id);
        node.end();
        self.announce(&node.id, DEATH_NOTICE_MS, MemberEvent::Silence);
    }

    /// A node takes its leave, as `bdnfs agent` does on SIGTERM: it says so, and ends when it got no request
    /// for a second, or after ten.
    pub async fn retire(self: &Arc<Self>, node: &SimNode) {
        if let Some(own) = node.view.of(&node.id) {
            node.view.learn(Member { draining: true, holds: Vec::new(), ..(*own).clone() });
            self.announce(&node.id, GOSSIP_DELAY_MS, MemberEvent::Alive);
        }
        let mut quiet = 0;
        for _ in 0..100 {
            sleep(Duration::from_millis(100)).await;
            quiet = if node.server.busy() == 0 { quiet + 1 } else { 0 };
            if quiet == 10 {
                break;
            }
        }
        self.kill(node);
    }

    /// Cuts some nodes off from the others, for as long as `lasts`. Gossip is as slow to notice as for the dead.
    pub async fn partition(self: &Arc<Self>, nodes: &[Arc<SimNode>], lasts: Duration) {
        self.partitioned.lock().extend(nodes.iter().map(|node| node.id.clone()));
        let before = self.providers();
        self.announce_across(DEATH_NOTICE_MS, MemberEvent::Silence);
        sleep(lasts).await;
        self.count_due(&before);
        let beyond = std::mem::take(&mut *self.partitioned.lock());
        for id in &beyond {
            self.announce(id, GOSSIP_DELAY_MS, MemberEvent::Alive);
        }
        for node in nodes {
            self.nodes()
                .iter()
                .for_each(|other| self.deliver(node, &other.id, GOSSIP_DELAY_MS, MemberEvent::Alive));
        }
    }

    /// The blocks of each blob that any node has, on either side of the cut.
    fn providers(&self) -> Vec<[Vec<bool>; 2]> {
        let (nodes, beyond) = (self.nodes(), self.partitioned.lock());
        let mut providers =
            vec![[(); 2].map(|()| vec![false; BLOCKS_PER_BLOB as usize]); self.published.lock().len()];
        for node in nodes {
            let side = usize::from(beyond.contains(&node.id));
            for (blob, providers) in self.published().iter().zip(&mut providers) {
                node.provider(blob)
                    .into_iter()
                    .zip(&mut providers[side])
                    .for_each(|(has, known)| *known |= has);
            }
        }
        providers
    }

    /// Counts what the two sides of a cut had to read since `before`, each by itself.
    fn count_due(&self, before: &[[Vec<bool>; 2]]) {
        for (number, now) in self.providers().iter().enumerate() {
            for index in 0..BLOCKS_PER_BLOB as usize {
                let had = |side: usize| before.get(number).is_some_and(|providers| providers[side][index]);
                let came = (0..2).filter(|side| now[*side][index] && !had(*side)).count() as u64;
                let first = !had(0) && !had(1);
                self.stats.lock()[number].due += came - u64::from(first && came > 0);
            }
        }
    }

    /// Tells all nodes of those on the other side.
    fn announce_across(self: &Arc<Self>, delay: (u64, u64), sign: MemberEvent) {
        for node in self.nodes() {
            for other in self.nodes().iter().filter(|other| !self.reachable(&node.id, &other.id)) {
                self.deliver(&node, &other.id, delay, sign);
            }
        }
    }

    /// Tells every node but `of` of it, each at its time.
    fn announce(self: &Arc<Self>, of: &str, delay: (u64, u64), sign: MemberEvent) {
        for node in self.nodes().into_iter().filter(|node| node.id != of) {
            self.deliver(&node, of, delay, sign);
        }
    }

    /// Has `node` hear of `other` after a while: how it is by then, or that nothing has been heard of it for so long, if it
    /// is out of reach by then.
    fn deliver(
        self: &Arc<Self>,
        node: &Arc<SimNode>,
        other: &str,
        (least, most): (u64, u64),
        sign: MemberEvent,
    ) {
        let (sim, node, other) = (self.clone(), node.clone(), other.to_owned());
        let after = least + self.random_below(most - least);
        tokio::spawn(async move {
            sleep(Duration::from_millis(after)).await;
            let there = sim.nodes.lock().get(&other).cloned().filter(|_| sim.reachable(&node.id, &other));
            match (sign, there.and_then(|there| there.view.of(&other))) {
                (MemberEvent::Alive, Some(member)) => node.view.learn((*member).clone()),
                (MemberEvent::Silence, None) => node.view.forget(&other),
                _ => {}
            }
        });
    }

    fn reachable(&self, from: &str, to: &str) -> bool {
        let beyond = self.partitioned.lock();
        beyond.contains(from) == beyond.contains(to)
    }

    /// A new blob that the mirror has.
    pub fn publish(&self) -> Blob {
        let mut all = self.published.lock();
        let blob = node::named(Digest::of(&all.len().to_le_bytes()));
        all.push(blob.clone());
        self.stats.lock().push(SimStats { read: 0, due: BLOCKS_PER_BLOB });
        blob
    }

    /// The blob with this digest.
    fn find(&self, digest: Digest) -> Option<Blob> {
        self.published.lock().iter().find(|blob| blob.key == Key::Content(digest)).cloned()
    }

    /// Makes every node stage `blob` at once.
    pub async fn burst(&self, blob: &Blob) {
        join_all(self.nodes().iter().map(|node| node.stage(blob))).await;
    }
}
