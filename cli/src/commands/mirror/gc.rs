//! `bdnfs mirror gc`.

use std::time::Duration;

use anyhow::Result;

use super::{At, say};
use crate::text;

/// What to delete.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    at: At,
    /// Keep what was written, removed or replaced more recently: 90s, 30m, 24h, 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = text::span)]
    grace: Duration,
    /// Delete nothing, only tell what would be
    #[arg(long)]
    dry_run: bool,
    /// Tell it as JSON
    #[arg(long)]
    json: bool,
}

/// Collects.
pub async fn run(args: Args) -> Result<()> {
    let mirror = args.at.open().await?;
    let collected = mirror.collect(args.grace, args.dry_run).await?;
    say(args.json, &collected, || {
        let did = if args.dry_run { "would delete" } else { "deleted" };
        let kept = match collected.kept {
            0 => String::new(),
            kept => {
                let (kept, bytes) = (text::count(kept, "object"), text::size(collected.kept_bytes));
                format!("; kept {kept}, {bytes}, for the grace or for somebody at work")
            }
        };
        format!("{did} {}, {}{kept}", text::count(collected.objects, "object"), text::size(collected.bytes))
    })
}
