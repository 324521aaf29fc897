//! `bdnfs job ls`.

use anyhow::Result;

use super::{AgentArgs, show};
use crate::output::{print, print_json};
use crate::text;

/// The arguments of `bdnfs job ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs job ls")]
pub struct JobListArgs {
    #[command(flatten)]
    agent: AgentArgs,
    /// Print the jobs as JSON
    #[arg(long)]
    json: bool,
}

/// Lists the jobs, oldest first.
pub async fn run(args: JobListArgs) -> Result<()> {
    let jobs = args.agent.client()?.jobs().await?;
    if args.json {
        return print_json(&jobs);
    }
    let head = ["JOB", "NAME", "STATE", "CREATED", "SOURCES", "TO SAVE", "LAST EVENT"].map(str::to_owned);
    let rows = jobs.jobs.into_iter().map(|job| {
        let sources: Vec<_> = job.weights.iter().map(|weights| weights.source.as_str()).collect();
        let created = text::minute(job.created.timestamp());
        vec![
            job.id.to_string(),
            text::printable(job.name.as_deref().unwrap_or_default().as_bytes()),
            show::format_state(&job),
            created,
            sources.join(" "),
            show::format_backlog(&job),
            job.events.last().map_or_else(String::new, |event| text::printable(event.text.as_bytes())),
        ]
    });
    let rows: Vec<_> = std::iter::once(head.to_vec()).chain(rows).collect();
    print(&text::table(&rows, &[0]))
}
