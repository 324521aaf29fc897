//! Node identity: certificates in files, for mutual TLS.
//!
//! A node's certificate names it twice: as `DNS:<id>.node.bdnfs`, which clients check as with any web server,
//! and as `URI:bdnfs://node/<id>`, which servers check. `URI:bdnfs://tenant/<name>` names a tenant that it
//! may host, one entry for each. Every node has `DNS:*.member.bdnfs`, too: of a seed only the membership is
//! known. Both ends trust one authority, the cluster's own.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{CipherSuite, ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

use crate::error::{Error, Kind, Result};
use crate::task::blocking;

/// The interval at which the files are checked for changes.
const CERTIFICATE_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The number of bytes of a response that are encrypted before they are sent. With half of that, the library's default, the kernel
/// sends shorter packets, and eight nodes on two cores took a tenth longer.
const TLS_SEND_BUFFER_BYTES: usize = 128 << 10;

/// The prefix of the URI that names a node.
pub const NODE_URI_PREFIX: &str = "bdnfs://node/";
/// The prefix of a URI that names a tenant that the node may host.
pub const TENANT_URI_PREFIX: &str = "bdnfs://tenant/";

/// The host name of the node `id` in certificates.
pub fn host(id: &str) -> String {
    format!("{id}.node.bdnfs")
}

/// The host name that stands for whichever member is at `address`.
pub(super) fn any_member_name(address: IpAddr) -> String {
    format!("{}.{MEMBER_DNS_SUFFIX}", address.to_canonical().to_string().replace(['.', ':'], "-"))
}

/// The address in `host`, a host name that stands for whichever member is there.
pub(super) fn address(host: &str) -> Option<IpAddr> {
    let name = host.strip_suffix(MEMBER_DNS_SUFFIX)?.strip_suffix('.')?;
    let parsed = [".", ":"].map(|separator| name.replace('-', separator).parse().ok());
    parsed.into_iter().flatten().next()
}

/// The suffix of host names of members whose id is not known yet.
pub const MEMBER_DNS_SUFFIX: &str = "member.bdnfs";

/// Whether `id` can be a node id: one label of a host name, or several with dots between them.
pub fn is_id(id: &str) -> bool {
    let label = |label: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        (1..=63).contains(&label.len())
            && label.chars().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    id.len() <= 200 && id.split('.').all(label)
}

/// The paths of a node's certificate, in PEM.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate, followed by its intermediates.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The authorities of the cluster.
    pub authority: PathBuf,
}

/// The sender of a request, as its certificate names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The node id; `None` without TLS.
    pub id: Option<String>,
    /// The tenants that it may host; `None`: all.
    pub tenants: Option<Vec<String>>,
}

impl Caller {
    /// A caller without a certificate, where there is no TLS.
    pub const ANONYMOUS: Self = Self { id: None, tenants: None };

    /// Whether it may have data of `tenant`.
    pub(super) fn may_have(&self, tenant: &str) -> bool {
        self.tenants.as_ref().is_none_or(|tenants| tenants.iter().any(|t| t == tenant))
    }
}

/// A node's identity, reloaded when its files change.
#[derive(Debug)]
pub struct Identity {
    files: CertificateFiles,
    loaded: RwLock<LoadedIdentity>,
    version: watch::Sender<u64>,
}

#[derive(Clone, Debug)]
struct LoadedIdentity {
    server: Arc<ServerConfig>,
    client: ClientConfig,
    /// The node and tenants that the certificate names.
    own: Caller,
    stamps: [Option<(SystemTime, u64)>; 3],
}

impl Identity {
    /// Loads the files.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when one of them can't be used, [`Kind::Disk`].
    pub fn open(files: CertificateFiles) -> Result<Arc<Self>> {
        let loaded = RwLock::new(load(&files)?);
        Ok(Arc::new(Self { files, loaded, version: watch::Sender::new(1) }))
    }

