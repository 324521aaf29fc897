//! `bdnfs project ls`.

use anyhow::Result;
use bdnfs_agent::volumes::{cache_home::CacheHome, occupied};
use serde::Serialize;

use super::CacheHomeArgs;
use crate::output::{print, print_json};
use crate::text;

/// The arguments of `bdnfs project ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs project ls --tenant research")]
pub struct ProjectListArgs {
    #[command(flatten)]
    target: CacheHomeArgs,
    /// Print the caches as JSON
    #[arg(long)]
    json: bool,
}

/// The nanoseconds of a second.
const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// A cache on this node.
#[derive(Debug, Serialize)]
struct ListedCache {
    name: String,
    /// `project` or `team`.
    scope: &'static str,
    /// The size of the cache on the disk.
    bytes: u64,
    in_use: bool,
    /// When it was last the same as what is saved, in seconds since 1970.
    saved: Option<i64>,
}

/// Lists the caches.
pub fn run(args: &ProjectListArgs) -> Result<()> {
    let listed = |home: &CacheHome| ListedCache {
        name: home.name().to_owned(),
        scope: home.scope().as_str(),
        bytes: occupied(&home.tree()),
        in_use: home.is_in_use(),
        saved: home
            .sync_state()
            .ok()
            .filter(|state| state.manifest.is_some())
            .map(|state| state.since / NANOSECONDS_PER_SECOND),
    };
    let caches: Vec<_> = args.target.all()?.iter().map(listed).collect();
    if args.json {
        return print_json(&caches);
    }
    let head = ["CACHE", "OF", "SIZE", "IN USE", "SAVED"].map(str::to_owned).to_vec();
    let rows = caches.iter().map(|cache| {
        let in_use = if cache.in_use { "yes" } else { "no" };
        vec![
            text::printable(cache.name.as_bytes()),
            cache.scope.to_owned(),
            text::size(cache.bytes),
            in_use.to_owned(),
            cache.saved.map_or_else(|| "never".to_owned(), text::minute),
        ]
    });
    print(&text::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), &[2]))
}
