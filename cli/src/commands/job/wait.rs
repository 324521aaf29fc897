//! `bdnfs job wait`.

use std::time::Duration;

use anyhow::{Result, bail};
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::job::JobStatus;

use super::{Which, follow, say};
use crate::commands::wait::Until;

/// Which job, and how long.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Fail when it has not ended by then, such as 90s or 12h
    #[arg(long, value_name = "TIME", value_parser = crate::text::span)]
    timeout: Option<Duration>,
    /// Tell the job as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job wait 7
  bdnfs job wait --timeout 12h 7";

/// Waits for its end, and fails unless it completed.
pub async fn run(args: Args) -> Result<()> {
    let client = args.which.whose.client()?;
    let job = within(args.timeout, until(&client, args.which.job, Until::Ended)).await?;
    if args.json {
        say(&serde_json::to_string(&job)?)?;
    }
    follow::judge(&job)
}

/// Waits until it is so far, or has ended.
pub async fn until(client: &Client, id: u64, until: Until) -> Result<JobStatus> {
    let mut job = client.job(id).await?;
    while !job.state.is_last() && (until == Until::Ended || job.started.is_none()) {
        job = follow::after(client, id, job.events.len()).await?;
    }
    Ok(job)
}

/// What `work` comes to, unless it takes longer than it may.
pub async fn within<T>(timeout: Option<Duration>, work: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout {
        None => work.await,
        Some(timeout) => match tokio::time::timeout(timeout, work).await {
            Ok(done) => done,
            Err(_) => bail!("not after {timeout:?}"),
        },
    }
}
