//! `bdnfs checkpoint push`: saves a directory as a checkpoint, without a job.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bdnfs::checkpoint::{CheckpointId, SavedCheckpoint};
use bdnfs::manifest::{Manifest, Node};
use bdnfs::mirror::Mirror;
use bdnfs::mirroring::{MirrorConfig, MirrorProgress, MirrorSource, mirror_source};
use bdnfs::origin;
use bdnfs::source::{Access, Uri};
use bdnfs_agent::api::job::TrainingIdentity;
use bdnfs_agent::signals;
use bytesize::ByteSize;
use chrono::{DateTime, Utc};

use super::CheckpointMirrorArgs;
use crate::output::{print_value, stderr_line};
use crate::progress::{show_mirror_progress, while_shown};
use crate::text;

/// The arguments of `bdnfs checkpoint push`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointPushArgs {
    /// Directory to save
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Name of the checkpoint. Default: that of the directory
    #[arg(long)]
    name: Option<String>,
    /// Rank that it is saved as
    #[arg(long, default_value_t = 0)]
    rank: u32,
    #[command(flatten)]
    target: CheckpointMirrorArgs,
    /// Memory limit for data in transfer
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = text::parse_size)]
    memory: ByteSize,
}

const EXAMPLES: &str = "Examples:
  bdnfs checkpoint push ./out/checkpoint-500 --project llama --mirror s3://mirror
  bdnfs checkpoint push ./step-9 --project llama --job a1b2c3d4 --name step-9
Without --job it gets a new job ID, which is printed. The same command resumes an interrupted run.";

/// Saves the directory.
pub async fn run(args: CheckpointPushArgs) -> Result<()> {
    let directory = std::path::absolute(&args.directory)?;
    if !directory.is_dir() {
        bail!("{} is not a directory", directory.display());
    }
    let own = || directory.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = args.name.clone().or_else(own).context("name the checkpoint with --name")?;
    let job = args.target.job.clone().map_or_else(TrainingIdentity::random_id, Ok)?;
    let id = CheckpointId::new(args.target.project(), &job, &name, args.rank)?;
    let mirror = args.target.open_or_create()?;
    let saved = tokio::select! {
        biased;
        signal = signals::termination() => {
            signal?;
            bail!("interrupted; run the same command with --job {job} to resume");
        }
        saved = save(&args, &mirror, id, directory) => saved?,
    };
    print_value(args.target.json, &saved, || {
        let (files, bytes) = (text::files(saved.files), text::size(saved.bytes));
        format!("saved {}: {files}, {bytes} in {:.1} s", saved.id, saved.seconds)
    })
}

async fn save(
    args: &CheckpointPushArgs,
    mirror: &Mirror,
    id: CheckpointId,
    directory: PathBuf,
) -> Result<SavedCheckpoint> {
    let began = Instant::now();
    mirror.init().await?;
    let uri = Uri::File(directory);
    let source = MirrorSource::checkpoint(&id, origin::open(&uri, &Access::default()).await?);
    let config = MirrorConfig { memory: args.memory.as_u64() };
    let progress = Arc::new(MirrorProgress::default());
    let display = show_mirror_progress("saving", progress.clone());
    let published = while_shown(display, mirror_source(mirror, &source, config, &progress)).await;
    let published = published.with_context(|| format!("cannot save {uri}"))?;
    for note in text::notes(&published.notes, &uri.to_string()) {
        stderr_line!("note: {note}");
    }
    let manifest = mirror.manifest(&published.latest_ref.manifest).await?;
    let saved = SavedCheckpoint {
        id,
        manifest: published.latest_ref.manifest,
        generation: 1,
        complete: true,
        files: published.latest_ref.files,
        bytes: published.latest_ref.bytes,
        written: manifest.map_or(Ok(published.latest_ref.listed), |manifest| newest(&manifest))?,
        saved: published.latest_ref.listed,
        seconds: began.elapsed().as_secs_f64(),
        previous_complete: None,
    };
    Ok(mirror.enter_checkpoint(saved).await?)
}

/// The time of the last change to a file.
fn newest(manifest: &Manifest) -> bdnfs::error::Result<DateTime<Utc>> {
    let mut newest = DateTime::UNIX_EPOCH;
    for index in 0..manifest.entries() {
        let entry = manifest.entry(index)?;
        if let (Node::File(_), (seconds, nanoseconds)) = (entry.node, entry.mtime) {
            newest = newest.max(DateTime::from_timestamp(seconds, nanoseconds).unwrap_or_default());
        }
    }
    Ok(newest)
}
