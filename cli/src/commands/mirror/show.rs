//! `bdnfs mirror show`: shows a snapshot.

use anyhow::Result;
use bdnfs::mirror::catalog::Ref;

use super::{MirrorTargetArgs, find::find_ref};
use crate::output::print_value;
use crate::text;

/// The arguments of `bdnfs mirror show`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs mirror show s3://models/llama-3-8b --mirror s3://mirror")]
pub struct MirrorShowArgs {
    /// A source, or the first digits of the id of a snapshot or a ref
    #[arg(value_name = "SNAPSHOT")]
    name: String,
    #[command(flatten)]
    target: MirrorTargetArgs,
}

/// Shows the snapshot.
pub async fn run(args: MirrorShowArgs) -> Result<()> {
    let found = find_ref(&args.target.open().await?, &args.name).await?;
    print_value(args.target.json, &found, || format_ref(&found))
}

fn format_ref(found: &Ref) -> String {
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
