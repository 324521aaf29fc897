//! The commands' end of the control socket. One connection a request: requests are few, and an agent that ends is
//! noticed at once.

pub mod agent_retry;

mod cache;
mod container_volumes;
mod jobs;
mod publications;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bdnfs::error::Kind;
use bdnfs::timeout::within;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::cluster::ClusterStatus;
use super::{AgentStatus, Failure, Health, MountInfo, MountRequest, StageStatus, socket};

/// The timeout for a status request: it is answered from memory and the local disk, and an agent that takes longer is stuck.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout for a health request: it is answered from memory, in less than the timeout of a probe even on a busy machine.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(8);
/// The time in which an agent must answer that it lives, before it is asked for what may take long. One that is stopped never does;
/// one that starts may wait for its fd store first.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest response, in bytes: a status of ten thousand mounts is far below this.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// A client of the agent that listens at a control socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// The error of a request to an agent.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No agent listens at the socket.
    #[error("no agent listens at {}", .0.display())]
    NotRunning(PathBuf),
    /// The agent lives and does nothing, such as one that a signal has stopped.
    #[error("the agent at {} does not respond within {} s", .0.display(), LIVENESS_TIMEOUT.as_secs())]
    Unresponsive(PathBuf),
    /// The agent ended, or hung up, before it answered.
    #[error("the agent at {} ended before it responded", .0.display())]
    Disconnected(PathBuf),
    /// The agent refused or failed.
    #[error("{0}")]
    Failed(Failure),
    /// The socket can't be used.
    #[error("cannot use the control socket {}", .0.display())]
    Socket(PathBuf, #[source] io::Error),
}

impl ClientError {
    /// Whether the agent is gone, or about to go, and another one can be asked. What it did has gone with it.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::NotRunning(_) | Self::Disconnected(_) => true,
            Self::Failed(failure) => failure.kind == Failure::CLOSING,
            Self::Unresponsive(_) | Self::Socket(..) => false,
        }
    }

    /// Whether the agent answered with a failure of this kind.
    pub fn is(&self, kind: Kind) -> bool {
        matches!(self, Self::Failed(failure) if failure.is(kind))
    }
}

impl Client {
    /// A client of the agent at `socket`. Does not connect yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Whether an agent listens at the socket. Blocks for one `connect`.
    pub fn is_served(&self) -> bool {
        std::os::unix::net::UnixStream::connect(&self.socket).is_ok()
    }

    /// Mounts a source. Giving up the wait gives up the mount.
    pub async fn mount(&self, request: &MountRequest) -> Result<MountInfo, ClientError> {
        self.call(Method::POST, "/v1/mounts", Some(request)).await
    }

