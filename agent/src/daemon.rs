//! The daemon: owns one cache, hosts its mounts, ends with the last of them.
//!
//! Detached, it is a process that `bdnfs mount` spawned ([`spawn`]); in the foreground it is a part of that command.
//! The cache's lock decides who is the daemon. At its end it first refuses mounts, then closes the socket, then gives
//! the lock back: a request is either served or visibly not, and whoever asked in vain starts the next daemon.

use std::future::IntoFuture;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bdnfs::cache::eviction::EvictionPause;
use bdnfs::engine::Engine;
use bdnfs::error::Kind;
use bdnfs::source::SecretStore;
use bdnfs::task::blocking;
use futures_util::{FutureExt, TryFutureExt};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::socket;
use crate::api::{Failure, MirrorRequest};
use crate::cache::{CacheClaim, CacheConfig};
use crate::cluster::{ClusterConfig, ClusterNode};
use crate::fdstore::keeper::{Found, Keeper};
use crate::mounts::host::{self, Host};
use crate::server::routes;
use crate::server::socket::Socket;
use crate::signals;
use crate::signals::Shutdown;

mod facts;
mod stock;

/// What a daemon is to be.
#[derive(Debug)]
pub struct AgentConfig {
    /// The cache that it owns.
    pub cache: CacheConfig,
    /// Whether it stays when nothing is mounted, and brings back what was when it starts again: an agent.
    pub stays: bool,
    /// Another socket beside that of the cache.
    pub socket: Option<PathBuf>,
    /// Whether it must have that socket, and not only would like to.
    pub insists: bool,
    /// The mirror of mounts that name none.
    pub mirror: Option<MirrorRequest>,
    /// Where secrets are looked for that a mount's own stores don't have.
    pub secrets: Vec<SecretStore>,
    /// Where it is watched from over TCP.
    pub listen: Option<SocketAddr>,
    /// The other nodes.
    pub cluster: Option<ClusterConfig>,
    /// How long its mounts outlive it, if it is an agent.
    pub hold: Duration,
}

impl AgentConfig {
    /// A daemon that ends with its last mount.
    pub fn on_demand(cache: CacheConfig) -> Self {
        let (stays, insists, secrets) = (false, false, Vec::new());
        let (socket, mirror, listen, cluster, hold) = (None, None, None, None, Duration::ZERO);
        Self { cache, stays, socket, insists, mirror, secrets, listen, cluster, hold }
    }
}

/// A daemon that holds its cache and listens.
#[derive(Debug)]
pub struct AgentServer {
    sockets: Vec<Socket>,
    watched: Option<TcpListener>,
    host: Arc<Host>,
    claim: Option<CacheClaim>,
    /// Nothing is evicted before what was mounted is back.
    kept: EvictionPause,
    /// What was mounted and held.
    held: Vec<Found>,
}

impl AgentServer {
    /// Takes the cache and listens. A failure of kind [`Busy`](Kind::Busy): another daemon has it.
    pub async fn start(mut setup: AgentConfig) -> Result<Self, Failure> {
        // Whatever it creates is for its user alone.
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        raise_open_files();
        let cache = &setup.cache.dir;
        let config =
            setup.cache.config().map_err(|e| Failure::new(Kind::Disk, crate::text::line(e.as_ref())))?;
        let runtime = Handle::current();
        let (engine, kept) = blocking(move || Engine::open_held(&config, runtime)).await?;
        if !setup.stays {
            CacheClaim::of_nobody(cache)?;
        }
        let mut sockets = vec![Socket::bind(&socket::of_cache(cache))?];
        match setup.socket.as_deref().map(Socket::bind_beside).transpose() {
            Ok(socket) => sockets.extend(socket),
            Err(error) if setup.insists => return Err(error.into()),
            Err(error) => tracing::warn!("{error}; only commands that name the cache find this agent"),
        }
        let watched = match setup.listen {
            Some(listen) => Some(TcpListener::bind(listen).await.map_err(|e| {
                Failure::new(Kind::Unavailable, format!("cannot listen at {listen} (telemetry.listen): {e}"))
            })?),
            None => None,
        };
        tracing::info!("bdnfs {} serves the cache {}", env!("CARGO_PKG_VERSION"), cache.display());
        let claim = setup.stays.then(|| CacheClaim::make(cache)).transpose()?;
        // Before the first snapshot.
        let joined = match setup.cluster.take() {
            Some(cluster) => {
                Some(ClusterNode::join(&engine, cluster, &setup.cache.dir, &setup.secrets).await?)
            }
            None => None,
        };
        let (keeper, held) = find_holder(&setup).await?.unzip();
        let host = Arc::new(Host::new(engine, setup, joined, keeper)?);
        Ok(Self { sockets, watched, host, claim, kept, held: held.unwrap_or_default() })
    }

