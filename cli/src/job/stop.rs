//! `bdnfs job stop`.

use anyhow::Result;

use super::wait::until;
use super::{Whose, say};
use crate::wait::Until;

/// Which job.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The job's number
    job: u64,
    #[command(flatten)]
    whose: Whose,
    /// Kill its processes at once, without the time to end that they have otherwise
    #[arg(long)]
    now: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job stop 7
  bdnfs job stop --now 7";

/// Stops it, and returns when it has ended.
pub async fn run(args: Args) -> Result<()> {
    let client = args.whose.client()?;
    client.stop(args.job, args.now).await?;
    let job = until(&client, args.job, Until::Ended).await?;
    say(&format!("job {}: {}", job.id, job.state))
}
