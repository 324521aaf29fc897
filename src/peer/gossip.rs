//! Gossip: members that find each other (the crate `chitchat`: scuttlebutt with a failure detector).
//!
//! What they tell each other goes the way of all that peers say: HTTP on the same port, with mutual TLS where there is any.
//! So nobody without a certificate of the cluster can make himself a member, and one port is all that a firewall opens.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chitchat::transport::{Socket, Transport};
use chitchat::{
    Chitchat, ChitchatConfig, ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable,
    FailureDetectorConfig, NodeState, Serializable, spawn_chitchat,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::link::Http;
use super::members::{Members, Roll};
use super::{Member, PROTOCOL};
use crate::error::{Error, Kind, Result};

/// How often each member talks to three others: news reaches a thousand of them in a few rounds.
const ROUND: Duration = Duration::from_millis(500);

/// How long somebody who is gone is remembered as such, and is not believed to be there when others still tell of him.
const REMEMBERED: Duration = Duration::from_secs(600);

/// How many messages may be under way at once, each way. More are lost, and the next round makes up for them.
const MESSAGES: usize = 64;

/// A message from the member that listens at this address.
pub type Letter = (SocketAddr, Bytes);

/// What a node has to know of its cluster beforehand.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster's name: others are not listened to.
    pub cluster: String,
    /// What this node announces. Its address must be one that the others can reach.
    pub me: Member,
    /// Tells this life of the node from its earlier ones: larger each time, such as seconds since 1970.
    pub generation: u64,
    /// Where other members may be: `host:port`, asked of DNS anew every minute, or addresses.
    pub seeds: Vec<String>,
}

/// The members, as gossip tells.
pub struct Gossip {
    handle: ChitchatHandle,
    roll: Arc<Roll>,
    watching: JoinHandle<()>,
    runtime: Handle,
}

/// Where letters for this node are put.
#[derive(Clone, Debug)]
pub struct Letterbox(mpsc::Sender<Letter>);

/// The letters that came.
#[derive(Debug)]
pub struct Letters(mpsc::Receiver<Letter>);

/// A box for letters, and what comes out of it.
pub fn letterbox() -> (Letterbox, Letters) {
    let (sender, receiver) = mpsc::channel(MESSAGES);
    (Letterbox(sender), Letters(receiver))
}

impl Letterbox {
    /// Puts a letter in, if there is room.
    pub fn put(&self, letter: Letter) {
        self.0.try_send(letter).ok();
    }
}

impl Gossip {
    /// Begins to talk, over `link`; what others say comes by `letters`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when it can't begin.
    pub async fn start(config: Config, link: Arc<Http>, letters: Letters) -> Result<Arc<Self>> {
        let Config { cluster, me, generation, seeds } = config;
        let announced = announced(&me);
        let talk = Talk { link, me: me.address, letters: Mutex::new(Some(letters)) };
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(me.id.as_str(), generation, me.address),
            cluster_id: cluster,
            gossip_interval: ROUND,
            listen_addr: me.address,
            seed_nodes: seeds,
            failure_detector_config: FailureDetectorConfig {
                initial_interval: ROUND,
                dead_node_grace_period: REMEMBERED,
                ..FailureDetectorConfig::default()
            },
            marked_for_deletion_grace_period: REMEMBERED,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let failed = |e: anyhow::Error| {
            Error::with(Kind::Unavailable, "cannot talk to the cluster", e.into_boxed_dyn_error())
        };
        let handle = spawn_chitchat(config, announced, &talk).await.map_err(failed)?;
        let roll = Arc::new(Roll::default());
        roll.set([Arc::new(me)]);
        let mut news = handle.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
        let told = roll.clone();
        let watching = tokio::spawn(async move {
            while news.changed().await.is_ok() {
                let members = members(&news.borrow_and_update());
                told.set(members);
            }
        });
        Ok(Arc::new(Self { handle, roll, watching, runtime: Handle::current() }))
    }

    /// Waits until others have been heard and no more of them come, for no longer than `patience`. Who asks nobody yet would
    /// fetch all by itself.
    pub async fn settled(&self, patience: Duration) {
        let mut news = self.handle.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
        let settled = async {
            // The sender lives as long as the handle: neither of these fails before.
            news.wait_for(|live| members(live).len() > 1).await.ok();
            while tokio::time::timeout(2 * ROUND, news.changed()).await.is_ok_and(|news| news.is_ok()) {}
        };
        // Either way it goes on: nobody may be there.
        tokio::time::timeout(patience, settled).await.ok();
    }

    /// Tells the others which tenants this node hosts from now on, each by its [`token`](super::token).
    pub async fn host(&self, tenants: &[u64]) {
        self.handle.with_chitchat(|chitchat| chitchat.self_node_state().set(TENANTS, list(tenants))).await;
    }

