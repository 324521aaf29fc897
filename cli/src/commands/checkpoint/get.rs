//! `bdnfs checkpoint get`: downloads a checkpoint into a directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bdnfs::checkpoint::CheckpointId;
use bdnfs::digest::Digest;
use bdnfs::download::{DownloadProgress, PartialDirectory, count_found, download};
use bdnfs::error::Error;
use bdnfs::mirror::Mirror;
use bdnfs::task::blocking;
use bdnfs_agent::signals;
use serde::Serialize;

use super::{CheckpointMirrorArgs, source};
use crate::output::{print_value, stderr_line};
use crate::progress::{show_progress, while_shown};
use crate::text;

/// The arguments of `bdnfs checkpoint get`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointGetArgs {
    /// Name of a checkpoint, or bt://project[@job][/checkpoint], where what is left out means the latest
    #[arg(value_name = "NAME")]
    name: String,
    /// Target directory; must be missing or empty
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
DIR appears when all of it is there and verified; DIR.*.partial until then. The same command resumes an interrupted run.";

/// The part of one rank.
#[derive(Debug)]
struct RankSnapshot {
    id: CheckpointId,
    manifest: Digest,
}

/// The result of a download.
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
    let mut chosen = mirror.choose_checkpoint(&selector).await?;
    let wanted: Vec<_> = if args.all_ranks {
        let manifests = mirror.chosen_manifests(&selector, &chosen.group).await?;
        let ranks = chosen.group.ranks().iter().zip(manifests);
        // The note is on a rank whose ref is of a later generation than its entry, if there is one.
        if let Some((saved, manifest)) = ranks.clone().find(|(saved, manifest)| saved.manifest != *manifest) {
            (chosen.saved, chosen.manifest) = (saved.clone(), manifest);
        }
        ranks.map(|(saved, manifest)| RankSnapshot { id: saved.id.clone(), manifest }).collect()
    } else {
        vec![RankSnapshot { id: chosen.saved.id.clone(), manifest: chosen.manifest }]
    };
    if let Some(note) = chosen.note("downloaded") {
        stderr_line!("note: {note}");
    }
    let group = &chosen.group;
    let directory = std::path::absolute(&args.directory)?;
    let progress = Arc::new(DownloadProgress::default());
    let shown = Arc::clone(&progress);
    let display = show_progress("downloading", move || Some(shown.read()).filter(|now| now.files > 0));
    let work = async {
        tokio::select! {
            biased;
            signal = signals::termination() => signal.map(|()| false).map_err(Into::into),
            downloaded = download_ranks(&mirror, &wanted, args.all_ranks, &directory, &progress) => downloaded.map(|()| true),
        }
    };
    if !while_shown(display, work).await? {
        bail!("interrupted; run the same command to resume");
    }
    let totals = progress.read();
    let report = DownloadedCheckpoint {
        source: source(group),
        directory: &directory,
        ranks: wanted.iter().map(|rank| rank.id.rank()).collect(),
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

/// Downloads what is `wanted` into `directory`: one rank's, or each into a directory of its own there.
async fn download_ranks(
    mirror: &Mirror,
    wanted: &[RankSnapshot],
    each_apart: bool,
    directory: &Path,
    progress: &DownloadProgress,
) -> Result<()> {
    let download = async |rank: &RankSnapshot, place: &Path| {
        let downloaded = download(mirror, &rank.manifest, place, progress).await;
        downloaded.with_context(|| format!("cannot download {}", rank.id))
    };
    if !each_apart {
        for rank in wanted {
            download(rank, directory).await?;
        }
        return Ok(());
    }
    let content: String =
        wanted.iter().map(|rank| format!("{} {}\n", rank.id.rank(), rank.manifest)).collect();
    let (content, place) = (Digest::of(content.as_bytes()), directory.to_owned());
    let partial = blocking(move || {
        if let Some(parent) = place.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|e| Error::disk(format!("cannot create {}", parent.display()), e))?;
        }
        PartialDirectory::create(&place, &content)
    });
    let partial = partial.await?;
    for rank in wanted {
        let place = partial.path().join(format!("rank-{}", rank.id.rank()));
        // A directory has its name when it is whole.
        if place.exists() {
            count_found(mirror, &rank.manifest, progress).await?;
        } else {
            download(rank, &place).await?;
        }
    }
    Ok(blocking(move || partial.finish()).await?)
}
