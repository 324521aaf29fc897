//! Nodes that prove who they are, with the certificates that `bdnfs cluster` makes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::blob::{Blob, Key, MirrorLocation};
use bdnfs::block::{BLOCK, Check};
use bdnfs::digest::Digest;
use bdnfs::error::{Kind, Result};
use bdnfs::peer::client::Peers;
use bdnfs::peer::client::http::HttpPeerClient;
use bdnfs::peer::identity::{CertificateFiles, Identity};
use bdnfs::peer::membership::gossip::{self, Gossip};
use bdnfs::peer::membership::gossip_client::GossipClient;
use bdnfs::peer::membership::{Membership, StaticMembership};
use bdnfs::peer::server::listener;
use bdnfs::peer::server::{BlockProvider, PeerServer};
use bdnfs::peer::wire::BlockRequest;
use bdnfs::peer::{Member, PROTOCOL, token};
use bdnfs::tier::{Body, Urgency};
use bdnfs_tests::ca::TestCa;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair, SanType, date_time_ymd};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// How often a peer that is late is asked.
const MAX_TRIES: u32 = 30;
const CONTENT: &[u8] = b"what belongs to the tenant blue";

/// A provider with one blob on it.
#[derive(Debug)]
struct OneBlobProvider;

impl BlockProvider for OneBlobProvider {
    fn provide<'a>(&'a self, request: &'a BlockRequest) -> BoxFuture<'a, Result<Option<Body>>> {
        let wanted = (request.blob == Digest::of(CONTENT))
            .then(|| Bytes::from_static(&CONTENT[request.range.start as usize..request.range.end as usize]));
        async move { Ok(wanted.map(|bytes| stream::iter([Ok(bytes)]).boxed())) }.boxed()
    }

    fn progress(&self) -> u64 {
        0
    }
}

/// Waits until `count` has not changed for longer than a peer waits for a response, and returns it.
pub async fn await_constant<T: PartialEq>(count: impl Fn() -> T) -> T {
    loop {
        let before = count();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        if count() == before {
            return before;
        }
    }
}

/// The certificate of `id`, which trusts `authority`.
pub fn signed(ca: &TestCa, id: &str, authority: &str) -> CertificateFiles {
    let at = |name: String| ca.root().join(name);
    CertificateFiles {
        certificate: at(format!("{id}.pem")),
        key: at(format!("{id}.key")),
        authority: at(format!("{authority}/ca.pem")),
    }
}

pub fn member(id: &str, port: u16) -> Member {
    Member {
        id: id.into(),
        address: ([127, 0, 0, 1], port).into(),
        zone: "z".into(),
        capacity: 1,
        protocol: PROTOCOL,
        draining: false,
        tenants: vec![token(&[b"blue"]), token(&[b"red"])],
        holds: Vec::new(),
    }
}

struct TestPeer {
    port: u16,
    task: JoinHandle<()>,
    server: Arc<PeerServer>,
}

async fn serve(identity: Option<Arc<Identity>>) -> TestPeer {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let server = Arc::new(PeerServer::default());
    server.host("blue", Arc::new(OneBlobProvider));
    let task = tokio::spawn(listener::serve(listener, server.clone(), identity));
    TestPeer { port, task, server }
}

/// What `client` gets of the blob of `blue`, asked for as `tenant`'s, from the node `id`; `None`: nothing is there.
async fn get(client: HttpPeerClient, id: &str, port: u16, tenant: &str) -> Result<Option<Bytes>> {
    get_of(client, member(id, port), tenant, Digest::of(b"snapshot"), CONTENT).await
}

