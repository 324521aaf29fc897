//! `bdnfs checkpoint wait`: waits until a checkpoint is saved.

use std::time::Duration;

use anyhow::{Result, anyhow};
use bdnfs::checkpoint::group::CheckpointGroup;
use bdnfs::checkpoint::{CheckpointSelector, SavedCheckpoint};
use bdnfs::error::Kind;
use bdnfs::mirror::Mirror;
use clap::ValueEnum;
use serde::Serialize;

use super::{CheckpointMirrorArgs, source, state};
use crate::exit_status::ExitStatusError;
use crate::output::{print_value, stderr_line};
use crate::text;

/// The interval at which the mirror is asked: savers write an entry every few seconds at most, and a listing costs money.
const MIRROR_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The exit code after a timeout, as of timeout(1).
const TIMED_OUT_CODE: u8 = 124;

/// The arguments of `bdnfs checkpoint wait`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointWaitArgs {
    /// Name of a checkpoint, or bt://project[@job][/checkpoint], where what is left out means the latest
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    target: CheckpointMirrorArgs,
    /// The condition to wait for
    #[arg(long, value_enum, default_value_t = SavedCondition::Complete)]
    until: SavedCondition,
    /// How many ranks must have it. Default: every rank that has saved a checkpoint of the job by then, which one that is late has not
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// Timeout, such as 90s or 12h. Default: none
    #[arg(long, value_name = "DURATION", value_parser = text::parse_duration)]
    timeout: Option<Duration>,
}

/// A condition of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SavedCondition {
    /// Saved: a rank of it is in the mirror, in a state that may not be the last
    Saved,
    /// Complete: every rank that saves checkpoints of its job saved it and finished it, as far as can be told
    Complete,
}

const EXAMPLES: &str = "Examples:
  bdnfs checkpoint wait bt://llama@a1b2c3d4/checkpoint-500 --timeout 1h && python evaluate.py
  bdnfs checkpoint wait checkpoint-500 --project llama --until saved --json
  bdnfs checkpoint wait bt://llama@a1b2c3d4/checkpoint-500 --ranks 2
  bdnfs checkpoint wait bt://llama --mirror s3://mirror
It exits with 0 when the condition holds, 124 when the time is over, and 1 for any other failure.";

/// The checkpoint that was waited for.
#[derive(Debug, Serialize)]
struct AwaitedCheckpoint<'a> {
    source: String,
    state: &'a str,
    files: u64,
    bytes: u64,
    ranks: &'a [SavedCheckpoint],
}

/// Waits for the condition.
pub async fn run(args: CheckpointWaitArgs) -> Result<()> {
    let selector = args.target.selector(&args.name)?;
    let mirror = args.target.open_or_create()?;
    let waiting = wait_for(&mirror, &selector, (args.until, args.ranks));
    let group = match args.timeout {
        None => waiting.await?,
        Some(timeout) => tokio::time::timeout(timeout, waiting).await.map_err(|_| {
            let timeout = humantime::format_duration(timeout);
            ExitStatusError::wrap(
                TIMED_OUT_CODE,
                anyhow!("waiting for {selector}: timed out after {timeout}"),
            )
        })??,
    };
    let report = AwaitedCheckpoint {
        source: source(&group),
        state: state(&group),
        files: group.files(),
        bytes: group.bytes(),
        ranks: group.ranks(),
    };
    print_value(args.target.json, &report, || format_state(&group))
}

/// Asks the mirror until the condition holds. Prints each change of the state on stderr.
async fn wait_for(
    mirror: &Mirror,
    selector: &CheckpointSelector,
    (until, ranks): (SavedCondition, u32),
) -> Result<CheckpointGroup> {
    let (mut last_message, mut is_checked) = (String::new(), false);
    loop {
        let groups = async {
            if !is_checked {
                mirror.check_format().await?;
            }
            mirror.checkpoint_groups(Some(&selector.project), selector.job.as_deref()).await
        };
        let now = match groups.await {
            Ok((groups, damaged)) => {
                is_checked = true;
                let group = newest(selector, &groups);
                if let Some(group) = &group
                    && group.ranks().len() >= ranks as usize
                    && (until == SavedCondition::Saved || is_complete(group))
                {
                    return Ok(group.clone());
                }
                // It may be the one that is waited for, or a rank of that.
                if let Some((_, error)) = damaged.into_iter().find(|(id, _)| selector.selects_id(id)) {
                    return Err(error.context(format!("cannot tell whether {selector} is saved")).into());
                }
                group
                    .map_or_else(|| format!("{selector}: nothing is saved yet"), |group| format_state(&group))
            }
            // A mirror that is away for a while is no reason to give up what may take days.
            Err(e) if matches!(e.kind(), Kind::Unavailable | Kind::Timeout) => e.to_string(),
            Err(e) => return Err(e.into()),
        };
        if now != last_message {
            stderr_line!("waiting: {now}");
            last_message = now;
        }
        tokio::time::sleep(MIRROR_POLL_INTERVAL).await;
    }
}

/// The checkpoint that is meant, or else the newest of those that may come to be.
fn newest(selector: &CheckpointSelector, groups: &[CheckpointGroup]) -> Option<CheckpointGroup> {
    selector.choose(groups).or_else(|| groups.iter().rfind(|group| selector.selects(group)).cloned())
}

fn is_complete(group: &CheckpointGroup) -> bool {
    group.is_whole() && group.is_complete() && !group.is_earlier()
}

fn format_state(group: &CheckpointGroup) -> String {
    let (files, bytes) = (text::files(group.files()), text::size(group.bytes()));
    let ranks = text::count(group.ranks().len() as u64, "rank");
    format!("{}: {}, {ranks}, {files}, {bytes}", source(group), state(group))
}
