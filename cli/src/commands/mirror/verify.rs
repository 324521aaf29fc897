//! `bdnfs mirror verify`: verifies mirrored data.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, bail};
use bdnfs::mirror::verification::VerifyProgress;
use serde::Serialize;

use super::{MirrorTargetArgs, find::find_ref};
use crate::output::{print_value, stderr_line};
use crate::text;

/// The arguments of `bdnfs mirror verify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs mirror verify --deep --mirror s3://mirror")]
pub struct MirrorVerifyArgs {
    /// Verify only this: a source, or the first digits of the id of a snapshot or a ref
    #[arg(value_name = "SNAPSHOT")]
    name: Option<String>,
    #[command(flatten)]
    target: MirrorTargetArgs,
    /// Read and verify every byte, not only sizes
    #[arg(long)]
    deep: bool,
}

/// The report.
#[derive(Debug, Serialize)]
struct MirrorVerifyReport {
    refs: u64,
    blobs: u64,
    stored: u64,
    deep: bool,
    faults: Vec<String>,
}

/// Verifies the mirror. Prints every fault, and fails if there is one.
pub async fn run(args: MirrorVerifyArgs) -> Result<()> {
    let mirror = args.target.open().await?;
    let refs = match &args.name {
        Some(name) => vec![Ok(find_ref(&mirror, name).await?)],
        None => mirror.refs().await?,
    };
    let (seen, mut faults) = (VerifyProgress::default(), Vec::new());
    let mut record = |fault: bdnfs::error::Error| {
        if !args.target.json {
            stderr_line!("{fault}");
        }
        faults.push(fault.to_string());
    };
    mirror.verify(refs, args.deep, &seen, &mut record).await?;
    // Earlier states of the same sources follow.
    let refs = seen.refs.load(Relaxed);
    if args.name.is_none() {
        mirror.verify(mirror.last_complete_refs().await?, args.deep, &seen, &mut record).await?;
        mirror.verify_checkpoints(record).await?;
    }
    let (blobs, stored) = (seen.blobs.load(Relaxed), seen.stored.load(Relaxed));
    let report = MirrorVerifyReport { refs, blobs, stored, deep: args.deep, faults };
    let count = report.faults.len() as u64;
    let verified = if args.deep { "complete, every byte verified" } else { "complete, sizes verified" };
    print_value(args.target.json, &report, || {
        let what = format!(
            "{}, {}, {}",
            text::count(refs, "source"),
            text::count(blobs, "blob"),
            text::size(stored)
        );
        if count == 0 {
            format!("{what}: {verified}")
        } else {
            format!("{what}: {}", text::count(count, "fault"))
        }
    })?;
    if count > 0 {
        bail!(
            "{} in {}; `bdnfs mirror add` of the sources repairs them",
            text::count(count, "fault"),
            mirror.name()
        );
    }
    Ok(())
}
