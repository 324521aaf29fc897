//! `bdnfs mirror`: sources copied once into object storage.

use std::io::Write;

use anyhow::{Result, bail};
use bdnfs_agent::runtime;
use clap::Subcommand;

use crate::{access, mirror};

mod add;
mod find;
mod gc;
mod ls;
mod rm;
mod show;
mod verify;

/// What to do with a mirror.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Copy sources into the mirror; what is there already is not copied again
    Add(add::Args),
    /// List what is mirrored
    Ls(ls::Args),
    /// Show one snapshot: from what it was made, and when
    Show(show::Args),
    /// Find out whether all that is mirrored is there
    Verify(verify::Args),
    /// Delete what no source needs any more
    Gc(gc::Args),
    /// Remove a source from the mirror; `gc` frees its space
    Rm(rm::Args),
}

const EXAMPLES: &str = "Examples:
  bdnfs mirror add s3://models/llama-3-8b --mirror s3://mirror
  bdnfs mirror ls --mirror s3://mirror
  bdnfs mirror verify --deep --mirror s3://mirror
  bdnfs mount s3://models/llama-3-8b /mnt/model --mirror s3://mirror";

/// The mirror that a command is about, and how it may be used.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct At {
    #[command(flatten)]
    place: mirror::Args,
    #[command(flatten)]
    access: access::Args,
}

impl At {
    /// Opens the mirror, which must be there.
    async fn open(&self) -> Result<bdnfs::mirror::Mirror> {
        let at = self.place.request_or_default(&self.access, None)?;
        let mirror = bdnfs_agent::mirror::open(&at, std::env::temp_dir())?;
        if !mirror.exists().await? {
            bail!("there is no mirror at {}; `bdnfs mirror add` makes one", mirror.name());
        }
        Ok(mirror)
    }
}

/// Does it.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Add(args) => runtime::block_on_threads(add::run(args)),
        Command::Ls(args) => runtime::block_on_threads(ls::run(args)),
        Command::Show(args) => runtime::block_on_threads(show::run(args)),
        Command::Verify(args) => runtime::block_on_threads(verify::run(args)),
        Command::Gc(args) => runtime::block_on_threads(gc::run(args)),
        Command::Rm(args) => runtime::block_on_threads(rm::run(args)),
    }
}

/// Says it on stdout: as JSON on one line, or as `text`.
fn say(json: bool, value: &impl serde::Serialize, text: impl FnOnce() -> String) -> Result<()> {
    let line = if json { serde_json::to_string(value)? } else { text() };
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}
