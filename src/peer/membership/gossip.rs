//! Gossip: members discover each other (the crate `chitchat`: scuttlebutt with a failure detector).
//!
//! Gossip messages go over HTTP on the peers' own port, with mutual TLS where there is any. So no node without a certificate
//! of the cluster can become a member, and a firewall opens one port. docs/decisions/chitchat.md says why it is version 0.11.

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

use super::gossip_client::GossipClient;
use super::{Membership, MembershipView};
use crate::error::{Error, Kind, Result};
use crate::peer::{Member, PROTOCOL};

/// The interval at which each member gossips with three others: a change reaches a thousand of them in a few rounds.
const GOSSIP_INTERVAL: Duration = Duration::from_millis(500);

/// The time for which a dead member is remembered, so that stale gossip of others does not bring it back.
const DEAD_MEMBER_RETENTION: Duration = Duration::from_secs(600);

/// The number of messages that may be queued each way. More are dropped, and the next round makes up for them.
const QUEUE_LENGTH: usize = 64;

/// A gossip message, and the address where its sender listens.
pub type GossipMessage = (SocketAddr, Bytes);

/// The configuration of gossip.
#[derive(Clone, Debug)]
pub struct GossipConfig {
    /// The cluster's name: messages of other clusters are ignored.
    pub cluster: String,
    /// The member that this node announces itself as. Its address must be reachable by the others.
    pub me: Member,
    /// The generation of the node: larger at each start, such as seconds since 1970.
    pub generation: u64,
    /// Addresses of other members: `host:port`, of which names are resolved anew every minute.
    pub seeds: Vec<String>,
}

/// The membership, as gossip reports it.
pub struct Gossip {
    handle: ChitchatHandle,
    view: Arc<MembershipView>,
    watching: JoinHandle<()>,
    runtime: Handle,
}

/// The queue into which the server puts gossip messages for this node.
#[derive(Clone, Debug)]
pub struct GossipSender(mpsc::Sender<GossipMessage>);

/// The gossip messages that arrived.
#[derive(Debug)]
pub struct GossipReceiver(mpsc::Receiver<GossipMessage>);

/// A bounded channel for gossip messages.
pub fn gossip_channel() -> (GossipSender, GossipReceiver) {
    let (sender, receiver) = mpsc::channel(QUEUE_LENGTH);
    (GossipSender(sender), GossipReceiver(receiver))
}

impl GossipSender {
    /// Sends a message, or drops it when the channel is full.
    pub fn send(&self, message: GossipMessage) {
        self.0.try_send(message).ok();
    }
}

impl Gossip {
    /// Starts to gossip over `client`; messages of other members arrive by `incoming`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when it can't start.
    pub async fn start(
        config: GossipConfig,
        client: GossipClient,
        messages: GossipReceiver,
    ) -> Result<Arc<Self>> {
        let GossipConfig { cluster, me, generation, seeds } = config;
        let announced = announced(&me);
        let transport =
            HttpTransport { client: Arc::new(client), me: me.address, messages: Mutex::new(Some(messages)) };
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(me.id.as_str(), generation, me.address),
            cluster_id: cluster,
            gossip_interval: GOSSIP_INTERVAL,
            listen_addr: me.address,
            seed_nodes: seeds,
            failure_detector_config: FailureDetectorConfig {
                initial_interval: GOSSIP_INTERVAL,
                dead_node_grace_period: DEAD_MEMBER_RETENTION,
                ..FailureDetectorConfig::default()
            },
            marked_for_deletion_grace_period: DEAD_MEMBER_RETENTION,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let failed = |e: anyhow::Error| {
            Error::with(Kind::Unavailable, "cannot start gossip", e.into_boxed_dyn_error())
        };
        let handle = spawn_chitchat(config, announced, &transport).await.map_err(failed)?;
        let view = Arc::new(MembershipView::default());
        view.set([Arc::new(me)]);
        let mut live_nodes = handle.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
        let watched = view.clone();
        let watching = tokio::spawn(async move {
            while live_nodes.changed().await.is_ok() {
                let members = members(&live_nodes.borrow_and_update());
                watched.set(members);
            }
        });
        Ok(Arc::new(Self { handle, view, watching, runtime: Handle::current() }))
    }

    /// Waits until other members are known and no more of them join, for at most `limit`. A node that knows no others would
    /// fetch everything itself.
    pub async fn await_members_stable(&self, limit: Duration) {
        let mut live_nodes = self.handle.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
        let stable = async {
            // The sender lives as long as the handle: neither of these fails before.
            live_nodes.wait_for(|live| members(live).len() > 1).await.ok();
            while tokio::time::timeout(2 * GOSSIP_INTERVAL, live_nodes.changed())
                .await
                .is_ok_and(|live_nodes| live_nodes.is_ok())
            {}
        };
        // A timeout is no error: there may be no others.
        tokio::time::timeout(limit, stable).await.ok();
    }

