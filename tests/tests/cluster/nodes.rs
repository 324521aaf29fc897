//! A cluster in one process: real engines, real connections, one mirror that counts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use axum::http::Method;
use bdnfs::blob::Key;
use bdnfs::block::BLOCK;
use bdnfs::cache::Limits;
use bdnfs::engine::{Config, Engine};
use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::Node as Entry;
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::source_key;
use bdnfs::mirroring::{MirrorConfig, MirrorProgress, MirrorSource, mirror_source};
use bdnfs::peer::client::Peers;
use bdnfs::peer::client::http::HttpPeerClient;
use bdnfs::peer::membership::{Membership, MembershipView};
use bdnfs::peer::server::listener;
use bdnfs::peer::server::{BlockProvider, PeerServer};
use bdnfs::peer::wire::{BlockRequest, Role};
use bdnfs::peer::{Member, PROTOCOL, token};
use bdnfs::peer_service::PeerBlockService;
use bdnfs::snapshot::Snapshot;
use bdnfs::source::{Access, Patterns, S3Access, Secret};
use bdnfs::tier::lazy_origin::OriginOpener;
use bdnfs::tier::memory::MemoryTier;
use bdnfs::tier::{Body, Urgency};
use bdnfs_tests::MIB;
use bdnfs_tests::s3::{Keys, S3Server};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

const TENANT: &str = "tenant";

/// Some nodes, and the mirror with one snapshot that they share.
pub struct InProcessCluster {
    pub nodes: Vec<InProcessNode>,
    members: Arc<FixedMembership>,
    mirror: Mirror,
    s3: S3Server,
    files: BTreeMap<Vec<u8>, Bytes>,
    _root: TempDir,
}

/// One node.
pub struct InProcessNode {
    pub id: String,
    pub peers: Arc<Peers>,
    snapshot: OnceLock<Arc<Snapshot>>,
    engine: Engine,
    mirror: Mirror,
    provider: Arc<FaultyProvider>,
    listening: Mutex<Option<JoinHandle<()>>>,
    _directory: TempDir,
}

/// The members of the cluster, known to all nodes at once.
#[derive(Debug, Default)]
struct FixedMembership(MembershipView);

impl FixedMembership {
    fn change(&self, id: &str, change: impl FnOnce(&mut Member)) {
        let mut list: Vec<_> = self.0.live().to_vec();
        if let Some(member) = list.iter_mut().find(|member| member.id == id) {
            change(Arc::make_mut(member));
        }
        self.0.set(list);
    }
}

/// The membership as one node sees it.
#[derive(Debug)]
struct NodeMembership {
    gossip: Arc<FixedMembership>,
    me: String,
}

impl Membership for NodeMembership {
    fn view(&self) -> &MembershipView {
        &self.gossip.0
    }

    fn announce(&self, holds: Vec<u64>) {
        self.gossip.change(&self.me, |member| member.holds = holds);
    }
}

/// Serves blocks to peers, and may corrupt them or freeze.
#[derive(Debug)]
struct FaultyProvider {
    inner: Arc<PeerBlockService>,
    /// 1: it lies, 2: it sends nothing more.
    fault: AtomicU64,
}

impl BlockProvider for FaultyProvider {
    fn provide<'a>(&'a self, request: &'a BlockRequest) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            if self.fault.load(Relaxed) == 2 {
                return std::future::pending().await;
            }
            let lent = self.inner.provide(request).await?;
            if self.fault.load(Relaxed) != 1 {
                return Ok(lent);
            }
            let lie = |bytes: Bytes| bytes.iter().map(|byte| byte ^ 0x80).collect::<Bytes>();
            Ok(lent.map(|body| body.map_ok(lie).boxed()))
        }
        .boxed()
    }

    fn progress(&self) -> u64 {
        self.inner.progress()
    }
}

impl InProcessCluster {
    /// `count` nodes, and a mirror with files of these names and sizes.
    pub async fn start(count: usize, files: &[(&str, usize)]) -> Self {
        let mut cluster = Self::empty(files).await;
        for number in 0..count {
            cluster.nodes.push(cluster.join(&format!("node-{number}")).await);
        }
        cluster
    }

