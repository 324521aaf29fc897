//! `bdnfs job wait`.

use std::time::Duration;

use anyhow::{Result, bail};
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::job::JobStatus;
use clap::ValueEnum;

use super::{JobArgs, follow};
use crate::output::print_json;

/// The arguments of `bdnfs job wait`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct JobWaitArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Fail when the time is over, such as 90s or 12h
    #[arg(long, value_name = "DURATION", value_parser = crate::text::parse_duration)]
    timeout: Option<Duration>,
    /// Print the job as JSON
    #[arg(long)]
    json: bool,
}

/// A condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WaitCondition {
    /// Staged: local, verified and leased, so that the network is no longer needed
    Ready,
    /// Ended: the job has finished, the mount is unmounted
    Ended,
}

const EXAMPLES: &str = "Examples:
  bdnfs job wait 7
  bdnfs job wait --timeout 12h 7";

/// Waits until the job has ended, and fails unless it completed.
pub async fn run(args: JobWaitArgs) -> Result<()> {
    let client = args.job.agent.client()?;
    let job = with_timeout(args.timeout, wait_for(&client, args.job.id, WaitCondition::Ended)).await?;
    if args.json {
        print_json(&job)?;
    }
    follow::check_completed(&job)
}

/// Waits until the job meets the condition, or has ended.
pub async fn wait_for(client: &Client, id: u64, until: WaitCondition) -> Result<JobStatus> {
    let mut job = client.job(id).await?;
    while !job.state.is_last() && (until == WaitCondition::Ended || job.started.is_none()) {
        job = follow::poll(client, id, job.events.len()).await?;
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