    /// Announces which tenants this node hosts from now on, each by its [`token`](crate::peer::token).
    pub async fn host(&self, tenants: &[u64]) {
        self.handle
            .with_chitchat(|chitchat| chitchat.self_node_state().set(TENANTS_KEY, encode_numbers(tenants)))
            .await;
    }

    /// Announces that this node is draining: from then on it owns nothing, and is no holder of any snapshot.
    pub async fn drain(&self) {
        self.handle
            .with_chitchat(|chitchat| {
                let state = chitchat.self_node_state();
                state.set(DRAINING_KEY, true);
                state.set(HOLDS_KEY, "");
            })
            .await;
    }
}

impl Membership for Gossip {
    fn view(&self) -> &MembershipView {
        &self.view
    }

    fn announce(&self, holds: Vec<u64>) {
        let chitchat = self.handle.chitchat();
        self.runtime.spawn(async move {
            let mut chitchat: tokio::sync::MutexGuard<'_, Chitchat> = chitchat.lock().await;
            let state = chitchat.self_node_state();
            if state.get(DRAINING_KEY) != Some("true") {
                state.set(HOLDS_KEY, encode_numbers(&holds));
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

const ZONE_KEY: &str = "zone";
const CAPACITY_KEY: &str = "capacity";
const PROTOCOL_KEY: &str = "protocol";
const DRAINING_KEY: &str = "draining";
const TENANTS_KEY: &str = "tenants";
const HOLDS_KEY: &str = "holds";

fn announced(member: &Member) -> Vec<(String, String)> {
    let values = [
        (ZONE_KEY, member.zone.clone()),
        (CAPACITY_KEY, member.capacity.to_string()),
        (PROTOCOL_KEY, member.protocol.to_string()),
        (DRAINING_KEY, member.draining.to_string()),
        (TENANTS_KEY, encode_numbers(&member.tenants)),
        (HOLDS_KEY, encode_numbers(&member.holds)),
    ];
    values.map(|(key, value)| (key.to_owned(), value)).into()
}

/// The members whose announcement is complete. Of two generations of one node the later counts.
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
    let numbers = |key| state.get(key).map(decode_numbers).unwrap_or_default();
    Some(Member {
        id: id.node_id.to_string(),
        address: id.gossip_advertise_addr,
        zone: state.get(ZONE_KEY)?.to_owned(),
        capacity: state.get(CAPACITY_KEY)?.parse().ok()?,
        protocol: state.get(PROTOCOL_KEY).map_or(Some(PROTOCOL), |version| version.parse().ok())?,
        draining: state.get(DRAINING_KEY) == Some("true"),
        tenants: numbers(TENANTS_KEY),
        holds: numbers(HOLDS_KEY),
    })
}

fn encode_numbers(numbers: &[u64]) -> String {
    numbers.iter().map(|n| format!("{n:016x}")).collect::<Vec<_>>().join(",")
}

fn decode_numbers(text: &str) -> Vec<u64> {
    text.split(',').filter_map(|n| u64::from_str_radix(n, 16).ok()).collect()
}

/// The transport of gossip messages: requests to the peers' own port, as chitchat wants to have it.
struct HttpTransport {
    client: Arc<GossipClient>,
    me: SocketAddr,
    messages: Mutex<Option<GossipReceiver>>,
}

struct HttpSocket {
    client: Arc<GossipClient>,
    me: SocketAddr,
    messages: GossipReceiver,
    sending: Arc<tokio::sync::Semaphore>,
}

#[async_trait]
impl Transport for HttpTransport {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let messages = self.messages.lock().take();
        let messages = messages.ok_or_else(|| anyhow::anyhow!("the gossip channel is in use"))?;
        let sending = Arc::new(tokio::sync::Semaphore::new(QUEUE_LENGTH));
        Ok(Box::new(HttpSocket { client: self.client.clone(), me: self.me, messages, sending }))
    }
}

#[async_trait]
impl Socket for HttpSocket {
    /// Starts the delivery and does not wait for it: a dead member must not delay messages to others.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        message.serialize(&mut bytes);
        if let Ok(place) = self.sending.clone().try_acquire_owned() {
            let (client, me) = (self.client.clone(), self.me);
            tokio::spawn(async move {
                if let Err(error) = client.send(to, me, bytes).await {
                    tracing::debug!(%error, %to, "a gossip message was not delivered");
                }
                drop(place);
            });
        }
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let Some((from, bytes)) = self.messages.0.recv().await else {
                // The server has ended. An error would make chitchat report a broken transport.
                return std::future::pending().await;
            };
            match ChitchatMessage::deserialize(&mut &bytes[..]) {
                Ok(message) => return Ok((from, message)),
                Err(error) => tracing::debug!(%error, %from, "cannot decode a gossip message"),
            }
        }
    }
}