    /// No node yet.
    pub async fn empty(files: &[(&str, usize)]) -> Self {
        let root = TempDir::with_prefix("bdnfs-cluster-").expect("a directory");
        std::fs::create_dir(root.path().join("mirror")).expect("a bucket");
        let s3 = S3Server::start(root.path(), Some(Keys::sample()));
        let mirror = mirror(&s3, root.path());
        let origin = Arc::new(MemoryTier::new("memory://origin"));
        let noise = |name: &str, len| {
            let mut bytes = vec![0; len];
            blake3::Hasher::new().update(name.as_bytes()).finalize_xof().fill(&mut bytes);
            Bytes::from(bytes)
        };
        let files: BTreeMap<_, _> =
            files.iter().map(|(name, len)| (name.as_bytes().to_vec(), noise(name, *len))).collect();
        files.iter().for_each(|(path, content)| origin.put(path, content.clone()));
        let (name, identity) = ("memory://origin".to_owned(), "memory://origin".to_owned());
        let source = MirrorSource {
            name,
            identity,
            executable: Vec::new(),
            patterns: Patterns::default(),
            origin,
            hash_first: false,
            previous: Default::default(),
        };
        let config = MirrorConfig { memory: 64 << 20 };
        mirror.init().await.expect("founded");
        mirror_source(&mirror, &source, config, &MirrorProgress::default()).await.expect("published");
        Self { nodes: Vec::new(), members: Arc::default(), mirror, s3, files, _root: root }
    }

    /// One more node.
    pub async fn join(&self, id: &str) -> InProcessNode {
        self.join_with(id, None).await
    }

    /// The same, whose disk has no more room than that.
    pub async fn join_with(&self, id: &str, room: Option<u64>) -> InProcessNode {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let member = Member {
            id: id.into(),
            address: listener.local_addr().expect("bound"),
            zone: "z".into(),
            capacity: 1 << 40,
            protocol: PROTOCOL,
            draining: false,
            tenants: vec![token(&[TENANT.as_bytes()])],
            holds: Vec::new(),
        };
        let output = NodeMembership { gossip: self.members.clone(), me: id.into() };
        let all = self.members.0.live();
        self.members.0.set(all.iter().cloned().chain([Arc::new(member.clone())]));
        let peers = Peers::new(member, Arc::new(output), Arc::new(HttpPeerClient::plain()));
        let directory = TempDir::with_prefix("bdnfs-node-").expect("a directory");
        let engine = engine(directory.path(), room);
        engine.join(peers.clone());
        let inner = Arc::new(PeerBlockService::new(engine.clone(), self.mirror.clone()));
        let provider = Arc::new(FaultyProvider { inner, fault: AtomicU64::new(0) });
        let server = Arc::new(PeerServer::default());
        server.host(TENANT, provider.clone());
        let listening = Mutex::new(Some(tokio::spawn(listener::serve(listener, server, None))));
        let (id, snapshot, mirror) = (id.into(), OnceLock::new(), self.mirror.clone());
        let node =
            InProcessNode { id, peers, snapshot, engine, mirror, provider, listening, _directory: directory };
        node.open().await;
        node
    }

    /// The node `id` tells the others that it is about to leave.
    pub fn drain(&self, id: &str) {
        self.members.change(id, |member| (member.draining, member.holds) = (true, Vec::new()));
    }

    /// Stages the snapshot on all nodes at once.
    pub async fn stage_all(&self) {
        let staged = self.nodes.iter().map(InProcessNode::stage);
        futures_util::future::try_join_all(staged).await.expect("staged everywhere");
    }

    /// How often the mirror's content was read, all of it.
    pub fn mirror_reads(&self) -> f64 {
        let blobs = |path: &str| path.starts_with("/mirror/") && path.contains("/blobs/");
        let total: usize = self.files.values().map(Bytes::len).sum();
        self.s3.requests.of(Method::GET, blobs).bytes as f64 / total as f64
    }

