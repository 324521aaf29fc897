//! The server of an agent: it takes the cache, serves the control API, and ends in order.
//!
//! The cache's lock decides which process is the agent. At its end it first refuses mounts, then closes the sockets,
//! then gives the lock back: a request is either served or refused, and a refused client starts the next agent.

mod metrics;
mod routes;
mod socket;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::cache::eviction::EvictionPause;
use bdnfs::engine::Engine;
use bdnfs::error::Result;
use bdnfs::task::blocking;
use futures_util::{FutureExt, TryFutureExt};
use rustix::fs::Mode;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::agent::{Agent, AgentConfig};
use crate::api::{self, ApiResult};
use crate::cache::CacheClaim;
use crate::cluster::ClusterMembership;
use crate::context::Context;
use crate::fdstore::{FdStore, StoredMount, watcher};
use crate::hooks;
use crate::lifecycle::KeepAlive;
use crate::open_files;
use crate::signals::{self, Shutdown};
use metrics::MetricsServer;
pub use socket::ControlSocket;

/// The time that an ending agent waits for requests under way. Its mounts stand still meanwhile.
const REQUEST_END_TIMEOUT: Duration = Duration::from_secs(5);

/// An agent that has its cache and listens.
#[derive(Debug)]
pub struct AgentServer {
    sockets: Vec<ControlSocket>,
    docker_socket: Option<ControlSocket>,
    metrics: Option<MetricsServer>,
    agent: Arc<Agent>,
    claim: Option<CacheClaim>,
    /// Nothing is evicted before the mounts of the last run are restored.
    eviction_pause: EvictionPause,
    /// The mounts of the last run that the fd store has.
    stored: Vec<StoredMount>,
}

impl AgentServer {
    /// Locks the cache and listens.
    ///
    /// # Errors
    /// [`Kind::Busy`](bdnfs::error::Kind::Busy) where another agent has the cache, or is to come back to it.
    pub async fn start(mut config: AgentConfig) -> ApiResult<Self> {
        // New files are for its user alone.
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        open_files::raise_limit();
        let cache = &config.cache.dir;
        let (engine_config, runtime) = (config.cache.engine_config()?, Handle::current());
        let (engine, eviction_pause) = blocking(move || Engine::open_held(&engine_config, runtime)).await?;
        if !config.persistent {
            CacheClaim::ensure_unclaimed(cache)?;
        }
        let mut sockets = vec![ControlSocket::bind(&api::socket::of_cache(cache))?];
        match config.socket.as_deref().map(ControlSocket::bind_beside).transpose() {
            Ok(socket) => sockets.extend(socket),
            Err(error) if config.socket_required => return Err(error.into()),
            Err(error) => tracing::warn!("{error}; only commands that name the cache find this agent"),
        }
        let docker = config.docker.as_ref().map(|docker| ControlSocket::bind_beside(&docker.socket));
        let docker_socket = docker.transpose()?;
        let metrics = match config.metrics_listen {
            Some(address) => Some(MetricsServer::bind(address).await?),
            None => None,
        };
        tracing::info!("bdnfs {} serves the cache {}", env!("CARGO_PKG_VERSION"), cache.display());
        let claim = config.persistent.then(|| CacheClaim::make(cache)).transpose()?;
        // The cluster is joined before the first snapshot is opened.
        let cluster = match config.cluster.take() {
            Some(cluster) => {
                Some(ClusterMembership::join(&engine, cluster, &config.cache.dir, &config.secrets).await?)
            }
            None => None,
        };
        let (store, stored) = find_fdstore(&config).await?.unzip();
        let agent = Arc::new(Agent::new(engine, config, cluster, store.map(Arc::new))?);
        let stored = stored.unwrap_or_default();
        Ok(Self { sockets, docker_socket, metrics, agent, claim, eviction_pause, stored })
    }

    /// Keeps it from ending.
    pub fn keep_alive(&self) -> KeepAlive {
        self.agent.lifecycle().keep_alive()
    }

    /// Has another process continue this agent when a signal has stopped it, while there are mounts: all who read them wait for it.
    /// For one that runs in the background; who stops a command at a terminal means it.
    pub fn continue_when_stopped(&self) {
        let agent = Arc::clone(&self.agent);
        tokio::spawn(async move {
            let mounts = agent.mounts();
            watcher::continue_when_stopped(&mounts.mounter().cache, || !mounts.all().is_empty()).await;
        });
    }

