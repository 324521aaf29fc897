//! The part of an agent in a cluster: its membership, and what it serves to peers.

mod config;
mod tenants;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bdnfs::engine::Engine;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::peer::backoff::PeerState;
use bdnfs::peer::client::Peers;
use bdnfs::peer::client::http::HttpPeerClient;
use bdnfs::peer::identity::Identity;
use bdnfs::peer::membership::gossip::{self, Gossip};
use bdnfs::peer::membership::gossip_client::GossipClient;
use bdnfs::peer::server::PeerServer;
use bdnfs::peer::server::listener;
use bdnfs::peer::{Member, PROTOCOL, token};
use bdnfs::source::SecretStore;
use bdnfs::task::blocking;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub use config::ClusterConfig;

use tenants::HostedTenants;

use crate::api::cluster::{ClusterStatus, MemberState, MemberStatus};

/// The time that a starting node waits for other members: a node that knows no peers would fetch everything from the mirror.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(5);

/// The time without a request after which a draining node exits: by then the others know that it drains, and have fetched what they
/// own from now on. And the most that draining takes: supervisors give a process 30 seconds and more.
const DRAIN_QUIET_TIME: Duration = Duration::from_secs(1);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval at which a draining node checks whether it still serves requests.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A node that is part of a cluster, until it is dropped.
#[derive(Debug)]
pub struct ClusterMembership {
    name: String,
    is_secure: bool,
    has_seeds: bool,
    peers: Arc<Peers>,
    gossip: Arc<Gossip>,
    server: Arc<PeerServer>,
    _tasks: JoinSet<()>,
}

impl ClusterMembership {
    /// Joins the cluster: `engine` reads from peers first, and serves its blocks to them. Secrets that the mirror names are
    /// looked up in `secrets`.
    pub async fn join(
        engine: &Engine,
        config: ClusterConfig,
        cache: &Path,
        secrets: &[SecretStore],
    ) -> Result<Self> {
        let identity = match config.files.clone() {
            Some(files) => Some(blocking(|| Identity::open(files)).await?),
            None => None,
        };
        let (id, tenants) = id_and_tenants(&config, identity.as_deref())?;
        let listener = TcpListener::bind(config.listen).await.map_err(|e| {
            let text = format!("cannot listen at {} for peers (cluster.listen)", config.listen);
            Error::with(Kind::Unavailable, text, e)
        })?;
        let capacity = config.capacity.or(engine.usage().capacity);
        let me = Member {
            id,
            address: config.advertise,
            zone: config.zone,
            capacity: capacity.map_or_else(|| disk(cache), Ok)?,
            protocol: PROTOCOL,
            draining: false,
            tenants: tenants.iter().map(|tenant| token(&[tenant.as_bytes()])).collect(),
            holds: Vec::new(),
        };
        let gossip_client = GossipClient::new(identity.clone())?;
        let client = identity.clone().map_or_else(HttpPeerClient::plain, HttpPeerClient::new);
        let server = Arc::new(PeerServer::default());
        let mut hosted = HostedTenants::new(engine, &config.mirror, cache, secrets, Arc::clone(&server));
        for tenant in tenants {
            hosted.host(tenant).await?;
        }
        let (sender, messages) = gossip::gossip_channel();
        server.set_gossip_sender(sender);
        let mut tasks = JoinSet::new();
        tasks.spawn(listener::serve(listener, Arc::clone(&server), identity.clone()));
        let is_secure = identity.is_some();
        let others = |seed: &String| seed.parse() != Ok(config.advertise);
        let (name, has_seeds) = (config.name.clone(), config.seeds.iter().any(others));
        // Each life of a node begins later than the one before.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let generation = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let gossip_config =
            gossip::GossipConfig { cluster: config.name, me: me.clone(), generation, seeds: config.seeds };
        let gossip = Gossip::start(gossip_config, gossip_client, messages).await?;
        if let Some(identity) = identity {
            tasks.spawn(hosted.follow(Arc::clone(&identity), Arc::clone(&gossip)));
            tasks.spawn(identity.follow());
        }
        let peers = Peers::new(me, Arc::clone(&gossip) as _, Arc::new(client));
        engine.join(Arc::clone(&peers));
        tracing::info!(
            "node {} of the cluster {name} serves peers at {}",
            peers.local_member().id,
            config.listen
        );
        Ok(Self { name, is_secure, has_seeds, peers, gossip, server, _tasks: tasks })
    }

