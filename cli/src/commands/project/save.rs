//! `bdnfs project save`: saves a cache of this node in a mirror.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use bdnfs::mirroring::{MirrorConfig, MirrorProgress};
use bdnfs_agent::signals;
use bdnfs_agent::volumes::cache_home::CacheHome;
use bdnfs_agent::volumes::cache_sync::{CacheSync, SavedCache};
use bytesize::ByteSize;
use serde::Serialize;

use super::CacheMirrorArgs;
use crate::output::print_value;
use crate::progress::{show_mirror_progress, while_shown};
use crate::text;

/// The arguments of `bdnfs project save`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ProjectSaveArgs {
    #[command(flatten)]
    target: CacheMirrorArgs,
    /// Memory limit for data in transfer
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = text::parse_size)]
    memory: ByteSize,
}

const EXAMPLES: &str = "Examples:
  bdnfs project save llama --mirror s3://mirror
  bdnfs project save --team research --mirror s3://mirror
What other nodes saved is pulled into the cache first. The same command resumes an interrupted run.";

/// The result of saving.
#[derive(Debug, Serialize)]
struct SaveResult {
    name: String,
    scope: &'static str,
    /// Whether anything was new.
    changed: bool,
    /// Entries that were pulled from what other nodes saved, and that were removed for it.
    #[serde(rename = "brought")]
    pulled: usize,
    removed: usize,
    /// Paths that were changed here and elsewhere: the later change was kept.
    conflicts: Vec<String>,
    /// Files that are being written: saved as they were before, or not at all.
    busy: Vec<String>,
    /// Files that the disk failed to write: likewise.
    unwritten: Vec<String>,
    /// Entries that are no files, directories or links.
    skipped: usize,
    /// Files and directories that can't be read: what was saved of them before stays saved.
    unreadable: Vec<String>,
    files: u64,
    bytes: u64,
    /// Bytes that the mirror did not have.
    written: u64,
    seconds: f64,
}

/// Saves the cache.
pub async fn run(args: ProjectSaveArgs) -> Result<()> {
    let (home, began) = (args.target.home()?, Instant::now());
    if !home.exists() {
        bail!("{home} is not on this node; `bdnfs project ls` lists those that are");
    }
    let Some(mirror) = args.target.open(&home).await? else {
        bail!("name the mirror that {home} is saved in with --mirror");
    };
    let busy = || anyhow!("{home} is being saved, or updated for a job; try again later");
    let _use_lock = home.try_use_lock()?.ok_or_else(busy)?;
    let in_use = home.is_in_use();
    // A shared one is in use by some node most of the time.
    if in_use && !home.is_shared() {
        bail!("{home} is in use by a job or a container on this node, and is saved when that ends");
    }
    let lock = home.try_sync_lock()?.ok_or_else(busy)?;
    mirror.init().await?;
    let sync = CacheSync::new(home.clone(), mirror, Arc::new(lock));
    let saved = tokio::select! {
        biased;
        signal = signals::termination() => {
            signal?;
            bail!("interrupted; run the same command to resume");
        }
        saved = save(&sync, in_use, args.memory) => saved.with_context(|| format!("cannot save {home}"))?,
    };
    let Some(saved) = saved else {
        bail!("{home} was saved by another node meanwhile; save it again when no job uses it");
    };
    if !in_use {
        home.end_use()?;
    }
    if let Some(error) = &saved.unreported {
        bail!(
            "{home} is saved, but other nodes were not told, whose jobs may wait for it: {error}; try again"
        );
    }
    let result = SaveResult { seconds: began.elapsed().as_secs_f64(), ..result(&home, &saved) };
    print_value(args.target.json, &result, || summary(&home, &result))
}

/// Saves the cache; one that is in use without what is being written. `None` where another node saved it, and it is in use.
async fn save(sync: &CacheSync, in_use: bool, memory: ByteSize) -> bdnfs::error::Result<Option<SavedCache>> {
    let config = MirrorConfig { memory: memory.as_u64() };
    let progress = Arc::new(MirrorProgress::default());
    let save = async {
        match in_use {
            true => sync.save_in_use(None, config, &progress).await,
            false => sync.save(config, &progress).await.map(Some),
        }
    };
    while_shown(show_mirror_progress("saving", progress.clone()), save).await
}

fn result(home: &CacheHome, saved: &SavedCache) -> SaveResult {
    let published = saved.published.as_ref();
    let found = published.map(|published| &published.latest_ref).or(saved.pulled.latest.as_ref());
    let names = |paths: &[Vec<u8>]| paths.iter().map(|path| text::json_name(path)).collect();
    SaveResult {
        name: home.name().to_owned(),
        scope: home.scope().as_str(),
        changed: published.is_some(),
        pulled: saved.pulled.taken,
        removed: saved.pulled.removed,
        conflicts: names(&saved.pulled.conflicts),
        busy: names(&saved.left_out.busy),
        unwritten: names(&saved.left_out.unwritten),
        skipped: saved.skipped,
        unreadable: saved.unreadable.iter().map(|(path, _)| text::json_name(path)).collect(),
        files: found.map_or(0, |found| found.files),
        bytes: found.map_or(0, |found| found.bytes),
        written: published.map_or(0, |published| published.written),
        seconds: 0.0,
    }
}

fn summary(home: &CacheHome, result: &SaveResult) -> String {
    let (files, bytes, seconds) = (text::files(result.files), text::size(result.bytes), result.seconds);
    let mut lines = match result.changed {
        true => {
            let written = text::size(result.written);
            format!("saved {home}: {files}, {bytes}, of which {written} were new, in {seconds:.1} s")
        }
        false => format!("{home} is saved as it is: {files}, {bytes}"),
    };
    if result.pulled + result.removed > 0 {
        let (pulled, removed) = (text::count(result.pulled as u64, "entry"), result.removed);
        lines += &format!("\nfrom other nodes: {pulled} new or changed, {removed} removed");
    }
    for (names, what) in [
        (&result.conflicts, "changed here and on another node, the later change is kept"),
        (&result.busy, "not saved as it is, for it is being written"),
        (&result.unwritten, "not saved as it is, for the disk failed to write it: write it again"),
        (
            &result.unreadable,
            "not saved as it is, for it can't be read, such as a hard link to a file of another user",
        ),
    ] {
        for name in names {
            lines += &format!("\n{}: {what}", text::printable(name.as_bytes()));
        }
    }
    if result.skipped > 0 {
        let skipped = text::count(result.skipped as u64, "entry");
        lines += &format!("\nleft out: {skipped} other than files, directories and links");
    }
    lines
}
