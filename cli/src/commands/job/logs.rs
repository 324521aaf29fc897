//! `bdnfs job logs`.

use anyhow::Result;

use super::Which;
use super::follow::{Shown, copy};

/// Which output.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Go on until the job has ended
    #[arg(short, long)]
    follow: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job logs 7
  bdnfs job logs --follow 7";

/// Prints it: the last 64 MiB, and with `--follow` what comes.
pub async fn run(args: Args) -> Result<()> {
    let client = args.which.whose.client()?;
    let mut from = 0;
    loop {
        // Before the look: what it printed last is there then.
        let more = args.follow && !client.job(args.which.job).await?.state.is_last();
        while copy(&client, args.which.job, &mut from, more, Shown { json: false }).await? {}
        if !more {
            return Ok(());
        }
    }
}
