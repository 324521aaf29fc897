//! `bdnfs checkpoint show`: a checkpoint, or the weights entry that serves it.

use anyhow::Result;
use bdnfs::checkpoint::SavedCheckpoint;
use bdnfs::checkpoint::group::CheckpointGroup;
use chrono::{DateTime, Utc};
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
    /// Whether it is as it was when it was last complete, and what was saved since is not.
    earlier: bool,
    files: u64,
    bytes: u64,
    ranks: &'a [SavedCheckpoint],
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
            earlier: group.is_earlier(),
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

fn time(time: DateTime<Utc>) -> String {
    format!("{} UTC", text::minute(time.timestamp()))
}

fn format_generation(saved: &SavedCheckpoint) -> String {
    let SavedCheckpoint { generation, manifest, seconds, .. } = saved;
    let (bytes, saved_at) = (text::size(saved.bytes), time(saved.saved));
    format!("generation {generation}, {bytes}, saved {saved_at} in {seconds:.1} s, snapshot {manifest}")
}

/// The state of a checkpoint, and what else there is of it.
fn shown_state(group: &CheckpointGroup) -> String {
    let state = state(group);
    if group.is_earlier() {
        let name = &group.ranks()[0].id;
        format!("{state} (an earlier generation; the newest, {name}, is not complete)")
    } else if let (false, Some(_)) = (group.is_complete(), group.last_complete()) {
        format!("{state}; resuming takes the last complete generation")
    } else {
        state.to_owned()
    }
}

fn format_group(group: &CheckpointGroup) -> String {
    let mut rows = vec![
        ("source", source(group)),
        ("state", shown_state(group)),
        ("files", group.files().to_string()),
        ("size", text::size(group.bytes())),
        ("written", time(group.written())),
    ];
    for saved in group.ranks() {
        let rank = saved.id.rank();
        rows.push(("rank", format!("{rank}: {}", format_generation(saved))));
        if let Some(last) = saved.as_last_complete().filter(|_| !saved.complete) {
            rows.push(("", format!("{rank}: last complete: {}", format_generation(&last))));
        }
    }
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    text::table(&rows, &[]).trim_end().to_owned()
}
