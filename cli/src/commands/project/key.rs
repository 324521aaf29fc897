//! `bdnfs project key`: the label of nodes that have a cache. Needs no network, and no cache.

use anyhow::Result;
use bdnfs_csi::source_label;

use super::{CacheHomeArgs, CacheNameArgs};
use crate::commands::source::affinity;
use crate::output;

/// The arguments of `bdnfs project key`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs project key llama --tenant team-a")]
pub struct ProjectKeyArgs {
    #[command(flatten)]
    cache: CacheNameArgs,
    #[command(flatten)]
    target: CacheHomeArgs,
}

/// Prints the affinity.
pub fn run(args: &ProjectKeyArgs) -> Result<()> {
    let home = args.target.home(&args.cache)?;
    output::print(&affinity(&source_label(&args.target.tenant, &home.source())))
}
