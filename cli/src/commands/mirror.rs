//! `bdnfs mirror`: copies of sources in object storage.

use anyhow::Result;
use clap::Subcommand;

use crate::access::{AccessArgs, option_name};
use crate::mirror::{self, MirrorArgs};
use crate::runtime;

mod add;
mod find;
mod gc;
mod ls;
mod rm;
mod show;
mod verify;

/// The arguments of `bdnfs mirror`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct MirrorCommandArgs {
    #[command(subcommand)]
    command: MirrorCommand,
}

#[derive(Debug, Subcommand)]
enum MirrorCommand {
    /// Copy sources into the mirror, incrementally
    Add(add::MirrorAddArgs),
    /// List mirrored sources
    Ls(ls::MirrorListArgs),
    /// Show a mirrored snapshot
    Show(show::MirrorShowArgs),
    /// Verify that all mirrored data is there
    Verify(verify::MirrorVerifyArgs),
    /// Delete data that no mirrored source uses
    Gc(gc::MirrorGcArgs),
    /// Remove a source from the mirror; gc frees its space
    Rm(rm::MirrorRemoveArgs),
}

const EXAMPLES: &str = "Examples:
  bdnfs mirror add s3://models/llama-3-8b --mirror s3://mirror
  bdnfs mirror ls --mirror s3://mirror
  bdnfs mirror verify --deep --mirror s3://mirror
  bdnfs mount s3://models/llama-3-8b /mnt/model --mirror s3://mirror";

/// The arguments of all commands on an existing mirror.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct MirrorTargetArgs {
    #[command(flatten)]
    mirror: MirrorArgs,
    #[command(flatten)]
    access: AccessArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl MirrorTargetArgs {
    /// Opens the mirror, which must exist.
    async fn open(&self) -> Result<bdnfs::mirror::Mirror> {
        self.access.check(&[], self.mirror.uri(), option_name)?;
        let request = self.mirror.request_or_default(&self.access, &[])?;
        mirror::open_existing(&request, "`bdnfs mirror add` creates one").await
    }
}

/// Runs the subcommand.
pub fn run(args: MirrorCommandArgs) -> Result<()> {
    match args.command {
        MirrorCommand::Add(args) => runtime::block_on_threads(add::run(args)),
        MirrorCommand::Ls(args) => runtime::block_on_threads(ls::run(args)),
        MirrorCommand::Show(args) => runtime::block_on_threads(show::run(args)),
        MirrorCommand::Verify(args) => runtime::block_on_threads(verify::run(args)),
        MirrorCommand::Gc(args) => runtime::block_on_threads(gc::run(args)),
        MirrorCommand::Rm(args) => runtime::block_on_threads(rm::run(args)),
    }
}
