//! `bdnfs job show`, and the text format of jobs.

use anyhow::Result;
use bdnfs_agent::api::job::{BytesByTier, JobEvent, JobStatus};
use chrono::SecondsFormat;

use super::JobArgs;
use crate::output::{print, print_json};
use crate::text;

/// The arguments of `bdnfs job show`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct JobShowArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Print the job as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job show 7
  bdnfs job show --json 7 | jq .report";

/// Shows the job.
pub async fn run(args: JobShowArgs) -> Result<()> {
    let job = args.job.agent.client()?.job(args.job.id).await?;
    if args.json {
        return print_json(&job);
    }
    let mut out = format!("job {}: {}\n", job.id, format_state(&job));
    let training = &job.training;
    let (project, id, rank, nodes) = (training.project(), training.id(), training.rank, training.nodes);
    out.push_str(&format!("project {project} id {id}, rank {rank} of {nodes}\n"));
    for weights in &job.weights {
        out.push_str(&format!("source {} on {}\n", weights.source, weights.mount_location.display()));
    }
    for command in &job.start_commands {
        out.push_str(&format!("command {}\n", text::printable(command.as_bytes())));
    }
    job.events.iter().for_each(|event| out.push_str(&format!("{}\n", format_event(event))));
    out.push_str(&format_report(&job));
    out.push_str(&format_saving(&job));
    print(&out)
}

/// The state of a job, and whether its commands have ended and what they wrote is being saved.
pub fn format_state(job: &JobStatus) -> String {
    let is_saving = job.exited.is_some() && !job.state.is_last();
    format!("{}{}", job.state, if is_saving { " (saving)" } else { "" })
}

/// Formats what is still to be saved of a job's checkpoints, and the time that takes at the rate of the last one; empty for
/// nothing.
pub fn format_backlog(job: &JobStatus) -> String {
    let Some(saving) = job.saving.as_ref().filter(|saving| saving.backlog > 0) else { return String::new() };
    let backlog = text::size(saving.backlog);
    match saving.minutes_left() {
        Some(minutes) => format!("{backlog}, {minutes:.1} min"),
        None => backlog,
    }
}

/// The states of a job's checkpoints, as a table and a line below; empty where it has none.
fn format_saving(job: &JobStatus) -> String {
    let Some(saving) = &job.saving else { return String::new() };
    let columns = ["CHECKPOINT", "STATE", "COMPLETE", "BYTES", "GENERATION", "SAVED", "SECONDS"];
    let rows = saving.checkpoints.iter().map(|one| {
        let at = one.saved.map_or_else(String::new, |at| at.to_rfc3339_opts(SecondsFormat::Secs, true));
        vec![
            text::printable(one.name.as_bytes()),
            one.state.to_string(),
            if one.complete { "yes" } else { "no" }.to_owned(),
            text::size(one.bytes),
            one.generation.to_string(),
            at,
            one.seconds.map_or_else(String::new, |seconds| format!("{seconds:.1}")),
        ]
    });
    let rows: Vec<_> = std::iter::once(columns.map(str::to_owned).to_vec()).chain(rows).collect();
    let (saved, backlog) = (text::size(saving.saved), text::size(saving.backlog));
    let mut out = text::table(&rows, &[3, 4, 6]);
    out.push_str(&match (saving.rate, saving.minutes_left()) {
        (Some(rate), Some(minutes)) => format!(
            "saved {saved} at {}/s, still to be saved {backlog} in {minutes:.1} minutes\n",
            text::size(rate as u64)
        ),
        _ => format!("saved {saved}, still to be saved {backlog}\n"),
    });
    if let Some(why) = &saving.why {
        out.push_str(&format!("cannot save, and tries again: {}\n", text::printable(why.as_bytes())));
    }
    out
}

/// An event in one line, below one that says how many are left out before it.
pub fn format_event(event: &JobEvent) -> String {
    let at = event.at.to_rfc3339_opts(SecondsFormat::Millis, true);
    let before = match event.left_out {
        0 => String::new(),
        left_out => format!("({} left out)\n", text::count(left_out as u64, "event")),
    };
    format!("{before}{at} {} {}", event.state, text::printable(event.text.as_bytes()))
}

/// The report of a deployment as a table and a line below; empty before the job is deployed.
pub fn format_report(job: &JobStatus) -> String {
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
    rows.extend(sources.map(|source| row(&source.source, source.by_tier, source.verdict.to_string())));
    if report.sources.len() > 1 {
        rows.push(row("all", report.total, report.verdict.to_string()));
    }
    let seconds = report.seconds;
    format!(
        "{}mirrored in {:.2} s, mounted in {:.2} s, waited {:.2} s for cache space, staged in {:.2} s, started in {:.2} s\n",
        text::table(&rows, &[1, 2, 3, 4, 5, 6, 7]),
        seconds.mirror,
        seconds.mount,
        seconds.room,
        seconds.stage,
        seconds.launch
    )
}
