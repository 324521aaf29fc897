//! `bdnfs mirror verify`.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, bail};
use bdnfs::mirror::verification::VerifyProgress;
use serde::Serialize;

use super::{At, find::find, say};
use crate::text;

/// What to verify.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this: a source, or the first digits of the id of a snapshot or a ref
    #[arg(value_name = "SNAPSHOT")]
    named: Option<String>,
    #[command(flatten)]
    at: At,
    /// Read every byte
    #[arg(long)]
    deep: bool,
    /// Tell what was found as JSON
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    refs: u64,
    blobs: u64,
    stored: u64,
    deep: bool,
    faults: Vec<String>,
}

/// Verifies it. Every fault is told, and makes it fail.
pub async fn run(args: Args) -> Result<()> {
    let mirror = args.at.open().await?;
    let refs = match &args.named {
        Some(named) => vec![Ok(find(&mirror, named).await?)],
        None => mirror.refs().await?,
    };
    let (seen, mut faults) = (VerifyProgress::default(), Vec::new());
    let told = |fault: bdnfs::error::Error| {
        if !args.json {
            eprintln!("{fault}");
        }
        faults.push(fault.to_string());
    };
    mirror.verify(refs, args.deep, &seen, told).await?;
    let (refs, blobs, stored) =
        (seen.refs.load(Relaxed), seen.blobs.load(Relaxed), seen.stored.load(Relaxed));
    let report = Report { refs, blobs, stored, deep: args.deep, faults };
    let count = report.faults.len() as u64;
    let how = if args.deep { "all there, every byte right" } else { "all there, every size right" };
    say(args.json, &report, || {
        let what = format!(
            "{}, {}, {}",
            text::count(refs, "source"),
            text::count(blobs, "blob"),
            text::size(stored)
        );
        if count == 0 { format!("{what}: {how}") } else { format!("{what}: {}", text::count(count, "fault")) }
    })?;
    if count > 0 {
        bail!(
            "{} in {}; `bdnfs mirror add` with the sources named repairs that",
            text::count(count, "fault"),
            mirror.name()
        );
    }
    Ok(())
}