    /// Reloads the files whenever they change, until it is dropped. Files that can't be used change nothing.
    pub async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CERTIFICATE_POLL_INTERVAL).await;
            let this = self.clone();
            match blocking(move || this.refresh()).await {
                Ok(false) => {}
                Ok(true) => tracing::info!("reloaded the node's certificate"),
                Err(error) => {
                    tracing::warn!(%error, "cannot reload the node's certificate; the old one stays in use")
                }
            }
        }
    }

    /// Reloads the files if they have changed. True when they had. Blocks on the local disk.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn refresh(&self) -> Result<bool> {
        if stamps(&self.files) == self.loaded().stamps {
            return Ok(false);
        }
        *self.loaded.write() = load(&self.files)?;
        self.version.send_modify(|version| *version += 1);
        Ok(true)
    }

    /// The node and tenants that its own certificate names.
    pub fn own(&self) -> Caller {
        self.loaded().own
    }

    /// A number that grows with each reload.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// The version, watched.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The TLS configuration of clients, and its version.
    pub(super) fn client(&self) -> (u64, ClientConfig) {
        // The version first: a configuration newer than its version is only loaded once more.
        (self.version(), self.loaded().client)
    }

    /// Performs the server's side of the TLS handshake, and returns the caller.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<(TlsStream<TcpStream>, Caller)> {
        let refused = |e| Error::with(Kind::Refused, "the client has no certificate of this cluster", e);
        let mut stream = TlsAcceptor::from(self.loaded().server).accept(stream).await.map_err(refused)?;
        stream.get_mut().1.set_buffer_limit(Some(TLS_SEND_BUFFER_BYTES));
        let nobody = || Error::new(Kind::Refused, "the client's certificate names no node");
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).ok_or_else(nobody)?;
        let caller = caller(certificate).ok_or_else(nobody)?;
        Ok((stream, caller))
    }

    /// The client's side of the TLS handshake over `connection` to `address`, which must have a certificate for the node
    /// `id`.
    pub(super) async fn connect<C>(
        &self,
        connection: C,
        address: SocketAddr,
        id: &str,
    ) -> Result<client::TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let failed = |e| {
            Error::with(Kind::Unavailable, format!("the certificate of {address} is not for node {id}"), e)
        };
        let name = ServerName::try_from(host(id)).map_err(|e| Error::with(Kind::Invalid, host(id), e))?;
        let connector = TlsConnector::from(Arc::new(self.loaded().client));
        connector.connect(name, connection).await.map_err(failed)
    }

    fn loaded(&self) -> LoadedIdentity {
        self.loaded.read().clone()
    }
}

/// The node and tenants that a certificate names.
fn caller(certificate: &CertificateDer<'_>) -> Option<Caller> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let named =
        |prefix: &'static str| certificate.valid_uri_names().filter_map(move |uri| uri.strip_prefix(prefix));
    let id = named(NODE_URI_PREFIX).next()?.to_owned();
    Some(Caller { id: Some(id), tenants: Some(named(TENANT_URI_PREFIX).map(str::to_owned).collect()) })
}

fn load(files: &CertificateFiles) -> Result<LoadedIdentity> {
    // Before the content: what changes meanwhile is loaded again.
    let stamps = stamps(files);
    let wrong = |what: &str, path: &PathBuf, e: &dyn std::fmt::Display| {
        Error::new(Kind::Invalid, format!("cannot use {} as {what}: {e}", path.display()))
    };
    let certificates = |path: &PathBuf, what: &str| -> Result<Vec<CertificateDer<'static>>> {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        let read: Vec<_> = read.map_err(|e| wrong(what, path, &e))?;
        if read.is_empty() { Err(wrong(what, path, &"it holds no certificate")) } else { Ok(read) }
    };
    let chain = certificates(&files.certificate, "the node's certificate")?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|e| wrong("the node's key", &files.key, &e))?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.authority, "the cluster's authority")? {
        roots.add(authority).map_err(|e| wrong("the cluster's authority", &files.authority, &e))?;
    }
    let named = chain.first().and_then(caller);
    let own =
        named.ok_or_else(|| wrong("the node's certificate", &files.certificate, &"it names no node"))?;
    configs(chain, key, roots)
        .map(|(server, client)| LoadedIdentity { server, client, own, stamps })
        .map_err(|e| wrong("the node's certificate", &files.certificate, &e))
}

fn configs(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: RootCertStore,
) -> std::result::Result<(Arc<ServerConfig>, ClientConfig), Box<dyn std::error::Error>> {
    let mut provider = aws_lc_rs::default_provider();
    // The quickest first: every byte passes through it twice.
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    let (provider, roots) = (Arc::new(provider), Arc::new(roots));
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())?;
    // A client that reconnects authenticates again: its certificate may have expired meanwhile.
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    client.resumption = Resumption::disabled();
    Ok((Arc::new(server), client))
}

/// Modification times and sizes, to detect changes of the files.
fn stamps(files: &CertificateFiles) -> [Option<(SystemTime, u64)>; 3] {
    [&files.certificate, &files.key, &files.authority].map(|path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    })
}