    /// Waits until a mount or job has been asked for. For one waiter.
    pub fn first_request(&self) -> impl Future<Output = ()> + Send + use<> {
        let lifecycle = Arc::clone(self.agent.lifecycle());
        async move { lifecycle.first_request().await }
    }

    /// Waits until the mounts of the last run are restored. It already answers meanwhile.
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let lifecycle = Arc::clone(self.agent.lifecycle());
        async move { lifecycle.ready().await }
    }

    /// Serves until it is asked to end, by a signal or over the API, or until it is not used any more, if it is not
    /// persistent. Then it has unmounted all that is not handed over to the next agent.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) where a control socket failed.
    pub async fn serve(self) -> Result<()> {
        // Registered before the first answer: a signal sent after it must not be lost.
        let shutdown = shutdown_signal(self.agent.lifecycle().is_persistent());
        self.serve_until(shutdown).await
    }

    /// Serves until `shutdown` is ready, which stands in for signals.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub async fn serve_until(self, shutdown: impl Future<Output = io::Result<Shutdown>>) -> Result<()> {
        let Self { sockets, docker_socket, metrics, agent, claim, eviction_pause, stored } = self;
        let restored = Arc::clone(&agent);
        tokio::spawn(async move { restored.restore(eviction_pause, stored).await });
        tokio::spawn(Arc::clone(&agent).watch_fdstore());
        let (end, ending) = watch::channel(false);
        let ended = |mut ending: watch::Receiver<bool>| async move {
            // The sender goes when this function ends, which is the same.
            let _ = ending.wait_for(|end| *end).await;
        };
        let mut serving = JoinSet::new();
        for socket in sockets {
            serving.spawn(socket.serve(routes::control(&agent), ended(ending.clone())));
        }
        if let Some((socket, volumes)) = docker_socket.zip(agent.docker()) {
            serving.spawn(socket.serve(hooks::docker::routes(volumes), ended(ending.clone())));
        }
        if let Some(metrics) = metrics {
            serving.spawn(metrics.serve(routes::health_and_metrics(&agent), ended(ending)));
        }
        await_end(&agent, shutdown).await;
        end.send_replace(true);
        // A request that has no end must not keep the cache from the next agent.
        let served: io::Result<()> = match timeout(REQUEST_END_TIMEOUT, serving.join_all()).await {
            Ok(served) => served.into_iter().collect(),
            Err(_) => {
                tracing::warn!("gave up requests that were still under way");
                Ok(())
            }
        };
        agent.close().await;
        // Mounts that are handed over still use the cache.
        if let Some(claim) = claim.filter(|_| !agent.is_handed_over()) {
            claim.end();
        }
        tracing::info!("ended");
        served.context("the control socket failed")
    }
}

/// Waits until the agent is idle or asked to end, and shuts it down.
async fn await_end(agent: &Agent, shutdown: impl Future<Output = io::Result<Shutdown>>) {
    let lifecycle = agent.lifecycle();
    tokio::select! {
        () = lifecycle.idle() => {}
        () = lifecycle.stop_requested() => agent.shut_down(Shutdown::Stop).await,
        shutdown = shutdown => match shutdown {
            Ok(how) => agent.shut_down(how).await,
            Err(error) => {
                tracing::warn!("cannot receive signals: {error}");
                lifecycle.idle().await;
            }
        },
    }
}

/// The fd store of a persistent agent, and what it has.
async fn find_fdstore(config: &AgentConfig) -> Result<Option<(FdStore, Vec<StoredMount>)>> {
    if !config.persistent {
        return Ok(None);
    }
    let (cache, hold, service) = (config.cache.dir.clone(), config.hold, config.fdstore.clone());
    let find = move || match service {
        Some(socket) => FdStore::find_service(&socket, hold),
        None => FdStore::find(&cache, hold),
    };
    blocking(find).await.map(Some)
}

/// Waits until a signal asks the process to end.
fn shutdown_signal(persistent: bool) -> impl Future<Output = io::Result<Shutdown>> {
    if persistent {
        signals::shutdown_request().left_future()
    } else {
        signals::stop_request().map_ok(|()| Shutdown::Stop).right_future()
    }
}
