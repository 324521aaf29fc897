//! `bdnfs job logs`.

use anyhow::Result;

use super::Whose;
use super::follow::{Shown, copy};

/// Whose output.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The job's number
    job: u64,
    #[command(flatten)]
    whose: Whose,
    /// Go on until the job has ended
    #[arg(short, long)]
    follow: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job logs 7
  bdnfs job logs --follow 7";

/// Prints it: the last 64 MiB, and with `--follow` what comes.
pub async fn run(args: Args) -> Result<()> {
    let client = args.whose.client()?;
    let mut from = 0;
    loop {
        // Before the look: what it printed last is there then.
        let more = args.follow && !client.job(args.job).await?.state.is_last();
        while copy(&client, args.job, &mut from, more, Shown { json: false }).await? {}
        if !more {
            return Ok(());
        }
    }
}
