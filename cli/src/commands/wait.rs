//! `bdnfs wait`: waits until data is staged, for scripts and hooks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bdnfs_agent::api::StageState;
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::job::JobState;
use bdnfs_agent::api::publication::{PublicationState, is_publication_key};

use crate::commands::job::wait::{WaitCondition, wait_for, with_timeout};
use crate::commands::job::{AgentArgs, follow};
use crate::probe::{self, MountHealth};
use crate::runtime;
use crate::{mountpoint, text};

/// The time for which one request for a source of the configuration is held.
const SOURCE_POLL_TIMEOUT: Duration = Duration::from_secs(30);

/// The arguments of `bdnfs wait`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct WaitArgs {
    /// A mount point, the id of a job, or the name of a source in the agent's configuration
    #[arg(value_name = "MOUNT|JOB|NAME")]
    target: String,
    /// The condition to wait for
    #[arg(long, value_enum, default_value_t = WaitCondition::Ready)]
    until: WaitCondition,
    /// Of a mount: also read and verify what was local before
    #[arg(long)]
    verify: bool,
    /// Timeout, such as 90s or 12h. Default: none
    #[arg(long, value_name = "DURATION", value_parser = text::parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    agent: AgentArgs,
}

const EXAMPLES: &str = "Examples:
  bdnfs wait /mnt/model --timeout 30m && exec python serve.py
  bdnfs wait /mnt/model --verify
  bdnfs wait 7 --until ready
  bdnfs wait llama
A mount that is not staged is staged. A job is ready when its commands run.";

/// Waits for the condition.
pub fn run(args: &WaitArgs) -> Result<()> {
    let target = &args.target;
    if args.verify && args.until != WaitCondition::Ready {
        bail!("--verify needs --until ready, which is the default");
    }
    runtime::block_on(async {
        let waited = async {
            match target.parse() {
                Err(_) if target.contains('/') || mountpoint::is_mounted(Path::new(target)) => {
                    mount(Path::new(target), args.until, args.verify).await
                }
                _ if args.verify => bail!("--verify is for mounts only"),
                Ok(id) => job(&args.agent.client()?, id, args.until).await,
                Err(_) => source(&args.agent.client()?, target, args.until).await,
            }
        };
        with_timeout(args.timeout, waited).await.with_context(|| format!("waiting for {target}"))
    })
}

async fn job(client: &Client, id: u64, condition: WaitCondition) -> Result<()> {
    let job = wait_for(client, id, condition).await?;
    match condition {
        WaitCondition::Ready if job.started.is_none() && job.state != JobState::Running => {
            follow::check_completed(&job)
        }
        _ => Ok(()),
    }
}

/// Waits for the source `name` of the agent's configuration.
async fn source(client: &Client, name: &str, until: WaitCondition) -> Result<()> {
    if until != WaitCondition::Ready {
        bail!("cannot wait for a source of the agent's configuration to end");
    }
    if !is_publication_key(name) {
        bail!("{name}: not a mount point, and not the name of a source");
    }
    while client.publish_source(name, SOURCE_POLL_TIMEOUT).await?.state != PublicationState::Published {}
    Ok(())
}

/// Waits for the mount at `path`; `verify`: what was local before is verified, too.
async fn mount(path: &Path, until: WaitCondition, verify: bool) -> Result<()> {
    let path: PathBuf = mountpoint::resolve(path)?;
    let socket = match probe::mount(&path) {
        MountHealth::Alive(socket) => socket,
        MountHealth::Dead => {
            bail!("{0}: the agent of the mount is gone; unmount it with `bdnfs umount {0}`", path.display())
        }
        MountHealth::Unresponsive => {
            bail!("{}: mount does not respond; `bdnfs status` names its agent", path.display())
        }
        MountHealth::Unknown(error) if mountpoint::is_mounted(&path) => {
            bail!("{}: cannot ask the mount for its agent: {error}", path.display())
        }
        MountHealth::Unknown(_) => {
            bail!("{}: not a bdnfs mount; `bdnfs status` lists them", path.display())
        }
    };
    let client = Client::new(socket);
    let status = client.status().await?;
    let Some(mount) = status.at(&path) else {
        bail!("{}: moved, bound, or being unmounted; `bdnfs status` lists the mounts", path.display())
    };
    let id = mount.mounted.id;
    if until != WaitCondition::Ready {
        return Ok(client.await_end(id).await?);
    }
    let mut staging = client.stage(id, verify).await?;
    loop {
        match staging.state {
            StageState::Running => staging = client.staging(id).await?,
            StageState::Done => return Ok(()),
            StageState::Failed(failure) => return Err(failure.into()),
        }
    }
}
