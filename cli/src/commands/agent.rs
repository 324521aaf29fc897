//! `bdnfs agent`: runs the agent of a node, which restores its mounts after a restart.

use std::path::PathBuf;

use anyhow::Result;
use bdnfs_agent::telemetry::traces::OtlpEndpoint;
use bdnfs_agent::{AgentConfig, AgentServer};

mod check;
mod cluster;
mod config;
mod config_error;
mod notify;
mod publications;
mod stop;
mod volumes;

pub use config::ConfigFile;

use crate::cache::CacheArgs;
use crate::runtime;
use check::AgentState;

/// The arguments of `bdnfs agent`, which take precedence over the configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct AgentCommandArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Control socket, where other commands find the agent. Default: /run/bdnfs/agent.sock for root, else
    /// $XDG_RUNTIME_DIR/bdnfs/agent.sock
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Stop the running agent and unmount all its mounts
    #[arg(long)]
    stop: bool,
    /// Check whether the running agent lives or is ready, for probes
    #[arg(long, value_enum, value_name = "STATE", conflicts_with = "stop")]
    check: Option<AgentState>,
}

const EXAMPLES: &str = "Examples:
  bdnfs agent --config /etc/bdnfs/agent.toml
  bdnfs agent --cache-dir /nvme/bdnfs --cache-size 2T
  bdnfs agent --stop
  bdnfs agent --check ready";

impl AgentCommandArgs {
    /// Reads the configuration. Call once: it may come from a pipe.
    pub fn configuration(&self) -> Result<ConfigFile> {
        Ok(self.config.as_deref().map(ConfigFile::read).transpose()?.unwrap_or_default())
    }

    /// The collector for traces: that of the configuration, else of the environment.
    pub fn collector(&self, config: &ConfigFile) -> Result<Option<OtlpEndpoint>> {
        if self.stop || self.check.is_some() {
            return Ok(None);
        }
        match config.collector()? {
            None => Ok(OtlpEndpoint::from_environment()?),
            named => Ok(named),
        }
    }
}

/// Runs the agent until it is told to stop, or stops or checks the running one.
pub fn run(args: &AgentCommandArgs, config: ConfigFile) -> Result<()> {
    if let Some(state) = args.check {
        return check::run(config.find_socket(&args.cache, args.socket.as_deref())?, state);
    }
    if args.stop {
        return stop::run(config.find_socket(&args.cache, args.socket.as_deref())?);
    }
    let setup = config.setup(&args.cache, args.socket.as_deref())?;
    runtime::block_on_threads(serve(setup))
}

async fn serve(setup: AgentConfig) -> Result<()> {
    let agent = AgentServer::start(setup).await?;
    let ready = agent.ready();
    tokio::spawn(async move {
        ready.await;
        notify::notify_ready();
    });
    Ok(agent.serve().await?)
}
