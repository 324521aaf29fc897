//! The daemon: owns one cache, hosts its mounts, ends with the last of them.
//!
//! Detached, it is a process that `bdnfs mount` spawned ([`spawn`]); in the foreground it is a part of that command.
//! The cache's lock decides who is the daemon. At its end it first refuses mounts, then closes the socket, then gives
//! the lock back: a request is either served or visibly not, and whoever asked in vain starts the next daemon.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bdnfs::engine::Engine;
use bdnfs::error::Kind;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Handle;

use crate::cache::{self, Cache};
use crate::control::api::Failure;
use crate::control::server::{self, Socket};
use crate::{control, runtime, signals};

mod host;
mod hosted;
mod snapshot;
pub mod spawn;

pub use host::{Hold, Host};

/// How long a daemon that was just started waits for its first mount.
const GRACE: Duration = Duration::from_secs(10);
/// What a detached daemon writes to its parent once it listens; anything else is a [`Failure`].
const READY: &str = "ready";

/// What a detached daemon is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    cache: cache::Args,
}

/// `bdnfs daemon`: serves until the last mount has ended.
pub fn run(args: &Args) -> Result<()> {
    // Fails only where it already leads a session, which is what is wanted.
    let _ = rustix::process::setsid();
    // It was started as /proc/self/exe, which would name it "exe".
    rustix::thread::set_name(c"bdnfs").context("cannot name the process")?;
    let cache = args.cache.make()?;
    runtime::daemon(serve(&cache))
}

async fn serve(cache: &Cache) -> Result<()> {
    let daemon = match Daemon::start(cache).await {
        Ok(daemon) => daemon,
        Err(failure) => {
            say(&serde_json::to_string(&failure)?)?;
            // Another daemon was faster: nothing is wrong.
            return if failure.is(Kind::Busy) { Ok(()) } else { Err(failure.into()) };
        }
    };
    say(READY)?;
    let hold = daemon.hold();
    let host = Arc::clone(&daemon.host);
    tokio::spawn(async move {
        // Either way: whoever comes later than that starts another daemon.
        let _ = tokio::time::timeout(GRACE, host.asked()).await;
        drop(hold);
    });
    daemon.serve().await
}

/// Says one line to the parent, and no more: it is waiting for the end of the pipe, too.
fn say(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    // A parent that left is no reason to end: others may be about to connect.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    let null = std::fs::File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).context("cannot let stdout go")
}

/// A daemon that holds its cache and listens.
#[derive(Debug)]
pub struct Daemon {
    socket: Socket,
    host: Arc<Host>,
}

impl Daemon {
    /// Takes the cache and listens. A failure of kind [`Busy`](Kind::Busy): another daemon has it.
    pub async fn start(cache: &Cache) -> Result<Self, Failure> {
        // Whatever it creates is for its user alone.
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        raise_open_files();
        let config = cache.config().map_err(|e| Failure::new(Kind::Disk, crate::text::line(&e)))?;
        let runtime = Handle::current();
        let engine = tokio::task::spawn_blocking(move || Engine::open(&config, runtime))
            .await
            .map_err(|e| Failure::new(Kind::Disk, format!("opening the cache failed: {e}")))??;
        let path = control::socket(&cache.dir);
        let socket = Socket::bind(&path)?;
        tracing::info!("bdnfs {} serves the cache {}", env!("CARGO_PKG_VERSION"), cache.dir.display());
        let host = Arc::new(Host::new(engine, cache.dir.clone(), path));
        Ok(Self { socket, host })
    }

    /// Keeps it from ending.
    pub fn hold(&self) -> Hold {
        self.host.hold()
    }

    /// Serves until nothing is mounted and nobody holds it, or a signal asks it to end; then it has unmounted all.
    pub async fn serve(self) -> Result<()> {
        let host = Arc::clone(&self.host);
        let end = async move {
            tokio::select! {
                () = host.idle() => {}
                asked = signals::asked_to_end() => match asked {
                    Ok(()) => host.unmount_all().await,
                    Err(error) => {
                        tracing::warn!("signals can't be received: {error}");
                        host.idle().await;
                    }
                },
            }
        };
        let host = Arc::clone(&self.host);
        let served = self.socket.serve(server::routes(self.host), end).await;
        host.close().await;
        tracing::info!("ended");
        served.context("the control socket failed")
    }
}

/// Every blob that is read holds a descriptor, and the usual soft limit of 1024 is for programs that use `select`.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}
