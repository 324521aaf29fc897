//! `bdnfs cluster`: what nodes need to trust each other.

use anyhow::Result;
use clap::Subcommand;

mod authority;
mod issue;

/// What to do.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an authority whose certificates the nodes of a cluster trust
    InitCa(authority::Args),
    /// Make a node's certificate
    Issue(issue::Args),
}

const EXAMPLES: &str = "Examples:
  bdnfs cluster init-ca /etc/bdnfs/ca
  bdnfs cluster issue gpu-17 --ca /etc/bdnfs/ca --tenant research --out /etc/bdnfs/nodes";

/// Does it.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::InitCa(args) => authority::run(args),
        Command::Issue(args) => issue::run(args),
    }
}
