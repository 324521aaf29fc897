//! `bdnfs wait`: the gate for scripts and hooks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bdnfs_agent::api::StageState;
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::job::JobState;
use bdnfs_agent::runtime;
use clap::ValueEnum;

use crate::commands::job::wait::{until, within};
use crate::commands::job::{Whose, follow};
use crate::pulse::{self, Pulse};
use crate::{mountpoint, text};

/// What to wait for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A mountpoint, or the number of a job
    #[arg(value_name = "MOUNT|JOB")]
    what: String,
    /// What is to be so
    #[arg(long, value_enum, default_value_t = Until::Ready)]
    until: Until,
    /// Fail when it is not so by then, such as 90s or 12h
    #[arg(long, value_name = "TIME", value_parser = text::span)]
    timeout: Option<Duration>,
    #[command(flatten)]
    whose: Whose,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Until {
    /// All is local, verified and leased: no network is needed any more
    Ready,
    /// It has ended: the job, or the mount
    Ended,
}

const EXAMPLES: &str = "Examples:
  bdnfs wait /mnt/model --timeout 30m && exec python serve.py
  bdnfs wait 7 --until ready
A mount that nobody made local yet is made local. A job is ready when its commands run.";

/// Waits for it.
pub fn run(args: &Args) -> Result<()> {
    let what = &args.what;
    runtime::block_on(async {
        let waited = async {
            match what.parse() {
                Ok(id) => job(&args.whose.client()?, id, args.until).await,
                Err(_) => mount(Path::new(what), args.until).await,
            }
        };
        within(args.timeout, waited).await.with_context(|| format!("waiting for {what}"))
    })
}

async fn job(client: &Client, id: u64, so_far: Until) -> Result<()> {
    let job = until(client, id, so_far).await?;
    match so_far {
        Until::Ready if job.started.is_none() && job.state != JobState::Running => follow::judge(&job),
        _ => Ok(()),
    }
}

async fn mount(path: &Path, until: Until) -> Result<()> {
    let path: PathBuf = mountpoint::find(path)?;
    let Pulse::Alive(socket) = pulse::of(&path) else {
        bail!("{} is not a bdnfs mount that answers; `bdnfs status` lists those there are", path.display());
    };
    let client = Client::new(socket);
    let status = client.status().await?;
    let Some(mount) = status.at(&path) else { bail!("its daemon does not know {}", path.display()) };
    let id = mount.mounted.id;
    if until == Until::Ended {
        return Ok(client.ended(id).await?);
    }
    let mut staging = client.stage(id).await?;
    loop {
        match staging.state {
            StageState::Running => staging = client.staging(id).await?,
            StageState::Done => return Ok(()),
            StageState::Failed(failure) => return Err(failure.into()),
        }
    }
}
