//! `bdnfs mirror add`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::Ref;
use bdnfs::mirroring::{MirrorConfig, MirrorProgress, Repairs, mirror_uri};
use bdnfs::source::{Access, Patterns, Uri};
use bdnfs_agent::mirror::check_not_inside;
use bdnfs_agent::signals;
use bytesize::ByteSize;
use serde::Serialize;

use crate::access::option_name;
use crate::mirror::MirrorArgs;
use crate::output::{print_value, stderr_line};
use crate::progress::{show_mirror_progress, while_shown};
use crate::source::SourceOptions;
use crate::source::{Parser, Source};
use crate::{text, weights};

/// The arguments of `bdnfs mirror add`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct MirrorAddArgs {
    /// Sources: hf://owner/name@revision, s3://bucket/prefix, https://host/file, a local /path or ./path
    #[arg(value_name = "SOURCE", value_parser = Parser, required_unless_present = "config")]
    sources: Vec<Source>,
    /// Mirror all weights of a configuration: config.yaml of Truss, training job as JSON, or TOML with [[weights]]
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["sources", "allow", "ignore", "secret", "credentials", "auth"])]
    config: Option<PathBuf>,
    /// Ignore unknown keys of the configuration with a warning, instead of rejecting it
    #[arg(long, requires = "config", conflicts_with = "sources")]
    lenient: bool,
    #[command(flatten)]
    options: SourceOptions,
    #[command(flatten)]
    mirror: MirrorArgs,
    /// Create the mirror for one writer at a time, on a service that can't keep two apart (without If-None-Match)
    #[arg(long)]
    exclusive: bool,
    /// Memory limit for data in transfer
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = text::parse_size)]
    memory: ByteSize,
    /// Print the result for each source as a JSON object on a line of its own
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs mirror add s3://models/llama-3-8b --mirror s3://mirror
  bdnfs mirror add --config config.yaml --mirror s3://mirror
  bdnfs mirror add --allow '*.safetensors' --allow '*.json' /data/model --mirror file:///srv/mirror
The same command resumes an interrupted run.";

/// A source to mirror.
struct MirrorEntry {
    uri: Uri,
    patterns: Patterns,
    access: Access,
}

/// The result for a source.
#[derive(Debug, Serialize)]
struct MirrorResult<'a> {
    #[serde(flatten)]
    found: &'a Ref,
    /// Whether the snapshot is new.
    new: bool,
    /// The number of damaged objects that were repaired.
    repaired: u64,
    /// Bytes read from its origin.
    read: u64,
    /// Bytes written to the mirror.
    written: u64,
}

/// Copies each source.
pub async fn run(args: MirrorAddArgs) -> Result<()> {
    let entries = entries(&args)?;
    let sources: Vec<_> = entries.iter().map(|entry| &entry.uri).collect();
    let request = args.mirror.request_or_default(&args.options.access, &sources)?;
    args.options.access.check(&sources, args.mirror.uri(), option_name)?;
    // To open it would create its directory.
    let at = request.url.expose().parse()?;
    for MirrorEntry { uri, patterns, .. } in &entries {
        check_not_inside(&at, uri, patterns)?;
    }
    let mirror = bdnfs_agent::mirror::open(&request, std::env::temp_dir())?;
    if args.exclusive && mirror.init_exclusive().await? {
        stderr_line!(
            "note: {} has one writer at a time: while one is at work, others are refused",
            mirror.name()
        );
    }
    let mut failed = 0;
    for entry in &entries {
        let added = tokio::select! {
            biased;
            signal = signals::termination() => {
                signal?;
                bail!("interrupted; run the same command to resume");
            }
            added = add(&args, &mirror, entry) => added,
        };
        match added {
            Ok(()) => {}
            Err(error) if entries.len() == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                stderr_line!("bdnfs: {}", text::line(&error));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} sources were not mirrored", entries.len());
    }
    Ok(())
}

/// The sources of the arguments or a configuration.
fn entries(args: &MirrorAddArgs) -> Result<Vec<MirrorEntry>> {
    let Some(file) = &args.config else {
        let named = args.sources.iter().map(|source| {
            let uri = source.uri().clone();
            Ok(MirrorEntry { patterns: args.options.patterns()?, access: args.options.access(&uri)?, uri })
        });
        return named.collect();
    };
    let named = weights::read(file, &args.options, args.lenient)?.into_iter().map(|item| {
        let patterns = Patterns::filter(item.allow.as_deref(), &item.ignore)?;
        Ok(MirrorEntry { uri: item.source.uri().clone(), patterns, access: item.access })
    });
    named.collect()
}

async fn add(args: &MirrorAddArgs, mirror: &Mirror, entry: &MirrorEntry) -> Result<()> {
    let MirrorEntry { uri, patterns, access } = entry;
    let context = || format!("cannot mirror {uri}");
    let config = MirrorConfig { memory: args.memory.as_u64() };
    let progress = Arc::new(MirrorProgress::default());
    let display = show_mirror_progress("mirroring", progress.clone());
    let work = mirror_uri(mirror, uri, access, patterns.clone(), config, &progress);
    let published = while_shown(display, work).await.with_context(context)?;
    for note in text::notes(&published.notes, &uri.to_string()) {
        stderr_line!("note: {note}");
    }
    let Repairs { count: repaired, first } = &published.repaired;
    for fault in first {
        stderr_line!("note: found and repaired: {}", text::printable(fault.as_bytes()));
    }
    if *repaired > first.len() as u64 {
        stderr_line!("note: found and repaired: {} more", repaired - first.len() as u64);
    }
    let (read, written) = (published.read, published.written);
    let result =
        MirrorResult { found: &published.latest_ref, new: published.new, repaired: *repaired, read, written };
    print_value(args.json, &result, || bdnfs_agent::text::mirror_outcome(&published))
}