    /// Waits for at most [`MEMBERS_TIMEOUT`] until other members are known, if seeds are configured.
    pub async fn await_members(&self) {
        if self.has_seeds {
            self.gossip.await_members_stable(MEMBERS_TIMEOUT).await;
        }
    }

    /// Drains the node: announces it, lets the new owners fetch their blocks from here, and finishes running responses.
    pub async fn leave(&self) {
        self.gossip.drain().await;
        let alone = self.peers.members().len() < 2;
        if alone {
            return;
        }
        tracing::info!("leaving the cluster");
        let quiet = async {
            let mut since = Instant::now();
            while since.elapsed() < DRAIN_QUIET_TIME {
                tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
                if self.server.busy() > 0 {
                    since = Instant::now();
                }
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, quiet).await.is_err() {
            tracing::warn!("drain timed out: {} responses to peers were cut off", self.server.busy());
        }
    }

    /// The members, and their states.
    pub fn status(&self) -> ClusterStatus {
        let me = self.peers.local_member();
        let members = self.peers.members();
        let mut members: Vec<_> = members.iter().map(|member| self.member(member)).collect();
        members.sort_by(|a, b| a.id.cmp(&b.id));
        ClusterStatus {
            name: self.name.clone(),
            id: me.id.clone(),
            secure: self.is_secure,
            members,
            sent: self.server.sent(),
            asked: self.peers.stats(),
        }
    }

    fn member(&self, member: &Member) -> MemberStatus {
        let (state, left) = match self.peers.state_of(&member.id) {
            PeerState::Banned(left) => (MemberState::Banned, Some(left)),
            _ if member.draining => (MemberState::Draining, None),
            PeerState::BackingOff(left) => (MemberState::Suspected, Some(left)),
            PeerState::Available => (MemberState::Alive, None),
        };
        let until = left.and_then(|left| (SystemTime::now() + left).duration_since(UNIX_EPOCH).ok());
        MemberStatus {
            id: member.id.clone(),
            address: member.address,
            zone: member.zone.clone(),
            capacity: member.capacity,
            protocol: member.protocol,
            state,
            until: until.map(|until| until.as_secs()),
        }
    }
}

/// The node's name and its tenants: those of its certificate, if it has one.
fn id_and_tenants(config: &ClusterConfig, identity: Option<&Identity>) -> Result<(String, Vec<String>)> {
    let Some(own) = identity.map(Identity::own) else {
        let id = config
            .id
            .clone()
            .unwrap_or_else(|| config.advertise.to_string().replace(['.', ':', '[', ']'], "-"));
        return Ok((id, config.tenants.clone()));
    };
    let (id, tenants) = (own.id.unwrap_or_default(), own.tenants.unwrap_or_default());
    if let Some(other) = config.id.as_ref().filter(|named| **named != id) {
        let text = format!("cluster.id says that this node is {other}, and its certificate that it is {id}");
        return Err(Error::new(Kind::Invalid, text));
    }
    Ok((id, tenants))
}

/// The size of the disk of `cache`, in bytes.
fn disk(cache: &Path) -> Result<u64> {
    let disk = rustix::fs::statvfs(cache);
    let disk = disk.map_err(|e| Error::disk("cannot read the size of the cache's disk", e.into()))?;
    Ok(disk.f_blocks.saturating_mul(disk.f_frsize))
}
