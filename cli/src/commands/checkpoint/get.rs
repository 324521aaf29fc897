//! `bdnfs checkpoint get`: downloads a checkpoint into a directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bdnfs::checkpoint::SavedCheckpoint;
use bdnfs::download::{DownloadProgress, download};
use bdnfs::mirror::Mirror;
use bdnfs_agent::signals;
use serde::Serialize;

use super::{CheckpointMirrorArgs, source};
use crate::output::print_value;
use crate::progress::show_progress;
use crate::text;

/// The arguments of `bdnfs checkpoint get`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointGetArgs {
    /// Name of a checkpoint, or bt://project[@job][/checkpoint], where what is left out means the latest
    #[arg(value_name = "NAME")]
    name: String,
    /// The directory that becomes the checkpoint: one that is missing or empty
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    target: CheckpointMirrorArgs,
    /// Download what every rank saved, each into DIR/rank-N. Default: what rank 0 saved, into DIR
    #[arg(long)]
    all_ranks: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs checkpoint get bt://llama ./latest --mirror s3://mirror
  bdnfs checkpoint get checkpoint-500 ./checkpoint-500 --project llama --job a1b2c3d4
  bdnfs checkpoint get bt://llama@a1b2c3d4/step-9 ./step-9 --all-ranks --json
DIR appears when all of it is there and verified; DIR.partial until then. The same command resumes an interrupted run.";

/// What was downloaded.
#[derive(Debug, Serialize)]
struct DownloadedCheckpoint<'a> {
    source: String,
    directory: &'a Path,
    ranks: Vec<u32>,
    files: u64,
    bytes: u64,
    /// Bytes that an earlier run had left.
    found: u64,
    seconds: f64,
}

/// Downloads the checkpoint.
pub async fn run(args: CheckpointGetArgs) -> Result<()> {
    let began = Instant::now();
    let selector = args.target.selector(&args.name)?;
    let mirror = args.target.open().await?;
    let chosen = mirror.choose_checkpoint(&selector).await?;
    let group = &chosen.group;
    if !group.is_whole() || !group.is_complete() {
        eprintln!("note: {} is downloaded as it is saved so far: it may not be complete", source(group));
    }
    let directory = std::path::absolute(&args.directory)?;
    let wanted: Vec<(SavedCheckpoint, PathBuf)> = match args.all_ranks {
        true => {
            std::fs::create_dir_all(&directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
            let place = |saved: &SavedCheckpoint| directory.join(format!("rank-{}", saved.id.rank()));
            group.ranks().iter().map(|saved| (saved.clone(), place(saved))).collect()
        }
        false => vec![(chosen.saved.clone(), directory.clone())],
    };
    let progress = Arc::new(DownloadProgress::default());
    let shown = Arc::clone(&progress);
    let display =
        tokio::spawn(show_progress("downloading", move || Some(shown.read()).filter(|now| now.files > 0)));
    let downloaded = tokio::select! {
        biased;
        signal = signals::termination() => signal.map(|()| false).map_err(Into::into),
        downloaded = download_all(&mirror, &wanted, &progress) => downloaded.map(|()| true),
    };
    display.abort();
    // Its end clears the bar.
    let _ = display.await;
    if !downloaded? {
        bail!("interrupted; run the same command to resume");
    }
    let totals = progress.read();
    let report = DownloadedCheckpoint {
        source: source(group),
        directory: &directory,
        ranks: wanted.iter().map(|(saved, _)| saved.id.rank()).collect(),
        files: totals.files,
        bytes: totals.bytes,
        found: totals.bytes_found,
        seconds: began.elapsed().as_secs_f64(),
    };
    print_value(args.target.json, &report, || {
        let (files, bytes, seconds) = (text::files(report.files), text::size(report.bytes), report.seconds);
        let (source, directory) = (&report.source, text::printable(directory.as_os_str().as_encoded_bytes()));
        format!("downloaded {source} to {directory}: {files}, {bytes} in {seconds:.1} s, all verified")
    })
}

/// Downloads what each rank saved into its directory.
async fn download_all(
    mirror: &Mirror,
    wanted: &[(SavedCheckpoint, PathBuf)],
    progress: &DownloadProgress,
) -> Result<()> {
    for (saved, directory) in wanted {
        let downloaded = download(mirror, &saved.manifest, directory, progress).await;
        downloaded.with_context(|| format!("cannot download {}", saved.id))?;
    }
    Ok(())
}
