//! `bdnfs mirror show`.

use anyhow::Result;
use bdnfs::mirror::catalog::Ref;

use super::{At, find::find, say};
use crate::text;

/// What to show.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A source, or the first digits of the id of a snapshot or a ref
    #[arg(value_name = "SNAPSHOT")]
    named: String,
    #[command(flatten)]
    at: At,
    /// Tell it as JSON
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub async fn run(args: Args) -> Result<()> {
    let found = find(&args.at.open().await?, &args.named).await?;
    say(args.json, &found, || shown(&found))
}

fn shown(found: &Ref) -> String {
    let patterns = |patterns: &[String]| match patterns {
        [] => "-".to_owned(),
        some => some.join(" "),
    };
    let stored = text::percent(found.stored, found.bytes);
    let rows = [
        ("source", found.source.clone()),
        ("resolved", found.resolved.clone()),
        ("listing", found.listing.to_string()),
        ("allow", patterns(found.allow.as_deref().unwrap_or_default())),
        ("ignore", patterns(&found.ignore)),
        ("snapshot", found.manifest.to_string()),
        ("ref", found.key().to_string()),
        ("files", found.files.to_string()),
        ("size", text::size(found.bytes)),
        (
            "stored",
            format!("{} ({stored}) in {}", text::size(found.stored), text::count(found.blobs, "blob")),
        ),
        ("mirrored", format!("{} UTC, in {:.1} s", text::minute(found.listed.timestamp()), found.took)),
        ("by", format!("bdnfs {}", found.tool)),
    ];
    let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
    text::table(&rows, &[]).trim_end().to_owned()
}
