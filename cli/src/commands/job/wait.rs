//! `bdnfs job wait`.

use std::time::Duration;

use anyhow::{Result, bail};
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::job::{JobStatus, event_count};
use clap::ValueEnum;

use super::{JobArgs, follow};
use crate::output::print_json;

/// The arguments of `bdnfs job wait`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct JobWaitArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Timeout, such as 90s or 12h. Default: none
    #[arg(long, value_name = "DURATION", value_parser = crate::text::parse_duration)]
    timeout: Option<Duration>,
    /// The condition to wait for
    #[arg(long, value_enum, default_value_t = WaitCondition::Ended)]
    until: WaitCondition,
    /// Print the job as JSON
    #[arg(long)]
    json: bool,
}

/// A condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WaitCondition {
    /// Staged: local, verified and leased, so that the network is no longer needed
    Ready,
    /// Exited: the commands of the job have ended; its checkpoints may still be saved
    Exited,
    /// Ended: the job has finished, the mount is unmounted
    Ended,
}

const EXAMPLES: &str = "Examples:
  bdnfs job wait 7
  bdnfs job wait --until exited 7
  bdnfs job wait --timeout 12h 7";

/// Waits until the job has ended, and fails unless it completed; or for another condition.
pub async fn run(args: JobWaitArgs) -> Result<()> {
    let client = args.job.agent.client()?;
    let job = with_timeout(args.timeout, wait_for(&client, args.job.id, args.until)).await?;
    if args.json {
        print_json(&job)?;
    }
    match args.until {
        WaitCondition::Exited if !job.state.is_last() => follow::check_exit(&job),
        WaitCondition::Ready if !job.state.is_last() => Ok(()),
        _ => follow::check_completed(&job),
    }
}

/// Waits until the job meets the condition, or has ended.
pub async fn wait_for(client: &Client, id: u64, until: WaitCondition) -> Result<JobStatus> {
    let mut job = client.job(id).await?;
    let is_met = |job: &JobStatus| match until {
        WaitCondition::Ready => job.started.is_some(),
        WaitCondition::Exited => job.exited.is_some(),
        WaitCondition::Ended => false,
    };
    while !job.state.is_last() && !is_met(&job) {
        job = follow::poll(client, id, event_count(&job.events)).await?;
    }
    Ok(job)
}

/// Limits the time of `work`.
pub async fn with_timeout<T>(timeout: Option<Duration>, work: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout {
        None => work.await,
        Some(timeout) => match tokio::time::timeout(timeout, work).await {
            Ok(result) => result,
            Err(_) => bail!("timed out after {}", humantime::format_duration(timeout)),
        },
    }
}
