//! The HTTP client of peers, with a pool of connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::StatusCode;
use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;

use super::connection::{PeerConnection, ResponseHead};
use super::frame_reader::FrameReader;
use super::pool::{CONNECTION_IDLE_TIMEOUT, ConnectionPool, PoolKey};
use super::{PeerClient, RESPONSE_TIMEOUT};
use crate::buffer::BufferPool;
use crate::error::{Error, Kind, Result};
use crate::peer::Member;
use crate::peer::identity::{self, Identity};
use crate::peer::wire::{BlockRequest, BlockResponse};

/// How long a gossip message may take.
const GOSSIP_TIMEOUT: Duration = Duration::from_secs(3);

/// The path of gossip messages, and the header with the address of their sender.
pub(in crate::peer) const GOSSIP_PATH: &str = "/v1/messages";
pub(in crate::peer) const GOSSIP_FROM: &str = "bdnfs-from";

/// Sends requests over TCP, with TLS where this node has an identity.
#[derive(Debug)]
pub struct HttpPeerClient {
    identity: Option<Arc<Identity>>,
    /// The client for gossip, and the version of the identity that it was made with.
    gossip: Mutex<(u64, reqwest::Client)>,
    pool: Arc<ConnectionPool>,
    /// The buffers of responses.
    buffers: Arc<BufferPool>,
}

impl HttpPeerClient {
    /// A client with mutual TLS.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when the TLS library refuses.
    pub fn new(identity: Arc<Identity>) -> Result<Self> {
        let (version, config) = identity.client();
        let client = client(|client| client.tls_backend_preconfigured(config).https_only(true))?;
        Ok(Self::of(Some(identity), (version, client)))
    }

    /// A client without TLS: for tests on one machine.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when the TLS library refuses.
    pub fn plain() -> Result<Self> {
        let client = client(|client| client)?;
        Ok(Self::of(None, (0, client)))
    }

    fn of(identity: Option<Arc<Identity>>, client: (u64, reqwest::Client)) -> Self {
        let (pool, buffers) = Default::default();
        Self { identity, gossip: Mutex::new(client), pool, buffers }
    }

    /// The client for gossip with the current identity. A new certificate needs new connections.
    fn gossip_client(&self) -> Result<reqwest::Client> {
        let mut present = self.gossip.lock();
        if let Some(identity) = self.identity.as_ref().filter(|identity| identity.version() != present.0) {
            let (version, config) = identity.client();
            let made = client(|client| client.tls_backend_preconfigured(config).https_only(true))?;
            *present = (version, made);
        }
        Ok(present.1.clone())
    }

    /// Sends a gossip message to the member that listens at `to`, from the one that listens at `from`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when it can't be reached, or does not gossip.
    pub async fn send_gossip(&self, to: SocketAddr, from: SocketAddr, message: Vec<u8>) -> Result<()> {
        let url = match self.identity {
            None => format!("http://{to}{GOSSIP_PATH}"),
            Some(_) => {
                format!("https://{}:{}{GOSSIP_PATH}", identity::any_member_name(to.ip()), to.port())
            }
        };
        let failed = |e: reqwest::Error| {
            Error::with(Kind::Unavailable, format!("the member at {to} cannot be reached"), e.without_url())
        };
        let request = self
            .gossip_client()?
            .post(url)
            .header(GOSSIP_FROM, from.to_string())
            .timeout(GOSSIP_TIMEOUT)
            .body(message);
        request.send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
        Ok(())
    }

    /// Sends `request` to `peer`, on a connection of the pool or a new one, and receives the head of the response.
    async fn send(
        &self,
        to: &PoolKey,
        peer: &Member,
        request: &BlockRequest,
    ) -> Result<(PeerConnection, ResponseHead)> {
        let host = identity::host(&peer.id);
        while let Some(mut stream) = self.pool.take(to) {
            // It fails at once when the peer has closed it in the meantime.
            if let Ok(status) = stream.send(&host, request).await {
                return Ok((stream, status));
            }
        }
        let mut stream = PeerConnection::connect(self.identity.as_deref(), peer).await?;
        let status = stream.send(&host, request).await?;
        Ok((stream, status))
    }
}

impl PeerClient for HttpPeerClient {
    fn request<'a>(
        &'a self,
        peer: &'a Member,
        request: &'a BlockRequest,
    ) -> BoxFuture<'a, Result<BlockResponse>> {
        async move {
            let version = self.identity.as_ref().map_or(0, |identity| identity.version());
            let to = (peer.id.clone(), peer.address, version);
            let sent = self.send(&to, peer, request).await;
            let (stream, status) = sent.map_err(|e| e.context(format!("the peer {}", peer.id)))?;
            let pool = status.kept.then(|| (self.pool.clone(), to));
            if status.body && status.code == StatusCode::OK {
                return Ok(BlockResponse::Frames(
                    FrameReader::new(stream, pool, self.buffers.clone()).frames(),
                ));
            }
            if let Some((pool, to)) = pool.filter(|_| !status.body) {
                pool.keep(to, stream);
            }
            match status.code {
                StatusCode::NOT_FOUND => Ok(BlockResponse::Miss),
                StatusCode::SERVICE_UNAVAILABLE => {
                    Ok(BlockResponse::Busy(status.retry_after.unwrap_or(RESPONSE_TIMEOUT)))
                }
                code => {
                    let text = format!("the peer {} responds with HTTP {code}", peer.id);
                    Err(Error::new(Kind::Unavailable, text))
                }
            }
        }
        .boxed()
    }
}

fn client(with: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder) -> Result<reqwest::Client> {
    let builder = reqwest::Client::builder()
        .user_agent(concat!("bdnfs/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(GOSSIP_TIMEOUT)
        .redirect(Policy::none())
        .no_proxy()
        .http1_only()
        .pool_max_idle_per_host(1)
        .pool_idle_timeout(CONNECTION_IDLE_TIMEOUT)
        .dns_resolver(Arc::new(AddressResolver));
    with(builder)
        .build()
        .map_err(|e| Error::with(Kind::Unsupported, "cannot make an HTTP client for peers", e))
}

/// Resolves the host names that stand for whichever member is at an address.
struct AddressResolver;

impl Resolve for AddressResolver {
    fn resolve(&self, name: Name) -> Resolving {
        async move {
            let address = identity::address(name.as_str()).ok_or("no such member")?;
            // The port is the URL's.
            Ok(Box::new(std::iter::once(SocketAddr::new(address, 0))) as Addrs)
        }
        .boxed()
    }
}