    /// How many requests for manifests a node that has nothing makes when it is asked for `asks` blocks of the first file at
    /// once.
    pub async fn manifest_requests(&self, asks: u64) -> u64 {
        let directory = TempDir::with_prefix("bdnfs-node-").expect("a directory");
        let service = Arc::new(PeerBlockService::new(engine(directory.path(), None), self.mirror.clone()));
        let snapshot = self.nodes[0].snapshot();
        let blob = snapshot.manifest().blob(0).expect("a file");
        let Key::Content(digest) = blob.key else { panic!("by content") };
        let request = |index: u64| BlockRequest {
            tenant: TENANT.into(),
            snapshot: snapshot.id(),
            blob: digest,
            size: blob.size,
            range: index * BLOCK..(index + 1) * BLOCK,
            role: Role::Owner,
            urgency: Urgency::Read,
        };
        let manifests = || self.s3.requests.of(Method::GET, |path| path.contains("/manifests/")).requests;
        let before = manifests();
        let answers = (0..asks).map(|index| {
            let (service, request) = (service.clone(), request(index));
            async move { service.provide(&request).await?.expect("an owner").try_collect::<Vec<_>>().await }
        });
        futures_util::future::try_join_all(answers).await.expect("served");
        manifests() - before
    }

    /// Waits until the mirror has been read so often.
    pub async fn until(&self, enough: impl Fn(f64) -> bool) {
        while !enough(self.mirror_reads()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Reads everything on `node`, and holds it against what was published.
    pub async fn assert_right(&self, node: &InProcessNode) {
        let snapshot = node.snapshot();
        let manifest = snapshot.manifest();
        for index in 0..manifest.entries() {
            let Entry::File(slice) = manifest.entry(index).expect("whole").node else { continue };
            let path = manifest.path(index).expect("whole");
            let reader = snapshot.open(slice).expect("open");
            let expected = &self.files[&path];
            for at in (0..slice.len).step_by(4 * MIB) {
                let pieces = reader.read_at(at, 4 * MIB).await.unwrap_or_else(|e| panic!("{}: {e}", node.id));
                let end = (at as usize + 4 * MIB).min(expected.len());
                assert!(
                    pieces.concat() == expected[at as usize..end],
                    "{} at {at} on {}",
                    path.escape_ascii(),
                    node.id
                );
            }
        }
    }

    pub async fn assert_right_everywhere(&self) {
        for node in &self.nodes {
            self.assert_right(node).await;
        }
    }
}

impl InProcessNode {
    async fn open(&self) {
        let key = source_key("memory://origin", &Patterns::default());
        let open: OriginOpener =
            Box::new(|| async { Err(Error::new(Kind::Refused, "the origin is not for nodes")) }.boxed());
        let found = self.mirror.find(&key).await.expect("a mirror in order").expect("mirrored");
        let opened = self.engine.mirrored(&self.mirror, &found, open).await;
        self.snapshot.set(opened.expect("a mirror in order")).expect("once");
    }

    pub fn snapshot(&self) -> &Arc<Snapshot> {
        self.snapshot.get().expect("opened")
    }

    pub async fn stage(&self) -> Result<()> {
        self.snapshot().stage().done().await
    }

    /// Whether a peer did not respond to it within a second, as on a busy machine: it reads the mirror instead, until that peer may
    /// be asked again.
    pub fn missed_a_peer(&self) -> bool {
        self.peers.stats().failed > 0
    }

    /// From now on what it gives others is wrong.
    pub fn lie(&self) {
        self.provider.fault.store(1, Relaxed);
    }

    /// From now on it says nothing to others any more.
    pub fn freeze(&self) {
        self.provider.fault.store(2, Relaxed);
    }

    /// Others can't reach it any more, and what they were being sent breaks off.
    pub fn cut_off(&self) {
        if let Some(listening) = self.listening.lock().take() {
            listening.abort();
        }
    }
}

fn engine(directory: &Path, capacity: Option<u64>) -> Engine {
    let config = Config {
        cache: directory.to_owned(),
        tenant: TENANT.into(),
        limits: Limits { capacity, reserve: 0 },
        quotas: Default::default(),
        memory: 64 << 20,
        now: SystemTime::now,
    };
    Engine::open(&config, Handle::current()).expect("a cache")
}

fn mirror(s3: &S3Server, scratch: &Path) -> Mirror {
    let keys = Keys::sample();
    let s3 = S3Access {
        access_key_id: Some(keys.access.clone()),
        secret_access_key: Some(Secret::new(keys.secret.clone())),
        endpoint: Some(s3.server.url()),
        region: Some("us-east-1".into()),
        ..S3Access::default()
    };
    let access = Access { s3: Some(s3), ..Access::default() };
    let uri = "s3://mirror".parse().expect("a URI");
    Mirror::open(&uri, &access, TENANT, scratch.to_owned()).expect("a mirror")
}