    /// Tells the others that this node is about to leave: from then on it owns nothing, and has nothing that they should
    /// turn to it for.
    pub async fn drain(&self) {
        self.handle
            .with_chitchat(|chitchat| {
                let state = chitchat.self_node_state();
                state.set(DRAINING, true);
                state.set(HOLDS, "");
            })
            .await;
    }
}

impl Members for Gossip {
    fn roll(&self) -> &Roll {
        &self.roll
    }

    fn announce(&self, holds: Vec<u64>) {
        let chitchat = self.handle.chitchat();
        self.runtime.spawn(async move {
            let mut chitchat: tokio::sync::MutexGuard<'_, Chitchat> = chitchat.lock().await;
            let state = chitchat.self_node_state();
            if state.get(DRAINING) != Some("true") {
                state.set(HOLDS, list(&holds));
            }
        });
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.handle.abort();
        self.watching.abort();
    }
}

impl fmt::Debug for Gossip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gossip({:?})", self.handle.chitchat_id())
    }
}

const ZONE: &str = "zone";
const CAPACITY: &str = "capacity";
const VERSION: &str = "protocol";
const DRAINING: &str = "draining";
const TENANTS: &str = "tenants";
const HOLDS: &str = "holds";

fn announced(member: &Member) -> Vec<(String, String)> {
    let values = [
        (ZONE, member.zone.clone()),
        (CAPACITY, member.capacity.to_string()),
        (VERSION, member.protocol.to_string()),
        (DRAINING, member.draining.to_string()),
        (TENANTS, list(&member.tenants)),
        (HOLDS, list(&member.holds)),
    ];
    values.map(|(key, value)| (key.to_owned(), value)).into()
}

/// The members that said enough of themselves. Of two lives of one node the later counts.
fn members(live: &BTreeMap<ChitchatId, NodeState>) -> Vec<Arc<Member>> {
    let mut newest = BTreeMap::new();
    for (id, state) in live {
        if let Some(member) = member(id, state) {
            newest.insert(id.node_id.clone(), (id.generation_id, member));
        }
    }
    newest.into_values().map(|(_, member)| Arc::new(member)).collect()
}

fn member(id: &ChitchatId, state: &NodeState) -> Option<Member> {
    let numbers = |key| state.get(key).map(unlist).unwrap_or_default();
    Some(Member {
        id: id.node_id.to_string(),
        address: id.gossip_advertise_addr,
        zone: state.get(ZONE)?.to_owned(),
        capacity: state.get(CAPACITY)?.parse().ok()?,
        protocol: state.get(VERSION).map_or(Some(PROTOCOL), |version| version.parse().ok())?,
        draining: state.get(DRAINING) == Some("true"),
        tenants: numbers(TENANTS),
        holds: numbers(HOLDS),
    })
}

fn list(numbers: &[u64]) -> String {
    numbers.iter().map(|n| format!("{n:016x}")).collect::<Vec<_>>().join(",")
}

fn unlist(text: &str) -> Vec<u64> {
    text.split(',').filter_map(|n| u64::from_str_radix(n, 16).ok()).collect()
}

/// Letters over the peers' link, as chitchat wants to have them.
struct Talk {
    link: Arc<Http>,
    me: SocketAddr,
    letters: Mutex<Option<Letters>>,
}

struct Mail {
    link: Arc<Http>,
    me: SocketAddr,
    letters: Letters,
    sending: Arc<tokio::sync::Semaphore>,
}

#[async_trait]
impl Transport for Talk {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let letters = self.letters.lock().take();
        let letters = letters.ok_or_else(|| anyhow::anyhow!("the letterbox is in use"))?;
        let sending = Arc::new(tokio::sync::Semaphore::new(MESSAGES));
        Ok(Box::new(Mail { link: self.link.clone(), me: self.me, letters, sending }))
    }
}

#[async_trait]
impl Socket for Mail {
    /// Nobody waits for a letter to arrive: who is gone must not hold up the others.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        message.serialize(&mut bytes);
        if let Ok(place) = self.sending.clone().try_acquire_owned() {
            let (link, me) = (self.link.clone(), self.me);
            tokio::spawn(async move {
                if let Err(error) = link.tell(to, me, bytes).await {
                    tracing::debug!(%error, %to, "a member was told nothing");
                }
                drop(place);
            });
        }
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let Some((from, bytes)) = self.letters.0.recv().await else {
                // Nobody can send any more; chitchat takes an error for a broken machine.
                return std::future::pending().await;
            };
            match ChitchatMessage::deserialize(&mut &bytes[..]) {
                Ok(message) => return Ok((from, message)),
                Err(error) => tracing::debug!(%error, %from, "not understood"),
            }
        }
    }
}