    /// Keeps it from ending.
    pub fn hold(&self) -> host::Hold {
        self.host.hold()
    }

    /// Waits until a mount has been asked for. For one waiter.
    pub fn asked(&self) -> impl Future<Output = ()> + Send + use<> {
        let host = Arc::clone(&self.host);
        async move { host.asked().await }
    }

    /// Waits until what was mounted before is back. It already answers meanwhile.
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let host = Arc::clone(&self.host);
        async move { host.ready().await }
    }

    /// Serves until it is asked to end, and if it does not stay, until nothing is mounted and nobody holds it; then it has
    /// unmounted all that is not left to the next agent.
    pub async fn serve(self) -> Result<()> {
        // Before anybody is answered: who then asks it to end must be heard.
        let asked = asked_to_end(self.host.stays());
        self.serve_until(asked).await
    }

    /// The same; it is asked to end by `asked`, and by no signal.
    pub async fn serve_until(self, asked: impl Future<Output = io::Result<Shutdown>>) -> Result<()> {
        let Self { sockets, watched, host, claim, kept, held } = self;
        let back = Arc::clone(&host);
        tokio::spawn(async move {
            back.restore(kept, held).await;
            back.resume_jobs();
        });
        tokio::spawn(Arc::clone(&host).watch_holder());
        let (end, ending) = watch::channel(false);
        let ended = |mut ending: watch::Receiver<bool>| async move {
            // The sender goes when this function ends, which is the same.
            let _ = ending.wait_for(|end| *end).await;
        };
        let mut serving = JoinSet::new();
        for socket in sockets {
            serving.spawn(socket.serve(routes::all(&host), ended(ending.clone())));
        }
        if let Some(listener) = watched {
            let watched = axum::serve(listener, routes::watched(&host));
            serving.spawn(watched.with_graceful_shutdown(ended(ending)).into_future());
        }
        Self::wait(&host, asked).await;
        end.send_replace(true);
        let served: io::Result<()> = serving.join_all().await.into_iter().collect();
        host.close().await;
        // What is mounted still uses the cache.
        if let Some(claim) = claim.filter(|_| !host.has_left()) {
            claim.end();
        }
        tracing::info!("ended");
        served.context("the control socket failed")
    }

    /// Waits for the end, and unmounts all.
    async fn wait(host: &Arc<Host>, asked: impl Future<Output = io::Result<Shutdown>>) {
        tokio::select! {
            () = host.idle() => {}
            () = host.asked_to_stop() => Self::end(host, Shutdown::Stop).await,
            asked = asked => match asked {
                Ok(how) => Self::end(host, how).await,
                Err(error) => {
                    tracing::warn!("signals can't be received: {error}");
                    host.idle().await;
                }
            },
        }
    }

    /// Takes leave of other nodes, and of what is mounted.
    async fn end(host: &Arc<Host>, how: Shutdown) {
        host.end_jobs(how).await;
        let mounts = async {
            match how {
                Shutdown::HandOver => host.leave_all().await,
                Shutdown::Stop => host.unmount_all().await,
            }
        };
        tokio::join!(host.leave_cluster(), mounts);
    }
}

/// Who holds an agent's mounts, and what was left there.
async fn find_holder(setup: &AgentConfig) -> Result<Option<(Keeper, Vec<Found>)>, Failure> {
    if !setup.stays {
        return Ok(None);
    }
    let (cache, log, hold) = (setup.cache.dir.clone(), setup.cache.log(), setup.hold);
    let find = move || {
        let found = Keeper::find(&cache, &log, hold);
        found.map_err(|e| Failure::new(Kind::Disk, crate::text::line(e.as_ref())))
    };
    host::blocking(find).await.map(Some)
}

/// Waits until the process is asked to end.
fn asked_to_end(stays: bool) -> impl Future<Output = io::Result<Shutdown>> {
    if stays {
        signals::shutdown_request().left_future()
    } else {
        signals::termination().map_ok(|()| Shutdown::Stop).right_future()
    }
}

/// Every blob that is read holds a descriptor, and the usual soft limit of 1024 is for programs that use `select`.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}
