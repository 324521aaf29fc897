//! `bdnfs mirror add`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::Ref;
use bdnfs::origin;
use bdnfs::publish::{
    PublishConfig, PublishPhase, PublishProgress, PublishSource, Published, Repairs, publish,
};
use bdnfs::source::{Access, Patterns, Uri};
use bdnfs::stage;
use bdnfs_agent::signals;
use bytesize::ByteSize;
use serde::Serialize;

use super::say;
use crate::progress::Display;
use crate::source::{self, Parser, Source};
use crate::{mirror, text, weights};

/// How often the display is drawn.
const TICK: Duration = Duration::from_millis(200);
/// As much of a snapshot's id as tells snapshots apart.
const ID_SHOWN: usize = 12;

/// What to copy where.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// s3://bucket/prefix, https://host/file, or a local /path or ./path
    #[arg(value_name = "SOURCE", value_parser = Parser, required_unless_present = "config")]
    sources: Vec<Source>,
    /// The sources that a configuration names: config.yaml of Truss, training job as JSON, or TOML with [[weights]]
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["sources", "allow", "ignore", "secret", "credentials", "auth"])]
    config: Option<PathBuf>,
    #[command(flatten)]
    how: source::How,
    #[command(flatten)]
    place: mirror::Args,
    /// The most memory that content on its way may take
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    memory: ByteSize,
    /// Tell what came of each source as one JSON object on a line of its own
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs mirror add s3://models/llama-3-8b --mirror s3://mirror
  bdnfs mirror add --config config.yaml --mirror s3://mirror
  bdnfs mirror add --allow '*.safetensors' --allow '*.json' /data/model --mirror file:///srv/mirror
A run that was interrupted is resumed by the same command.";

/// One source, and how it is read.
struct Item {
    uri: Uri,
    patterns: Patterns,
    access: Access,
}

/// What came of a source.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    #[serde(flatten)]
    found: &'a Ref,
    /// Whether that is a new state of it.
    new: bool,
    /// How much of what was mirrored before was damaged, and is right again.
    repaired: u64,
    /// Bytes read from its origin.
    read: u64,
    /// Bytes written to the mirror.
    written: u64,
}

/// Copies each source.
pub async fn run(args: Args) -> Result<()> {
    let at = args.place.request_or_default(&args.how.access, args.sources.first().map(Source::uri))?;
    let mirror = bdnfs_agent::mirror::open(&at, std::env::temp_dir())?;
    let items = items(&args)?;
    let mut failed = 0;
    for item in &items {
        let added = tokio::select! {
            biased;
            asked = signals::termination() => {
                asked?;
                bail!("interrupted; the same command goes on from here");
            }
            added = add(&args, &mirror, item) => added,
        };
        match added {
            Ok(()) => {}
            Err(error) if items.len() == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                eprintln!("bdnfs: {}", text::line(&error));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} sources could not be mirrored", items.len());
    }
    Ok(())
}

/// What was named, on the command line or in a configuration.
fn items(args: &Args) -> Result<Vec<Item>> {
    let Some(file) = &args.config else {
        let named = args.sources.iter().map(|source| {
            let uri = source.uri().clone();
            Ok(Item { patterns: args.how.patterns()?, access: args.how.access(&uri)?, uri })
        });
        return named.collect();
    };
    let named = weights::read(file, &args.how)?.into_iter().map(|item| {
        let patterns = Patterns::filter(item.allow.as_deref(), &item.ignore)?;
        Ok(Item { uri: item.source.uri().clone(), patterns, access: item.access })
    });
    named.collect()
}

async fn add(args: &Args, mirror: &Mirror, item: &Item) -> Result<()> {
    let Item { uri, patterns, access } = item;
    let fault = || format!("cannot mirror {uri}");
    let origin = origin::open(uri, access).await.with_context(fault)?;
    let (name, identity) = (uri.to_string(), uri.identity(access));
    let source = PublishSource { name, identity, patterns: patterns.clone(), origin };
    let config = PublishConfig { memory: args.memory.as_u64() };
    let progress = Arc::new(PublishProgress::default());
    let shown = tokio::spawn(show(progress.clone()));
    let published = publish(mirror, &source, config, &progress).await;
    shown.abort();
    // Its end clears the display.
    let _ = shown.await;
    let published = published.with_context(fault)?;
    for pattern in &published.unmatched {
        eprintln!("note: {}", text::unmatched(pattern, &uri.to_string()));
    }
    let Repairs { count: repaired, first } = &published.repaired;
    for fault in first {
        eprintln!("note: found and repaired: {}", text::name(fault.as_bytes()));
    }
    if *repaired > first.len() as u64 {
        eprintln!("note: found and repaired: {} more", repaired - first.len() as u64);
    }
    let (read, written) = (progress.read.load(Relaxed), progress.written.load(Relaxed));
    let outcome = Outcome { found: &published.found, new: published.new, repaired: *repaired, read, written };
    say(args.json, &outcome, || line(&published, read, written))
}

/// Shows how far it is, until it is aborted.
async fn show(progress: Arc<PublishProgress>) {
    let mut display = None;
    loop {
        tokio::time::sleep(TICK).await;
        if progress.state() != PublishPhase::Listing {
            let staged = stage::Progress {
                files: progress.files.load(Relaxed),
                files_done: progress.files_done.load(Relaxed),
                bytes: progress.bytes.load(Relaxed),
                bytes_done: progress.bytes_done.load(Relaxed),
                bytes_found: 0,
            };
            display.get_or_insert_with(|| Display::new("mirroring", &staged)).show(&staged);
        }
    }
}

fn line(published: &Published, read: u64, written: u64) -> String {
    let Published { found, new, repaired, .. } = published;
    let id: String = found.manifest.to_string().chars().take(ID_SHOWN).collect();
    let what = format!(
        "{}: {}, {} (snapshot {id})",
        found.source,
        text::files(found.files),
        text::size(found.bytes)
    );
    let moved = format!("read {}, wrote {}", text::size(read), text::size(written));
    match (*new, repaired.count) {
        (true, _) => format!("mirrored {what}; {moved} in {:.1} s", found.took),
        (false, 0) => format!("unchanged {what}"),
        (false, _) => format!("repaired {what}; {moved}"),
    }
}
