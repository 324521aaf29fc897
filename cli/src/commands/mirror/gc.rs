//! `bdnfs mirror gc`: deletes unused data.

use std::time::Duration;

use anyhow::Result;

use super::MirrorTargetArgs;
use crate::output::print_value;
use crate::text;

/// The arguments of `bdnfs mirror gc`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs mirror gc --grace 7d --dry-run --mirror s3://mirror")]
pub struct MirrorGcArgs {
    #[command(flatten)]
    target: MirrorTargetArgs,
    /// Keep data that was written, removed or replaced within this time: 90s, 30m, 24h, 7d
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = text::parse_duration)]
    grace: Duration,
    /// Print what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
}

/// Deletes unused data.
pub async fn run(args: MirrorGcArgs) -> Result<()> {
    let mirror = args.target.open().await?;
    let collected = mirror.collect(args.grace, args.dry_run).await?;
    print_value(args.target.json, &collected, || {
        let verb = if args.dry_run { "would delete" } else { "deleted" };
        let kept = match collected.kept {
            0 => String::new(),
            kept => {
                let (kept, bytes) = (text::count(kept, "object"), text::size(collected.kept_bytes));
                format!("; kept {kept}, {bytes}, within the grace period or in use")
            }
        };
        format!("{verb} {}, {}{kept}", text::count(collected.objects, "object"), text::size(collected.bytes))
    })
}
