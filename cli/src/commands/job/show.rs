//! `bdnfs job show`, and how a job is told to people.

use std::io::Write;

use anyhow::Result;
use bdnfs_agent::api::job::{BytesByTier, JobEvent, JobStatus};
use chrono::SecondsFormat;

use super::{Which, say};
use crate::text;

/// Which job.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Tell it as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job show 7
  bdnfs job show --json 7 | jq .report";

/// Shows it.
pub async fn run(args: Args) -> Result<()> {
    let job = args.which.whose.client()?.job(args.which.job).await?;
    if args.json {
        return say(&serde_json::to_string(&job)?);
    }
    let mut out = format!("job {}: {}\n", job.id, job.state);
    for reads in &job.weights {
        out.push_str(&format!("reads {} at {}\n", reads.source, reads.mount_location.display()));
    }
    for command in &job.start_commands {
        out.push_str(&format!("runs {}\n", text::name(command.as_bytes())));
    }
    job.events.iter().for_each(|event| out.push_str(&format!("{}\n", line(event))));
    out.push_str(&report(&job));
    Ok(std::io::stdout().lock().write_all(out.as_bytes())?)
}

/// An event in one line.
pub fn line(event: &JobEvent) -> String {
    let at = event.at.to_rfc3339_opts(SecondsFormat::Millis, true);
    format!("{at} {} {}", event.state, text::name(event.text.as_bytes()))
}

/// What a job's deployment came to, as a table with lines below it; nothing before it is deployed.
pub fn report(job: &JobStatus) -> String {
    let Some(report) = &job.report else { return String::new() };
    let columns = ["SOURCE", "FILES", "BYTES", "CACHE", "PEERS", "MIRROR", "ORIGIN", "SHARED", "VERDICT"];
    let row = |name: &str, came: BytesByTier, verdict: String| {
        let sizes =
            [came.bytes, came.cache, came.peers, came.mirror, came.origin, came.shared].map(text::size);
        let mut row = vec![name.to_owned(), came.files.to_string()];
        row.extend(sizes);
        row.push(verdict);
        row
    };
    let mut rows = vec![columns.map(str::to_owned).to_vec()];
    let sources = report.sources.iter();
    rows.extend(sources.map(|source| row(&source.source, source.came, source.verdict.to_string())));
    if report.sources.len() > 1 {
        rows.push(row("all", report.total, report.verdict.to_string()));
    }
    let took = report.seconds;
    format!(
        "{}mirrored in {:.2} s, mounted in {:.2} s, waited {:.2} s for room, staged in {:.2} s, launched in {:.2} s\n",
        text::table(&rows, &[1, 2, 3, 4, 5, 6, 7]),
        took.mirror,
        took.mount,
        took.room,
        took.stage,
        took.launch
    )
}
