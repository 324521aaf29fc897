//! `bdnfs mirror rm`: removes a source.

use anyhow::Result;

use super::{MirrorTargetArgs, find::find_ref};
use crate::output::print_value;

/// The arguments of `bdnfs mirror rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs mirror rm s3://models/llama-3-8b --mirror s3://mirror")]
pub struct MirrorRemoveArgs {
    /// A source, or the first digits of the id of a snapshot or a ref
    #[arg(value_name = "REF")]
    name: String,
    #[command(flatten)]
    target: MirrorTargetArgs,
}

/// Removes the source.
pub async fn run(args: MirrorRemoveArgs) -> Result<()> {
    let mirror = args.target.open().await?;
    let found = find_ref(&mirror, &args.name).await?;
    let removed = mirror.remove(&found.key()).await?;
    print_value(args.target.json, &removed, || {
        format!("removed {}; `bdnfs mirror gc` frees its space", removed.source)
    })
}
