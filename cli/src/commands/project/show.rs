//! `bdnfs project show`: where a cache lies, and what of it is saved.

use anyhow::{Result, bail};
use bdnfs::mirror::homes::HomeReport;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::CacheMirrorArgs;
use crate::output::{print, print_json};
use crate::text;

/// The arguments of `bdnfs project show`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs project show llama --mirror s3://mirror")]
pub struct ProjectShowArgs {
    #[command(flatten)]
    target: CacheMirrorArgs,
}

/// A cache, and the nodes that have it.
#[derive(Debug, Serialize)]
struct ShownCache {
    name: String,
    scope: &'static str,
    /// The saved state in the mirror; `null` where nothing is saved, or no mirror was named.
    saved: Option<SavedHome>,
    nodes: Vec<CachingNode>,
}

#[derive(Debug, Serialize)]
struct SavedHome {
    at: DateTime<Utc>,
    manifest: String,
    files: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct CachingNode {
    #[serde(flatten)]
    report: HomeReport,
    /// Whether it is this node.
    this: bool,
    /// Whether what it last saved or pulled is the newest state that is saved.
    newest: bool,
}

/// Shows the cache.
pub async fn run(args: ProjectShowArgs) -> Result<()> {
    let home = args.target.home()?;
    let (mut saved, mut reports) = (None, Vec::new());
    if let Some(mirror) = args.target.open(&home).await? {
        saved = mirror.find(&home.key()).await?;
        reports = mirror.home_reports(&home.key()).await?;
    }
    // Of this node it is known, and need not be told.
    let own = if home.exists() { Some(home.report(home.is_in_use())?) } else { None };
    let this = own.as_ref().map(|own| own.node.clone());
    reports.retain(|report| Some(&report.node) != this.as_ref());
    reports.extend(own);
    if saved.is_none() && reports.is_empty() {
        bail!(
            "{home} is on no node that is known, and not saved; `bdnfs project ls` lists those of this node"
        );
    }
    let newest = saved.as_ref().map(|saved| saved.manifest.to_string());
    let nodes = reports.into_iter().map(|report| CachingNode {
        this: Some(&report.node) == this.as_ref(),
        newest: newest.is_some() && report.manifest == newest,
        report,
    });
    let saved = saved.map(|saved| SavedHome {
        at: saved.listed,
        manifest: saved.manifest.to_string(),
        files: saved.files,
        bytes: saved.bytes,
    });
    let (name, scope) = (home.name().to_owned(), home.scope().as_str());
    let shown = ShownCache { name, scope, saved, nodes: nodes.collect() };
    if args.target.json { print_json(&shown) } else { print(&table(&shown)) }
}

fn table(cache: &ShownCache) -> String {
    let saved = cache.saved.as_ref().map_or_else(
        || "not saved\n".to_owned(),
        |saved| {
            let (files, bytes) = (text::files(saved.files), text::size(saved.bytes));
            format!("saved {}: {files}, {bytes}\n", text::minute(saved.at.timestamp()))
        },
    );
    let minute = |at: Option<DateTime<Utc>>| at.map(|at| text::minute(at.timestamp()));
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let rows = cache.nodes.iter().map(|CachingNode { report, this, newest }| {
        let here = if *this { " (this node)" } else { "" };
        vec![
            text::printable(report.host.as_bytes()) + here,
            minute(report.saved).unwrap_or_else(|| "never".to_owned()),
            yes(*newest),
            minute(report.unsaved_since).unwrap_or_else(|| "-".to_owned()),
            yes(report.in_use),
            text::minute(report.reported.timestamp()),
            report.node.clone(),
        ]
    });
    let head =
        ["NODE", "SAVED", "NEWEST", "UNSAVED SINCE", "IN USE", "REPORTED", "ID"].map(str::to_owned).to_vec();
    saved + &text::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), &[])
}
