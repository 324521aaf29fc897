//! `bdnfs checkpoint rm`: removes a checkpoint, after asking.

use anyhow::{Result, bail};
use bdnfs::checkpoint::CheckpointId;
use serde::Serialize;

use super::{CheckpointMirrorArgs, source, state};
use crate::output::{confirm_removal, print_value, stderr_line};
use crate::text;

/// The arguments of `bdnfs checkpoint rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointRemoveArgs {
    /// Name of a checkpoint, or bt://project[@job]/checkpoint
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    target: CheckpointMirrorArgs,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs checkpoint rm bt://llama@a1b2c3d4/checkpoint-500
  bdnfs checkpoint rm checkpoint-500 --project llama --yes
All ranks of it are removed; what is mounted stays readable. `bdnfs mirror gc` frees the space.";

/// The result of a removal.
#[derive(Debug, Serialize)]
struct RemovedCheckpoint {
    removed: Vec<CheckpointId>,
    bytes: u64,
}

/// Removes the checkpoint.
pub async fn run(args: CheckpointRemoveArgs) -> Result<()> {
    let selector = args.target.selector(&args.name)?;
    if selector.name.is_none() {
        bail!("{selector} names no checkpoint; `bdnfs checkpoint ls` lists them");
    }
    let mirror = args.target.open().await?;
    let (groups, _) = mirror.checkpoint_groups(Some(&selector.project), selector.job.as_deref()).await?;
    let groups: Vec<_> = groups.into_iter().filter(|group| selector.selects(group)).collect();
    let [group] = &groups[..] else {
        if groups.is_empty() {
            if let Some(id) = selector.pinned()
                && mirror.remove_checkpoint(&id).await?
            {
                stderr_line!("note: its entry was damaged; other ranks are removed by bt://…?rank=N");
                return print_value(
                    args.target.json,
                    &RemovedCheckpoint { removed: vec![id], bytes: 0 },
                    || format!("removed {selector}"),
                );
            }
            bail!(mirror.choose_checkpoint(&selector).await.map_or_else(|e| e.to_string(), |_| args.name));
        }
        let there: Vec<_> = groups.iter().map(source).collect();
        bail!("several jobs have saved it; name one of {}", there.join(", "));
    };
    let bytes = group.bytes();
    let ranks = text::count(group.ranks().len() as u64, "rank");
    let question = format!("{} ({ranks}, {}, {})", source(group), text::size(bytes), state(group));
    if !args.yes && !confirm_removal(&question)? {
        bail!("nothing was removed");
    }
    let mut removed = Vec::new();
    for saved in group.ranks() {
        mirror.remove_checkpoint(&saved.id).await?;
        removed.push(saved.id.clone());
    }
    let report = RemovedCheckpoint { removed, bytes };
    print_value(args.target.json, &report, || {
        format!("removed {}; `bdnfs mirror gc` frees its space", source(group))
    })
}
