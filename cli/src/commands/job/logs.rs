//! `bdnfs job logs`.

use anyhow::Result;

use super::JobArgs;
use super::follow::{FollowFormat, next_output, write_output};

/// The arguments of `bdnfs job logs`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct JobLogsArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Follow the output until the job has ended
    #[arg(short, long)]
    follow: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job logs 7
  bdnfs job logs --follow 7";

/// Prints the last 64 MiB of output, and with `--follow` what comes.
pub async fn run(args: JobLogsArgs) -> Result<()> {
    let client = args.job.agent.client()?;
    let mut from = 0;
    loop {
        // Asked before the output is copied, so that the last of it is copied too.
        let more = args.follow && !client.job(args.job.id).await?.state.is_last();
        while let Some(piece) = next_output(&client, args.job.id, &mut from, more).await? {
            write_output(&piece, FollowFormat { json: false })?;
        }
        if !more {
            return Ok(());
        }
    }
}
