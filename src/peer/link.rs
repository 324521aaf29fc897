//! The link: requests to peers over HTTP, on connections that are kept.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::StatusCode;
use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;

use super::Member;
use super::answer::Answer;
use super::client::{ANSWER, Link};
use super::identity::{self, Identity};
use super::pool::{IDLE, Pool, To};
use super::stream::{Status, Stream};
use super::wire::{Ask, Reply};
use crate::buffer::BufferPool;
use crate::error::{Error, Kind, Result};

/// How long a letter may take.
const LETTER: Duration = Duration::from_secs(3);

/// Where letters go, and the header that says from where an answer is expected.
pub(super) const LETTERS: &str = "/v1/letters";
pub(super) const FROM: &str = "bdnfs-from";

/// Requests over TCP, with TLS where this node has an identity.
#[derive(Debug)]
pub struct Http {
    identity: Option<Arc<Identity>>,
    /// What takes letters, and of which state of the identity it is.
    client: Mutex<(u64, reqwest::Client)>,
    pool: Arc<Pool>,
    /// Where answers come to lie.
    buffers: Arc<BufferPool>,
}

impl Http {
    /// A link on which both ends prove who they are.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when no client can be made.
    pub fn new(identity: Arc<Identity>) -> Result<Self> {
        let (version, config) = identity.client();
        let client = client(|client| client.tls_backend_preconfigured(config).https_only(true))?;
        Ok(Self::of(Some(identity), (version, client)))
    }

    /// A link that proves nothing and hides nothing.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when no client can be made.
    pub fn plain() -> Result<Self> {
        let client = client(|client| client)?;
        Ok(Self::of(None, (0, client)))
    }

    fn of(identity: Option<Arc<Identity>>, client: (u64, reqwest::Client)) -> Self {
        let (pool, buffers) = Default::default();
        Self { identity, client: Mutex::new(client), pool, buffers }
    }

    /// The client for the identity as it is now. With another certificate, connections are made anew.
    fn client(&self) -> Result<reqwest::Client> {
        let mut present = self.client.lock();
        if let Some(identity) = self.identity.as_ref().filter(|identity| identity.version() != present.0) {
            let (version, config) = identity.client();
            let made = client(|client| client.tls_backend_preconfigured(config).https_only(true))?;
            *present = (version, made);
        }
        Ok(present.1.clone())
    }

    /// Takes a letter to the member that listens at `to`, from the one that listens at `from`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when it can't be reached or takes no letters.
    pub async fn tell(&self, to: SocketAddr, from: SocketAddr, letter: Vec<u8>) -> Result<()> {
        let url = match self.identity {
            None => format!("http://{to}{LETTERS}"),
            Some(_) => {
                format!("https://{}:{}{LETTERS}", identity::anybody(to.ip()), to.port())
            }
        };
        let failed = |e: reqwest::Error| {
            Error::with(Kind::Unavailable, format!("the member at {to} can't be reached"), e.without_url())
        };
        let request = self.client()?.post(url).header(FROM, from.to_string()).timeout(LETTER).body(letter);
        request.send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
        Ok(())
    }

    /// A stream to `peer` on which `ask` was sent, and what its answer begins with.
    async fn send(&self, to: &To, peer: &Member, ask: &Ask) -> Result<(Stream, Status)> {
        let host = identity::host(&peer.id);
        while let Some(mut stream) = self.pool.take(to) {
            // It fails at once when the peer has closed it while nobody used it.
            if let Ok(status) = stream.ask(&host, ask).await {
                return Ok((stream, status));
            }
        }
        let mut stream = Stream::connect(self.identity.as_deref(), peer).await?;
        let status = stream.ask(&host, ask).await?;
        Ok((stream, status))
    }
}

impl Link for Http {
    fn ask<'a>(&'a self, peer: &'a Member, ask: &'a Ask) -> BoxFuture<'a, Result<Reply>> {
        async move {
            let version = self.identity.as_ref().map_or(0, |identity| identity.version());
            let to = (peer.id.clone(), peer.address, version);
            let sent = self.send(&to, peer, ask).await;
            let (stream, status) = sent.map_err(|e| e.within(format!("the peer {}", peer.id)))?;
            let pool = status.kept.then(|| (self.pool.clone(), to));
            if status.body && status.code == StatusCode::OK {
                return Ok(Reply::Frames(Answer::new(stream, pool, self.buffers.clone()).frames()));
            }
            if let Some((pool, to)) = pool.filter(|_| !status.body) {
                pool.keep(to, stream);
            }
            match status.code {
                StatusCode::NOT_FOUND => Ok(Reply::Miss),
                StatusCode::SERVICE_UNAVAILABLE => Ok(Reply::Busy(status.later.unwrap_or(ANSWER))),
                code => {
                    let text = format!("the peer {} answers {code}", peer.id);
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
        .connect_timeout(LETTER)
        .redirect(Policy::none())
        .no_proxy()
        .http1_only()
        .pool_max_idle_per_host(1)
        .pool_idle_timeout(IDLE)
        .dns_resolver(Arc::new(Addresses));
    with(builder).build().map_err(|e| Error::with(Kind::Unsupported, "cannot make a client for peers", e))
}

/// Finds members by the host names that stand for whoever is at an address.
struct Addresses;

impl Resolve for Addresses {
    fn resolve(&self, name: Name) -> Resolving {
        async move {
            let address = identity::address(name.as_str()).ok_or("no such member")?;
            // The port is the URL's.
            Ok(Box::new(std::iter::once(SocketAddr::new(address, 0))) as Addrs)
        }
        .boxed()
    }
}
