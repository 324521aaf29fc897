//! `bdnfs project forget`: gives up what a node has of a cache.

use anyhow::{Result, bail};
use serde::Serialize;

use super::CacheMirrorArgs;
use crate::output::print_value;

/// The arguments of `bdnfs project forget`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ProjectForgetArgs {
    #[command(flatten)]
    target: CacheMirrorArgs,
    /// Name or id of the node, as `project show` prints it
    #[arg(long, value_name = "NODE")]
    node: String,
}

const EXAMPLES: &str = "Example: bdnfs project forget llama --node gpu-3 --mirror s3://mirror
For a node that is gone for good: jobs that need the newest state of the cache do not wait for its unsaved changes any more. If it comes
back, it reports again, and what it saves is merged.";

/// The nodes that were forgotten.
#[derive(Debug, Serialize)]
struct ForgottenNodes {
    nodes: Vec<String>,
}

/// Forgets the node.
pub async fn run(args: ProjectForgetArgs) -> Result<()> {
    let home = args.target.home()?;
    let Some(mirror) = args.target.open(&home).await? else {
        bail!("name the mirror that {home} is saved in with --mirror");
    };
    let reports = mirror.home_reports(&home.key()).await?;
    let named: Vec<_> = reports.iter().filter(|one| one.host == args.node || one.node == args.node).collect();
    match named[..] {
        [] => {
            bail!("no node {} has reported on {home}; `bdnfs project show` lists those that have", args.node)
        }
        [_] => {}
        _ => bail!(
            "several nodes have the name {}; name the id of one of them, as `bdnfs project show` prints it",
            args.node
        ),
    }
    for report in &named {
        mirror.remove_home_report(&home.key(), &report.node).await?;
    }
    let forgotten = ForgottenNodes { nodes: named.iter().map(|report| report.node.clone()).collect() };
    print_value(args.target.json, &forgotten, || format!("forgot what the node {} has of {home}", args.node))
}
