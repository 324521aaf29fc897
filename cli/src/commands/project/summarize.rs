//! `bdnfs project summarize`: what a cache holds; as JSON and CSV in the form of `truss train cache summarize`.

use std::time::SystemTime;

use anyhow::{Result, bail};
use bdnfs_agent::volumes::file_list::{self, CacheEntry};
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

use super::{CacheHomeArgs, CacheNameArgs};
use crate::output::{print, print_line};
use crate::text;
use crate::truss_format::{self, ListFormat, SortOrder, human_size};

/// The arguments of `bdnfs project summarize`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ProjectSummarizeArgs {
    #[command(flatten)]
    cache: CacheNameArgs,
    #[command(flatten)]
    target: CacheHomeArgs,
    /// Format of the output; JSON and CSV are those of `truss train cache summarize`
    #[arg(short, long, value_enum, default_value_t = ListFormat::CliTable, conflicts_with = "json")]
    output: ListFormat,
    /// Sort key
    #[arg(long, value_enum, default_value_t = EntrySortKey::Filepath)]
    sort: EntrySortKey,
    /// Sort order
    #[arg(long, value_enum, default_value_t = SortOrder::Asc)]
    order: SortOrder,
    /// Same as -o json
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs project summarize llama
  bdnfs project summarize llama --sort size --order desc
  bdnfs project summarize --team research -o csv";

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum EntrySortKey {
    Filepath,
    Size,
    Modified,
    Type,
    Permissions,
}

/// The summary in truss's form.
#[derive(Debug, Serialize)]
struct TrussSummary {
    timestamp: String,
    project_id: String,
    total_files: usize,
    total_size_bytes: u64,
    total_size_human_readable: String,
    files: Vec<TrussFile>,
}

/// An entry in truss's form, its keys in truss's order.
#[derive(Debug, Serialize)]
struct TrussFile {
    path: String,
    size_bytes: u64,
    size_human_readable: String,
    modified: String,
    #[serde(rename = "type")]
    kind: &'static str,
    permissions: String,
}

/// The first line of truss's CSV.
const CSV_HEADER: &str = "File Path,Size (bytes),Size (human readable),Modified,Type,Permissions";

/// Shows what the cache holds.
pub fn run(args: &ProjectSummarizeArgs) -> Result<()> {
    let home = args.target.home(&args.cache)?;
    if !home.exists() {
        bail!("{home} is not on this node; `bdnfs project ls` lists those that are");
    }
    let mut entries = file_list::list(&home.tree());
    sort(&mut entries, args.sort, args.order);
    let total = entries.iter().filter(|entry| entry.kind != "directory").map(|entry| entry.size).sum();
    let now = DateTime::<Utc>::from(SystemTime::now());
    let summary = TrussSummary {
        timestamp: now.to_rfc3339_opts(SecondsFormat::Secs, true),
        project_id: args.cache.name.clone(),
        total_files: entries.len(),
        total_size_bytes: total,
        total_size_human_readable: human_size(total),
        files: entries.iter().map(truss_form).collect(),
    };
    match if args.json { ListFormat::Json } else { args.output } {
        ListFormat::Json => print_line(&serde_json::to_string_pretty(&summary)?),
        ListFormat::Csv => print(&truss_format::csv(CSV_HEADER, summary.files.iter().map(cells))),
        ListFormat::CliTable => {
            let entries = text::count(summary.total_files as u64, "entry");
            print_line(&format!("{home}: {entries}, {}", summary.total_size_human_readable))?;
            print(&table(&summary))
        }
    }
}

fn sort(entries: &mut [CacheEntry], key: EntrySortKey, order: SortOrder) {
    // What is alike otherwise stands in the order of the paths.
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    entries.sort_by(|a, b| {
        let ordering = match key {
            EntrySortKey::Filepath => a.path.as_os_str().cmp(b.path.as_os_str()),
            EntrySortKey::Size => a.size.cmp(&b.size),
            EntrySortKey::Modified => a.modified.cmp(&b.modified),
            EntrySortKey::Type => a.kind.cmp(b.kind),
            EntrySortKey::Permissions => a.permissions.cmp(&b.permissions),
        };
        if order == SortOrder::Desc { ordering.reverse() } else { ordering }
    });
}

fn truss_form(entry: &CacheEntry) -> TrussFile {
    let modified = DateTime::from_timestamp(entry.modified, 0).unwrap_or_default();
    TrussFile {
        path: text::json_name(entry.path.as_os_str().as_encoded_bytes()),
        size_bytes: entry.size,
        size_human_readable: human_size(entry.size),
        modified: modified.format("%Y-%m-%d %H:%M:%S").to_string(),
        kind: entry.kind,
        permissions: entry.permissions.clone(),
    }
}

fn cells(file: &TrussFile) -> Vec<String> {
    vec![
        file.path.clone(),
        file.size_bytes.to_string(),
        file.size_human_readable.clone(),
        file.modified.clone(),
        file.kind.to_owned(),
        file.permissions.clone(),
    ]
}

fn table(summary: &TrussSummary) -> String {
    let head = ["FILE PATH", "SIZE", "MODIFIED", "TYPE", "PERMISSIONS"].map(str::to_owned).to_vec();
    let rows = summary.files.iter().map(|file| {
        let path = text::printable(file.path.as_bytes());
        vec![
            path,
            file.size_human_readable.clone(),
            file.modified.clone(),
            file.kind.to_owned(),
            file.permissions.clone(),
        ]
    });
    text::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), &[1])
}
