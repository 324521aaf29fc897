//! The client that sends gossip messages to members, over HTTP on the peers' own port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use rustls::ClientConfig;

use crate::error::{Error, Kind, Result};
use crate::peer::identity::{self, Identity};

/// The timeout of a gossip message.
const GOSSIP_TIMEOUT: Duration = Duration::from_secs(3);
/// The time for which a connection may be idle: less than the idle timeout of the listener.
const GOSSIP_IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// The path of gossip messages, and the header with the address of their sender.
pub(in crate::peer) const GOSSIP_PATH: &str = "/v1/messages";
pub(in crate::peer) const GOSSIP_FROM: &str = "bdnfs-from";

/// Sends gossip messages, with TLS where this node has an identity.
#[derive(Debug)]
pub struct GossipClient {
    identity: Option<Arc<Identity>>,
    /// The client, and the version of the identity that it was made with.
    client: Mutex<(u64, reqwest::Client)>,
}

impl GossipClient {
    /// A client with mutual TLS; without `identity`, one without TLS, for tests on one machine.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when the TLS library refuses.
    pub fn new(identity: Option<Arc<Identity>>) -> Result<Self> {
        let client = match identity.as_ref().map(|identity| identity.client()) {
            Some((version, config)) => (version, secure(config)?),
            None => (0, client(|client| client)?),
        };
        Ok(Self { identity, client: Mutex::new(client) })
    }

    /// The client with the current identity. A new certificate needs new connections.
    fn current(&self) -> Result<reqwest::Client> {
        let mut present = self.client.lock();
        if let Some(identity) = self.identity.as_ref().filter(|identity| identity.version() != present.0) {
            let (version, config) = identity.client();
            *present = (version, secure(config)?);
        }
        Ok(present.1.clone())
    }

    /// Sends a gossip message to the member that listens at `to`, from the one that listens at `from`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when it can't be reached, or does not gossip.
    pub async fn send(&self, to: SocketAddr, from: SocketAddr, message: Vec<u8>) -> Result<()> {
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
            .current()?
            .post(url)
            .header(GOSSIP_FROM, from.to_string())
            .timeout(GOSSIP_TIMEOUT)
            .body(message);
        request.send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
        Ok(())
    }
}

fn secure(config: ClientConfig) -> Result<reqwest::Client> {
    client(|client| client.tls_backend_preconfigured(config).https_only(true))
}

fn client(with: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder) -> Result<reqwest::Client> {
    let builder = reqwest::Client::builder()
        .user_agent(concat!("bdnfs/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(GOSSIP_TIMEOUT)
        .redirect(Policy::none())
        .no_proxy()
        .http1_only()
        .pool_max_idle_per_host(1)
        .pool_idle_timeout(GOSSIP_IDLE_TIMEOUT)
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
