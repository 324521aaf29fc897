//! The agent that a command talks to.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use bdnfs::error::Kind;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::socket;
use bdnfs_agent::cache::CacheConfig;
use bdnfs_agent::{AgentConfig, AgentServer};

use crate::cache::CacheArgs;
use crate::spawn::{AGENT_EXIT_TIMEOUT, AGENT_START_POLL_INTERVAL};

/// The agent that a command talks to.
pub enum Endpoint {
    /// The agent of this node, by its socket.
    Agent(PathBuf),
    /// The agent of a cache, which may have to be started.
    CacheOwner(CacheConfig),
}

impl Endpoint {
    /// The agent of this node where one runs and no cache is named, else the agent of the cache.
    pub fn find(cache: &CacheArgs) -> Result<Self> {
        let agent = socket::well_known().filter(|_| !cache.has_directory());
        match agent.filter(|socket| Client::new(socket).is_served()) {
            Some(socket) => Ok(Self::Agent(socket)),
            None => cache.open().map(Self::CacheOwner),
        }
    }

    /// The control socket of the agent.
    pub fn socket(&self) -> PathBuf {
        match self {
            Self::Agent(socket) => socket.clone(),
            Self::CacheOwner(cache) => socket::of_cache(&cache.dir),
        }
    }
}

/// The result of [`serve_or_request`].
pub enum Connection<T> {
    /// This process is the agent of the cache.
    Server(AgentServer),
    /// Another agent answered the request.
    Answer(T),
}

/// Starts the agent of a cache in this process, or sends `request` to the agent that runs. Returns the client for either.
pub async fn serve_or_request<T>(
    cache: &CacheArgs,
    request: impl AsyncFn(&Client) -> Result<T, ClientError>,
) -> Result<(Client, Connection<T>)> {
    let start = Instant::now();
    loop {
        let endpoint = Endpoint::find(cache)?;
        let client = Client::new(endpoint.socket());
        let mut in_use = None;
        if let Endpoint::CacheOwner(cache) = endpoint {
            match AgentServer::start(AgentConfig::on_demand(cache)).await {
                Ok(server) => return Ok((client, Connection::Server(server))),
                Err(failure) if failure.is(Kind::Busy) => in_use = Some(failure),
                Err(failure) => return Err(failure.into()),
            }
        }
        match request(&client).await {
            Ok(answer) => return Ok((client, Connection::Answer(answer))),
            Err(error) if error.is_gone() && start.elapsed() < AGENT_EXIT_TIMEOUT => {
                tokio::time::sleep(AGENT_START_POLL_INTERVAL).await;
            }
            // The owner of the cache is a better message than that nothing listens. What it refuses it says itself.
            Err(error) => {
                let in_use = in_use.filter(|_| error.is_gone());
                return Err(in_use.map_or_else(|| error.into(), Into::into));
            }
        }
    }
}
