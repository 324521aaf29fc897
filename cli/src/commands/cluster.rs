//! `bdnfs cluster`: certificates of nodes, and the members.

use anyhow::Result;
use clap::Subcommand;

mod authority;
mod issue;
mod ls;

/// The arguments of `bdnfs cluster`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ClusterCommandArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Create a certificate authority for the nodes of a cluster
    InitCa(authority::InitCaArgs),
    /// Issue a certificate for a node
    Issue(issue::IssueArgs),
    /// List the members of the cluster, as the agent of this node sees them
    Ls(ls::ClusterListArgs),
}

const EXAMPLES: &str = "Examples:
  bdnfs cluster init-ca /etc/bdnfs/ca
  bdnfs cluster issue gpu-17 --ca /etc/bdnfs/ca --tenant research --out /etc/bdnfs/nodes
  bdnfs cluster ls";

/// Runs the subcommand.
pub fn run(args: &ClusterCommandArgs) -> Result<()> {
    match &args.command {
        ClusterCommand::InitCa(args) => authority::run(args),
        ClusterCommand::Issue(args) => issue::run(args),
        ClusterCommand::Ls(args) => ls::run(args),
    }
}
