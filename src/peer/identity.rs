//! Identity: who a node is, proved by certificates that lie in files.
//!
//! A node's certificate names it twice: as `DNS:<id>.node.bdnfs`, which whoever connects to it checks as of any web server,
//! and as `URI:bdnfs://node/<id>`, which it shows when it connects itself. `URI:bdnfs://tenant/<name>` names a tenant that
//! it may host, one each. Every node has `DNS:*.member.bdnfs`, too, which is all that is asked of a seed: to be a member.
//! Both ends trust one authority, the cluster's own.

use std::net::IpAddr;
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

use super::server::Caller;
use crate::error::{Error, Kind, Result};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(5);

/// How much of an answer is encrypted before it is sent, in bytes, beside the block that it is taken from. With half of that, as
/// the library has it, the kernel sends shorter packets, and eight nodes on two cores took a tenth longer.
const ENCRYPTED: usize = 128 << 10;

/// What the URI of a node begins with, and of a tenant that it may host.
pub const NODE: &str = "bdnfs://node/";
/// What the URI of a tenant begins with that a node may host.
pub const TENANT: &str = "bdnfs://tenant/";

/// The host name that stands for the node `id`.
pub fn host(id: &str) -> String {
    format!("{id}.node.bdnfs")
}

/// The host name that stands for whichever member is at `address`.
pub(super) fn anybody(address: IpAddr) -> String {
    format!("{}.{ANYBODY}", address.to_canonical().to_string().replace(['.', ':'], "-"))
}

/// The address of the member for whom the host name `host` stands, whichever it is.
pub(super) fn address(host: &str) -> Option<IpAddr> {
    let name = host.strip_suffix(ANYBODY)?.strip_suffix('.')?;
    let parsed = [".", ":"].map(|separator| name.replace('-', separator).parse().ok());
    parsed.into_iter().flatten().next()
}

/// What the host names of members end in whose own name isn't known yet.
pub const ANYBODY: &str = "member.bdnfs";

/// Whether `id` can be a node's name: a part of a host's name, or several with dots between them.
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

/// Where a node's certificate lies, in PEM.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of the cluster.
    pub authority: PathBuf,
}

/// A node's identity, as the files have it now.
#[derive(Debug)]
pub struct Identity {
    files: Files,
    state: RwLock<State>,
    version: watch::Sender<u64>,
}

#[derive(Clone, Debug)]
struct State {
    server: Arc<ServerConfig>,
    client: ClientConfig,
    /// Whom the certificate names.
    own: Caller,
    stamps: [Option<(SystemTime, u64)>; 3],
}

impl Identity {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when one of them is not what it should be, [`Kind::Disk`].
    pub fn open(files: Files) -> Result<Arc<Self>> {
        let state = RwLock::new(read(&files)?);
        Ok(Arc::new(Self { files, state, version: watch::Sender::new(1) }))
    }

    /// Reads the files again whenever they change, until it is dropped. What can't be used leaves everything as it was.
    pub async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let this = self.clone();
            let refreshed = tokio::task::spawn_blocking(move || this.refresh()).await;
            match refreshed {
                Ok(Ok(false)) | Err(_) => {}
                Ok(Ok(true)) => tracing::info!("the node has another certificate now"),
                Ok(Err(error)) => tracing::warn!(%error, "the node keeps its certificate"),
            }
        }
    }

    /// Reads the files if they have changed. True when there is something new. Blocks on the local disk.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn refresh(&self) -> Result<bool> {
        if stamps(&self.files) == self.state().stamps {
            return Ok(false);
        }
        *self.state.write() = read(&self.files)?;
        self.version.send_modify(|version| *version += 1);
        Ok(true)
    }

    /// Whom the node's own certificate names: what others take it for, and the tenants that it may host.
    pub fn own(&self) -> Caller {
        self.state().own
    }

    /// Which state of the files this is.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// What tells whenever there is another state of them.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// What a client needs, and of which version it is.
    pub(super) fn client(&self) -> (u64, ClientConfig) {
        // The version first: what is newer than it says is taken again, which does no harm.
        (self.version(), self.state().client)
    }

    /// Has whoever connected prove who it is.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<(TlsStream<TcpStream>, Caller)> {
        let refused = |e| Error::with(Kind::Refused, "no certificate of this cluster", e);
        let mut stream = TlsAcceptor::from(self.state().server).accept(stream).await.map_err(refused)?;
        stream.get_mut().1.set_buffer_limit(Some(ENCRYPTED));
        let nobody = || Error::new(Kind::Refused, "a certificate that names no node");
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).ok_or_else(nobody)?;
        let caller = caller(certificate).ok_or_else(nobody)?;
        Ok((stream, caller))
    }

    /// Proves who this node is over `connection`, and has the other end prove that it is the node `id`.
    pub(super) async fn connect<C>(&self, connection: C, id: &str) -> Result<client::TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let failed = |e| Error::with(Kind::Unavailable, format!("nobody there proves to be {id}"), e);
        let name = ServerName::try_from(host(id)).map_err(|e| Error::with(Kind::Invalid, host(id), e))?;
        let connector = TlsConnector::from(Arc::new(self.state().client));
        connector.connect(name, connection).await.map_err(failed)
    }

    fn state(&self) -> State {
        self.state.read().clone()
    }
}

/// Whom a certificate names.
fn caller(certificate: &CertificateDer<'_>) -> Option<Caller> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let named =
        |prefix: &'static str| certificate.valid_uri_names().filter_map(move |uri| uri.strip_prefix(prefix));
    let id = named(NODE).next()?.to_owned();
    Some(Caller { id: Some(id), tenants: Some(named(TENANT).map(str::to_owned).collect()) })
}

fn read(files: &Files) -> Result<State> {
    // Before the content: what changes meanwhile is read again.
    let stamps = stamps(files);
    let wrong = |what: &str, path: &PathBuf, e: &dyn std::fmt::Display| {
        Error::new(Kind::Invalid, format!("{} can't be used as {what}: {e}", path.display()))
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
        .map(|(server, client)| State { server, client, own, stamps })
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
    // Whoever comes back proves itself again: a certificate may have expired meanwhile.
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    client.resumption = Resumption::disabled();
    Ok((Arc::new(server), client))
}

/// What tells one state of the files from another.
fn stamps(files: &Files) -> [Option<(SystemTime, u64)>; 3] {
    [&files.certificate, &files.key, &files.authority].map(|path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    })
}
