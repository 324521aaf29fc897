//! `bdnfs project rm`: removes a cache from this node, after asking.

use anyhow::{Result, bail};
use bdnfs_agent::volumes::occupied;
use serde::Serialize;

use super::CacheHomeArgs;
use crate::output::{confirm_removal, print_value};
use crate::text;

/// The arguments of `bdnfs project rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ProjectRemoveArgs {
    /// Name of the project, or with --team of the team
    #[arg(value_name = "NAME")]
    name: String,
    /// The cache of a team
    #[arg(long)]
    team: bool,
    #[command(flatten)]
    target: CacheHomeArgs,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs project rm llama
  bdnfs project rm --team research --yes
What is removed can't be brought back. Checkpoints in the mirror stay: see `bdnfs checkpoint rm`.";

/// The result of a removal.
#[derive(Debug, Serialize)]
struct RemovedCache {
    name: String,
    scope: &'static str,
    bytes: u64,
}

/// Removes the cache.
pub fn run(args: &ProjectRemoveArgs) -> Result<()> {
    let home = args.target.of(&args.name, args.team)?;
    if !home.exists() {
        bail!("{home} is not on this node; `bdnfs project ls` lists those that are");
    }
    let bytes = occupied(&home.tree());
    if !args.yes && !confirm_removal(&format!("{home} ({})", text::size(bytes)))? {
        bail!("nothing was removed");
    }
    home.remove()?;
    home.empty_trash();
    let removed = RemovedCache { name: args.name.clone(), scope: home.scope().word(), bytes };
    print_value(args.json, &removed, || format!("removed {home}, {}", text::size(bytes)))
}
