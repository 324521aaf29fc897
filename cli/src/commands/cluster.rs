//! `bdnfs cluster`: what nodes need to trust each other, and who they are.

use anyhow::Result;
use clap::Subcommand;

mod authority;
mod issue;
mod ls;

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
    /// List the nodes of the cluster, as this machine's agent sees them
    Ls(ls::Args),
}

const EXAMPLES: &str = "Examples:
  bdnfs cluster init-ca /etc/bdnfs/ca
  bdnfs cluster issue gpu-17 --ca /etc/bdnfs/ca --tenant research --out /etc/bdnfs/nodes
  bdnfs cluster ls";

/// Does it.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::InitCa(args) => authority::run(args),
        Command::Issue(args) => issue::run(args),
        Command::Ls(args) => ls::run(args),
    }
}
