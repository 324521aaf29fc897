//! `bdnfs job stop`.

use anyhow::Result;

use super::wait::until;
use super::{Which, say};
use crate::commands::wait::Until;

/// Which job.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Kill its processes at once, without the time to end that they have otherwise
    #[arg(long)]
    now: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job stop 7
  bdnfs job stop --now 7";

/// Stops it, and returns when it has ended.
pub async fn run(args: Args) -> Result<()> {
    let client = args.which.whose.client()?;
    client.stop(args.which.job, args.now).await?;
    let job = until(&client, args.which.job, Until::Ended).await?;
    say(&format!("job {}: {}", job.id, job.state))
}
