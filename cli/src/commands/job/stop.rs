//! `bdnfs job stop`.

use anyhow::Result;

use super::JobArgs;
use super::wait::{WaitCondition, wait_for};
use crate::output::print_line;

/// The arguments of `bdnfs job stop`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct JobStopArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Kill its processes at once, without the grace period; where they have ended, leave what is not saved of its checkpoints
    #[arg(long)]
    now: bool,
    /// Do not save what is not saved yet of its checkpoints
    #[arg(long)]
    discard: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job stop 7
  bdnfs job stop --now 7
  bdnfs job stop --discard 7";

/// Stops the job and returns when it has ended.
pub async fn run(args: JobStopArgs) -> Result<()> {
    let client = args.job.agent.client()?;
    client.stop(args.job.id, args.now, args.discard).await?;
    let job = wait_for(&client, args.job.id, WaitCondition::Ended).await?;
    print_line(&format!("job {}: {}", job.id, job.state))
}
