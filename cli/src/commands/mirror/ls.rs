//! `bdnfs mirror ls`: lists mirrored sources.

use anyhow::{Result, bail};
use bdnfs::mirror::catalog::Ref;

use super::MirrorTargetArgs;
use crate::output::{print, print_json, short_id, stderr_line};
use crate::text;

/// The arguments of `bdnfs mirror ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs mirror ls --json --mirror s3://mirror")]
pub struct MirrorListArgs {
    #[command(flatten)]
    target: MirrorTargetArgs,
}

/// Lists all refs.
pub async fn run(args: MirrorListArgs) -> Result<()> {
    let mirror = args.target.open().await?;
    let (mut refs, mut damaged) = (Vec::new(), 0);
    for found in mirror.refs().await? {
        match found {
            Ok(found) => refs.push(found),
            Err(error) => {
                damaged += 1;
                stderr_line!("bdnfs: {error}");
            }
        }
    }
    if args.target.json {
        refs.iter().try_for_each(print_json)?;
    } else {
        print(&table(&refs))?;
    }
    if damaged > 0 {
        bail!("{} damaged", text::count(damaged, "ref"));
    }
    Ok(())
}

fn table(refs: &[Ref]) -> String {
    let head =
        ["SOURCE", "FILES", "SIZE", "STORED", "MIRRORED", "SNAPSHOT", "REF"].map(str::to_owned).to_vec();
    let rows = refs.iter().map(|found| {
        vec![
            found.source.clone(),
            found.files.to_string(),
            text::size(found.bytes),
            text::size(found.stored),
            text::minute(found.listed.timestamp()),
            short_id(&found.manifest.to_string()).to_owned(),
            short_id(&found.key().to_string()).to_owned(),
        ]
    });
    text::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), &[1, 2, 3])
}
