//! `bdnfs checkpoint show`: a checkpoint, or the weights entry that serves it.

use anyhow::Result;
use bdnfs::checkpoint::group::CheckpointGroup;
use serde::Serialize;

use super::{CheckpointMirrorArgs, source, state};
use crate::output::{print_json, print_line};
use crate::text;

/// The arguments of `bdnfs checkpoint show`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointShowArgs {
    /// Name of a checkpoint, or bt://project[@job][/checkpoint], where what is left out means the latest
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    target: CheckpointMirrorArgs,
    /// Print the weights entry that serves it, for a TOML configuration
    #[arg(long)]
    weights: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs checkpoint show bt://llama
  bdnfs checkpoint show checkpoint-500 --project llama --weights >> weights.toml";

/// A checkpoint.
#[derive(Debug, Serialize)]
struct CheckpointReport<'a> {
    project: &'a str,
    job: &'a str,
    name: &'a str,
    state: &'a str,
    files: u64,
    bytes: u64,
    ranks: &'a [bdnfs::checkpoint::SavedCheckpoint],
}

/// The weights entry of a checkpoint.
#[derive(Debug, Serialize)]
struct ServingWeights {
    source: String,
    mount_location: String,
}

/// Shows the checkpoint.
pub async fn run(args: CheckpointShowArgs) -> Result<()> {
    let selector = args.target.selector(&args.name)?;
    let group = args.target.open().await?.choose_checkpoint(&selector).await?.group;
    if args.weights {
        let entry = weights_entry(&group);
        return if args.target.json { print_json(&entry) } else { print_line(&toml(&entry)) };
    }
    if args.target.json {
        return print_json(&CheckpointReport {
            project: group.project(),
            job: group.job(),
            name: group.name(),
            state: state(&group),
            files: group.files(),
            bytes: group.bytes(),
            ranks: group.ranks(),
        });
    }
    print_line(&format_group(&group))
}

fn weights_entry(group: &CheckpointGroup) -> ServingWeights {
    let name = group.name().rsplit('/').next().filter(|name| *name != ".").unwrap_or(group.job());
    ServingWeights { source: source(group), mount_location: format!("/models/{name}") }
}

fn toml(entry: &ServingWeights) -> String {
    // TOML's basic strings take JSON's escapes.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    format!(
        "[[weights]]\nsource = {}\nmount_location = {}",
        quoted(&entry.source),
        quoted(&entry.mount_location)
    )
}

fn format_group(group: &CheckpointGroup) -> String {
    let time = |time: chrono::DateTime<chrono::Utc>| format!("{} UTC", text::minute(time.timestamp()));
    let mut rows = vec![
        ("source", source(group)),
        ("state", state(group).to_owned()),
        ("files", group.files().to_string()),
        ("size", text::size(group.bytes())),
        ("written", time(group.written())),
    ];
    rows.extend(group.ranks().iter().map(|saved| {
        let (number, bytes) = (saved.generation, text::size(saved.bytes));
        let saved_at = time(saved.saved);
        let (rank, seconds) = (saved.id.rank(), saved.seconds);
        (
            "rank",
            format!(
                "{rank}: generation {number}, {bytes}, saved {saved_at} in {seconds:.1} s, snapshot {}",
                saved.manifest
            ),
        )
    }));
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    text::table(&rows, &[]).trim_end().to_owned()
}
