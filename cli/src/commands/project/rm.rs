//! `bdnfs project rm`: removes a cache from this node and from a mirror, after asking.

use anyhow::{Result, anyhow, bail};
use bdnfs::checkpoint::CheckpointId;
use bdnfs::mirror::Mirror;
use bdnfs_agent::volumes::occupied;
use serde::Serialize;

use super::CacheMirrorArgs;
use crate::output::{confirm_removal, print_value};
use crate::text;

/// The arguments of `bdnfs project rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ProjectRemoveArgs {
    #[command(flatten)]
    target: CacheMirrorArgs,
    /// Also remove all checkpoints of the project from the mirror
    #[arg(long, conflicts_with = "team")]
    checkpoints: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs project rm llama --mirror s3://mirror
  bdnfs project rm llama --mirror s3://mirror --checkpoints
  bdnfs project rm --team research --yes
What is removed cannot be restored. Without --mirror it is removed from this node alone, and what is saved is pulled again for the
next job; with it, the next job on any node finds the cache empty, and other nodes empty theirs then. `bdnfs mirror gc` frees the mirror's space.";

/// The result of a removal.
#[derive(Debug, Serialize)]
struct RemovedCache {
    name: String,
    scope: &'static str,
    bytes: u64,
    /// Whether it was removed from a mirror, too.
    saved: bool,
    /// How many checkpoints were removed.
    checkpoints: usize,
    /// Their size.
    checkpoint_bytes: u64,
}

/// The checkpoints of a project in a mirror.
#[derive(Debug, Default)]
struct ProjectCheckpoints {
    count: usize,
    bytes: u64,
    /// Those of all ranks, and of damaged entries.
    ids: Vec<CheckpointId>,
}

impl ProjectCheckpoints {
    async fn list(mirror: &Mirror, project: &str) -> Result<Self> {
        let (groups, damaged) = mirror.checkpoint_groups(Some(project), None).await?;
        let ranks = groups.iter().flat_map(|group| group.ranks()).map(|saved| saved.id.clone());
        Ok(Self {
            count: groups.len() + damaged.len(),
            bytes: groups.iter().map(|group| group.bytes()).sum(),
            ids: ranks.chain(damaged.into_iter().map(|(id, _)| id)).collect(),
        })
    }
}

/// Removes the cache.
pub async fn run(args: ProjectRemoveArgs) -> Result<()> {
    let home = args.target.home()?;
    let mirror = args.target.open(&home).await?;
    let is_saved = match &mirror {
        Some(mirror) => mirror.find(&home.key()).await?.is_some(),
        None => false,
    };
    let checkpoints = match &mirror {
        Some(mirror) if args.checkpoints => ProjectCheckpoints::list(mirror, home.name()).await?,
        None if args.checkpoints => bail!("name the mirror that has the checkpoints with --mirror"),
        _ => ProjectCheckpoints::default(),
    };
    if !home.exists() && !is_saved && checkpoints.ids.is_empty() {
        let or_saved = if mirror.is_some() { ", and not saved in this mirror" } else { "" };
        bail!("{home} is not on this node{or_saved}; `bdnfs project ls` lists those that are");
    }
    let bytes = occupied(&home.tree());
    let and_saved = match is_saved {
        true => ", and what is saved of it",
        false if home.is_shared() => ", for all nodes that share its directory; no mirror has it",
        false => "",
    };
    let and_checkpoints = match checkpoints.count {
        0 => String::new(),
        count => {
            let count = text::count(count as u64, "checkpoint");
            format!(", and {count} ({})", text::size(checkpoints.bytes))
        }
    };
    let question = format!("{home} ({}){and_saved}{and_checkpoints}", text::size(bytes));
    if !args.yes && !confirm_removal(&question)? {
        bail!("nothing was removed");
    }
    if let Some(mirror) = &mirror {
        // Its node would empty it when it ends, with what it wrote since.
        home.ensure_unused_elsewhere(mirror).await?;
    }
    let locks = if home.exists() {
        // One that is being saved would be saved without what is gone from it already, and other nodes would remove that.
        let busy = || anyhow!("{home} is being saved, or updated for a job; try again later");
        let use_lock = home.try_use_lock()?.ok_or_else(busy)?;
        if home.is_in_use() {
            return Err(home.in_use().into());
        }
        let sync_lock = home.try_idle_sync_lock()?.ok_or_else(busy)?;
        Some((use_lock, sync_lock))
    } else {
        None
    };
    // Before the cache, by which the rest is found again where this is interrupted.
    if let Some(mirror) = &mirror {
        for id in &checkpoints.ids {
            mirror.remove_checkpoint(id).await?;
        }
    }
    if locks.is_some() {
        home.remove()?;
    }
    drop(locks);
    if let Some(mirror) = mirror {
        if is_saved {
            mirror.remove(&home.key()).await?;
        }
        // What other nodes have of it is removed there before their next job.
        for report in mirror.home_reports(&home.key()).await? {
            mirror.remove_home_report(&home.key(), &report.node).await?;
        }
    }
    home.empty_trash();
    let (name, scope) = (home.name().to_owned(), home.scope().as_str());
    let removed = RemovedCache {
        name,
        scope,
        bytes,
        saved: is_saved,
        checkpoints: checkpoints.count,
        checkpoint_bytes: checkpoints.bytes,
    };
    print_value(args.target.json, &removed, || {
        format!("removed {home}{and_saved}, {}{and_checkpoints}", text::size(bytes))
    })
}
