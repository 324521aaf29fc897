//! `bdnfs agent`: a daemon that stays. It owns a node's cache, hosts its mounts, and brings them back after a restart.

use std::path::PathBuf;

use anyhow::Result;
use bdnfs_agent::runtime;
use bdnfs_agent::telemetry::traces::Collector;
use bdnfs_agent::{AgentConfig, AgentServer};

use crate::cache;

mod cluster;
mod config;
mod notify;
mod stop;

pub use config::Config;

/// How the agent is set up. What is said here goes before what the file says.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The configuration, a TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    cache: cache::Args,
    /// Where other commands find it, whatever its cache; by default /run/bdnfs/agent.sock for root, else
    /// $XDG_RUNTIME_DIR/bdnfs/agent.sock
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Have the agent that runs take everything down and end
    #[arg(long)]
    stop: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs agent --config /etc/bdnfs/agent.toml
  bdnfs agent --cache-dir /nvme/bdnfs --cache-size 2T
  bdnfs agent --stop";

impl Args {
    /// What its configuration says. To be read once: it may come from a pipe.
    pub fn configuration(&self) -> Result<Config> {
        Ok(self.config.as_deref().map(Config::read).transpose()?.unwrap_or_default())
    }

    /// Who takes the traces of this agent: whom its configuration names, else the environment.
    pub fn collector(&self, config: &Config) -> Result<Option<Collector>> {
        if self.stop {
            return Ok(None);
        }
        match config.collector()? {
            None => Collector::ambient(),
            named => Ok(named),
        }
    }
}

/// Serves until it is asked to end; or asks the one that does.
pub fn run(args: &Args, config: Config) -> Result<()> {
    if args.stop {
        return stop::run(config.reached(&args.cache, args.socket.as_deref())?);
    }
    let setup = config.setup(&args.cache, args.socket.as_deref())?;
    runtime::block_on_threads(serve(setup))
}

async fn serve(setup: AgentConfig) -> Result<()> {
    let daemon = AgentServer::start(setup).await?;
    let ready = daemon.ready();
    tokio::spawn(async move {
        ready.await;
        notify::ready();
    });
    daemon.serve().await
}