    /// Unmounts a mount, and waits until the agent has let it go; `lazy`: takes it out of sight at once, even while
    /// processes hold it.
    pub async fn unmount(&self, id: u64, lazy: bool) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &format!("/v1/mounts/{id}?lazy={lazy}")).await
    }

    /// Waits until a mount is no longer mounted.
    pub async fn await_end(&self, id: u64) -> Result<(), ClientError> {
        self.ask(Method::GET, &format!("/v1/mounts/{id}/ended")).await
    }

    /// Begins to make all of a mount local; `verify`: what is local already is read and verified, too.
    pub async fn stage(&self, id: u64, verify: bool) -> Result<StageStatus, ClientError> {
        self.ask(Method::POST, &format!("/v1/mounts/{id}/stage?verify={verify}")).await
    }

    /// Progress of a mount's staging. The agent answers at its end, or after a moment.
    pub async fn staging(&self, id: u64) -> Result<StageStatus, ClientError> {
        self.ask(Method::GET, &format!("/v1/mounts/{id}/stage")).await
    }

    /// The status of the agent and its mounts.
    pub async fn status(&self) -> Result<AgentStatus, ClientError> {
        let late = || self.broken(io::Error::new(io::ErrorKind::TimedOut, "the agent does not respond"));
        within(STATUS_TIMEOUT, self.read("/v1/status")).await.unwrap_or_else(|| Err(late()))
    }

    /// Whether the agent lives, and with `ready`, whether what was mounted before it started is back.
    pub async fn check_health(&self, ready: bool) -> Result<(), ClientError> {
        let late = || self.broken(io::Error::new(io::ErrorKind::TimedOut, "the agent does not respond"));
        let path = if ready { "/readyz" } else { "/healthz" };
        let answer = within(HEALTH_TIMEOUT, self.read::<Health>(path)).await;
        answer.unwrap_or_else(|| Err(late())).map(drop)
    }

    /// The members of the agent's cluster.
    pub async fn cluster(&self) -> Result<ClusterStatus, ClientError> {
        self.ask(Method::GET, "/v1/cluster").await
    }

    /// Asks the agent to unmount everything and to end. It ends after it has answered.
    pub async fn stop_agent(&self) -> Result<(), ClientError> {
        self.ask(Method::POST, "/v1/stop").await
    }

    async fn ask<A: DeserializeOwned>(&self, method: Method, path: &str) -> Result<A, ClientError> {
        self.call(method, path, None::<&()>).await
    }

    async fn call<Q, A>(&self, method: Method, path: &str, body: Option<&Q>) -> Result<A, ClientError>
    where
        Q: Serialize,
        A: DeserializeOwned,
    {
        self.check_alive().await?;
        let (_, answer) = self.exchange(method, path, body).await?;
        serde_json::from_slice(&answer).map_err(|e| self.broken(e.into()))
    }

    /// Fails if the agent is gone or hangs: what it is asked for next may take long.
    async fn check_alive(&self) -> Result<(), ClientError> {
        let alive = within(LIVENESS_TIMEOUT, self.read::<Health>("/healthz")).await;
        match alive.ok_or_else(|| ClientError::Unresponsive(self.socket.clone()))? {
            Err(error) if error.is_gone() => Err(error),
            // Any other answer says that it lives.
            _ => Ok(()),
        }
    }

    /// Gets `path`, which the agent answers from its memory.
    async fn read<A: DeserializeOwned>(&self, path: &str) -> Result<A, ClientError> {
        let (_, answer) = self.exchange(Method::GET, path, None::<&()>).await?;
        serde_json::from_slice(&answer).map_err(|e| self.broken(e.into()))
    }

    /// An answer as it came, if it is not a failure.
    async fn exchange<Q: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Q>,
    ) -> Result<(HeaderMap, Bytes), ClientError> {
        let stream = self.connect().await?;
        let lost = |_| ClientError::Disconnected(self.socket.clone());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        tokio::spawn(connection);
        let body = body.map(serde_json::to_vec).transpose().map_err(|e| self.broken(e.into()))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "bdnfs")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|e| self.broken(io::Error::other(e)))?;
        let (head, body) = sender.send_request(request).await.map_err(lost)?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|_| ClientError::Disconnected(self.socket.clone()))?.to_bytes();
        if head.status.is_success() {
            return Ok((head.headers, body));
        }
        let unreadable = || io::Error::other(format!("{}: {}", head.status, String::from_utf8_lossy(&body)));
        Err(serde_json::from_slice(&body).map_or_else(|_| self.broken(unreadable()), ClientError::Failed))
    }

    async fn connect(&self) -> Result<UnixStream, ClientError> {
        socket::check_length(&self.socket).map_err(|e| self.broken(e))?;
        let stream = match UnixStream::connect(&self.socket).await {
            Ok(stream) => stream,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                return Err(ClientError::NotRunning(self.socket.clone()));
            }
            Err(e) => return Err(self.broken(e)),
        };
        // Credentials are about to be sent: not to another user who put a socket there.
        let owner = stream.peer_cred().map_err(|e| self.broken(e))?.uid();
        if !socket::is_trusted(owner) {
            return Err(self.broken(io::Error::other(format!("it belongs to another user, {owner}"))));
        }
        Ok(stream)
    }

    fn broken(&self, error: io::Error) -> ClientError {
        ClientError::Socket(self.socket.clone(), error)
    }
}