/// What `client` gets of the first block of the blob with this `content`, which is in `snapshot`, from `peer`. A peer has a second
/// to respond, which a busy machine may take: it is asked again then.
pub async fn get_of(
    client: HttpPeerClient,
    peer: Member,
    tenant: &str,
    snapshot: Digest,
    content: &[u8],
) -> Result<Option<Bytes>> {
    let client = Arc::new(client);
    let (size, key) = (content.len() as u64, Key::Content(Digest::of(content)));
    let blocks = content.chunks(BLOCK as usize).zip(0..);
    let checks = Some(blocks.map(|(block, index)| Check::of(size, index, block)).collect());
    let (path, version) = Default::default();
    let blob = Blob { key, size, checks, path, version, sha256: None, stored: MirrorLocation::default() };
    let mut tries = 0;
    loop {
        let members = StaticMembership::default();
        members.set([peer.clone()]);
        let peers = Peers::new(member("asking", 1), Arc::new(members), client.clone());
        let peer_tier = peers.placement(tenant, snapshot).peers()[1].clone();
        let fetched: Result<Option<Bytes>> = async {
            match peer_tier.fetch(&blob, 0..size.min(BLOCK), Urgency::Read).await? {
                Some(body) => Ok(Some(body.try_collect::<Vec<_>>().await?.concat().into())),
                None => Ok(None),
            }
        }
        .await;
        tries += 1;
        match fetched {
            Err(error) if error.kind() == Kind::Timeout && tries < MAX_TRIES => {}
            fetched => return fetched,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_server_serves_own_tenants_of_known_nodes_only() {
    let ca = TestCa::empty();
    for line in [
        "cluster init-ca @ca",
        "cluster init-ca @other",
        "cluster issue owner --ca @ca --tenant blue --out @",
        "cluster issue blue.zone-1 --ca @ca --tenant red --tenant blue --out @",
        "cluster issue red --ca @ca --tenant red --out @",
        "cluster issue stranger --ca @other --tenant blue --out @",
    ] {
        ca.run(line).succeeds();
    }
    ca.run("cluster init-ca @ca").fails(&["already exists"]);
    ca.run("cluster issue Big --ca @ca --tenant blue").fails(&["invalid node id"]);
    ca.run("cluster issue a --ca @nowhere --tenant blue").fails(&["init-ca"]);
    let open = |id, authority| Identity::open(signed(&ca, id, authority)).expect("a node's certificate");
    let client = |id, authority| HttpPeerClient::new(open(id, authority));
    let serving = serve(Some(open("owner", "ca"))).await;
    let right = Some(Bytes::from_static(CONTENT));
    assert_eq!(get(client("blue.zone-1", "ca"), "owner", serving.port, "blue").await.expect("served"), right);
    // More than that where an answer came too late, and is counted later still.
    let sent = await_constant(|| serving.server.sent()).await;
    assert!(sent >= CONTENT.len() as u64, "{sent}");
    // What is another tenant's looks as if it were not there.
    for (id, tenant) in [("red", "blue"), ("blue.zone-1", "red"), ("red", "red")] {
        assert_eq!(
            get(client(id, "ca"), "owner", serving.port, tenant).await.expect("answered"),
            None,
            "{id} {tenant}"
        );
    }
    // Another authority's, no certificate at all, and a server that is not who it should be.
    for refused in [
        get(client("stranger", "ca"), "owner", serving.port, "blue").await,
        get(client("stranger", "other"), "owner", serving.port, "blue").await,
        get(HttpPeerClient::plain(), "owner", serving.port, "blue").await,
        get(client("blue.zone-1", "ca"), "other", serving.port, "blue").await,
    ] {
        refused.expect_err("nothing is served");
    }
    assert_eq!(serving.server.sent(), sent, "nobody else got a byte");
    serving.task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_expired_is_refused_and_renewed_is_loaded() {
    let ca = TestCa::empty();
    for line in [
        "cluster init-ca @ca",
        "cluster issue owner --ca @ca --tenant blue --out @",
        "cluster issue node --ca @ca --tenant blue --out @",
    ] {
        ca.run(line).succeeds();
    }
    let files = signed(&ca, "node", "ca");
    expire(ca.root(), &files);
    let expired = Identity::open(files.clone()).expect("it can be read");
    let owner = Identity::open(signed(&ca, "owner", "ca")).expect("a certificate");
    let serving = serve(Some(owner.clone())).await;
    let client = || HttpPeerClient::new(expired.clone());
    get(client(), "owner", serving.port, "blue").await.expect_err("expired");
    assert!(!expired.refresh().expect("nothing new"));
    let before = client();
    ca.run("cluster issue node --ca @ca --tenant blue --out @").succeeds();
    assert!(expired.refresh().expect("a good one"));
    assert!(get(before, "owner", serving.port, "blue").await.expect("served").is_some(), "without a restart");
    std::fs::write(&files.certificate, "scrap").expect("write");
    expired.refresh().expect_err("no certificate");
    assert!(
        get(client(), "owner", serving.port, "blue").await.expect("served").is_some(),
        "it keeps what it had"
    );
    serving.task.abort();
}

/// Has the certificate in `files` be one that is over, signed by the authority in `root`.
pub fn expire(root: &Path, files: &CertificateFiles) {
    let key = |path: &Path| KeyPair::from_pem(&std::fs::read_to_string(path).expect("a key")).expect("a key");
    let named = |name: &str| {
        let mut params = CertificateParams::new([]).expect("no names");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let authority = Issuer::new(named("bdnfs cluster authority"), key(&root.join("ca/ca.key")));
    let mut params = named("node");
    for name in ["node.node.bdnfs", "*.member.bdnfs"] {
        params.subject_alt_names.push(SanType::DnsName(name.try_into().expect("a name")));
    }
    for uri in ["bdnfs://node/node", "bdnfs://tenant/blue"] {
        params.subject_alt_names.push(SanType::URI(uri.try_into().expect("a URI")));
    }
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2020, 1, 2);
    let made = params.signed_by(&key(&files.key), &authority).expect("signed");
    std::fs::write(&files.certificate, made.pem()).expect("write");
}

/// Waits until `gossip` tells of exactly these members.
async fn sees(gossip: &Gossip, ids: &[&str]) {
    let begin = Instant::now();
    loop {
        let mut live: Vec<_> = gossip.live().iter().map(|member| member.id.clone()).collect();
        live.sort();
        if live == ids {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(90), "{live:?}, not {ids:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gossip_with_one_seed_admits_members_only() {
    let ca = TestCa::empty();
    ca.run("cluster init-ca @ca").succeeds();
    ca.run("cluster init-ca @other").succeeds();
    let mut nodes = Vec::new();
    let mut seed = String::new();
    for (id, authority) in [("a", "ca"), ("b", "ca"), ("c", "ca"), ("x", "other")] {
        ca.run(&format!("cluster issue {id} --ca @{authority} --tenant blue --out @")).succeeds();
        let identity = Identity::open(signed(&ca, id, authority)).expect("a certificate");
        let serving = serve(Some(identity.clone())).await;
        let (sender, messages) = gossip::gossip_channel();
        serving.server.set_gossip_sender(sender);
        let config = gossip::GossipConfig {
            cluster: "c".into(),
            me: member(id, serving.port),
            generation: 1,
            seeds: if seed.is_empty() { Vec::new() } else { vec![seed.clone()] },
        };
        if seed.is_empty() {
            seed = format!("localhost:{}", serving.port);
        }
        let client = GossipClient::new(Some(identity)).expect("a client");
        nodes.push((Gossip::start(config, client, messages).await.expect("gossip"), serving));
    }
    for (gossip, _) in &nodes[..3] {
        sees(gossip, &["a", "b", "c"]).await;
    }
    // What one says of itself the others hear.
    nodes[2].0.announce(vec![7, u64::MAX]);
    nodes[1].0.drain().await;
    let heard = |gossip: &Gossip| {
        let find = |id| gossip.live().iter().find(|member| member.id == id).cloned();
        find("c").is_some_and(|c| c.holds == [7, u64::MAX]) && find("b").is_some_and(|b| b.draining)
    };
    let begin = Instant::now();
    while !heard(&nodes[0].0) {
        assert!(begin.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let live = nodes[0].0.live();
    let c = live.iter().find(|m| m.id == "c").expect("seen");
    assert_eq!(**c, Member { holds: vec![7, u64::MAX], ..member("c", c.address.port()) });
    assert_eq!(nodes[3].0.live().len(), 1, "the stranger sees nobody but itself");
    // One that is gone is noticed.
    let (gossip, serving) = nodes.remove(2);
    serving.task.abort();
    drop(gossip);
    sees(&nodes[0].0, &["a", "b"]).await;
}
