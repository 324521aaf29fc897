//! `bdnfs job ls`.

use std::io::Write;

use anyhow::Result;

use super::{Whose, say};
use crate::text;

/// Whose jobs.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    whose: Whose,
    /// Tell them as JSON
    #[arg(long)]
    json: bool,
}

/// Lists them, oldest first.
pub async fn run(args: Args) -> Result<()> {
    let jobs = args.whose.client()?.jobs().await?;
    if args.json {
        return say(&serde_json::to_string(&jobs)?);
    }
    let head = ["JOB", "NAME", "STATE", "CREATED", "SOURCES", "LATELY"].map(str::to_owned).to_vec();
    let rows = jobs.jobs.into_iter().map(|job| {
        let sources: Vec<_> = job.weights.into_iter().map(|reads| reads.source).collect();
        let created = text::minute(job.created.timestamp());
        vec![
            job.id.to_string(),
            job.name.unwrap_or_default(),
            job.state.to_string(),
            created,
            sources.join(" "),
            job.events.last().map_or_else(String::new, |event| text::name(event.text.as_bytes())),
        ]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    Ok(std::io::stdout().lock().write_all(text::table(&rows, &[0]).as_bytes())?)
}
