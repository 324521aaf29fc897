//! `bdnfs mirror rm`.

use anyhow::Result;

use super::{At, find::find, say};

/// What to remove.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A source, or the first digits of the id of a snapshot or a ref
    #[arg(value_name = "REF")]
    named: String,
    #[command(flatten)]
    at: At,
    /// Tell what was removed as JSON
    #[arg(long)]
    json: bool,
}

/// Removes it.
pub async fn run(args: Args) -> Result<()> {
    let mirror = args.at.open().await?;
    let found = find(&mirror, &args.named).await?;
    let removed = mirror.remove(&found.key()).await?;
    say(args.json, &removed, || format!("removed {}; `bdnfs mirror gc` frees its space", removed.source))
}
