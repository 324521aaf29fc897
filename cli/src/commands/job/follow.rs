//! Follows a job, its events and its output, until it ends.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::job::{
    JobEvent, JobState, JobStatus, LogChunk, OutputStream, event_count, events_after,
};

use super::show;
use crate::output;
use crate::progress::ProgressDisplay;

/// The time that an agent may take to restart.
const AGENT_RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// The time to wait before it is asked again.
const FOLLOW_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The format in which a job is followed.
#[derive(Clone, Copy, Debug)]
pub struct FollowFormat {
    /// Events as JSON on stdout and all output of the job on stderr; else events as text on stderr and the output on its own
    /// streams.
    pub json: bool,
}

/// Follows a job until it has ended.
pub async fn follow(client: &Client, id: u64, format: FollowFormat) -> Result<JobStatus> {
    let ended = std::cell::Cell::new(false);
    let events = async {
        let job = events(client, id, format).await;
        ended.set(true);
        job
    };
    let log = async {
        let mut from = 0;
        loop {
            let last = ended.get();
            match next_output(client, id, &mut from, !last).await {
                // A closed output is no reason to stop the job.
                Ok(Some(piece)) => drop(write_output(&piece, format)),
                Ok(None) if last => return,
                Ok(None) => {}
                // The events have the reason.
                Err(_) if last => return,
                Err(_) => tokio::time::sleep(FOLLOW_RETRY_INTERVAL).await,
            }
        }
    };
    tokio::join!(events, log).0
}

/// Prints the events.
async fn events(client: &Client, id: u64, format: FollowFormat) -> Result<JobStatus> {
    let (mut seen, mut display, mut reported) = (0, None::<ProgressDisplay>, false);
    loop {
        let job = poll(client, id, seen).await?;
        let count = event_count(&job.events);
        if count > seen {
            display = None;
        }
        for event in events_after(&job.events, seen) {
            print_event(event, format)?;
            if event.state == JobState::Running && !format.json && !std::mem::replace(&mut reported, true) {
                output::stderr_line!("{}", show::format_report(&job).trim_end());
            }
        }
        seen = count;
        match &job.staging {
            Some(progress) if !format.json => {
                display.get_or_insert_with(|| ProgressDisplay::new("staging", progress)).show(progress);
            }
            _ => display = None,
        }
        if job.state.is_last() {
            return Ok(job);
        }
    }
}

/// Waits until a job has more than `seen` events, or for a moment, and returns it. Waits for an agent that restarts, which knows
/// the job.
pub async fn poll(client: &Client, id: u64, seen: usize) -> Result<JobStatus, ClientError> {
    let start = Instant::now();
    loop {
        match client.job_after(id, seen).await {
            Err(error) if error.is_gone() && start.elapsed() < AGENT_RESTART_TIMEOUT => {
                tokio::time::sleep(FOLLOW_RETRY_INTERVAL).await
            }
            answer => return answer,
        }
    }
}

fn print_event(event: &JobEvent, format: FollowFormat) -> Result<()> {
    if format.json {
        output::print_json(event)?;
    } else {
        output::stderr_line!("{}", show::format_event(event));
    }
    Ok(())
}

/// Gets the next output of a job, which begins at `from`, and moves that to its end. `None` when there is none now.
pub async fn next_output(
    client: &Client,
    id: u64,
    from: &mut u64,
    wait: bool,
) -> Result<Option<LogChunk>, ClientError> {
    let piece = client.log(id, *from, wait).await?;
    if piece.bytes.is_empty() {
        return Ok(None);
    }
    if piece.from > *from {
        output::stderr_line!("note: {} bytes of output were dropped", piece.from - *from);
    }
    *from = piece.from + piece.bytes.len() as u64;
    Ok(Some(piece))
}

/// Writes output of a job to the stream that it came on.
///
/// # Errors
/// Where standard output can't be written to. Where standard error can't, nobody can be told.
pub fn write_output(piece: &LogChunk, format: FollowFormat) -> Result<()> {
    if format.json || piece.stream == OutputStream::Stderr {
        let _ = std::io::stderr().lock().write_all(&piece.bytes);
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    out.write_all(&piece.bytes).and_then(|()| out.flush()).context(output::STDOUT_CONTEXT)
}

/// Fails unless the commands of the job ended in good order.
pub fn check_exit(job: &JobStatus) -> Result<()> {
    match job.exit.as_ref().and_then(|exit| exit.code) {
        Some(0) => Ok(()),
        Some(code) => anyhow::bail!("job {}: its command exited with {code}", job.id),
        None => anyhow::bail!("job {}: its commands were killed", job.id),
    }
}

/// Fails unless the job completed.
pub fn check_completed(job: &JobStatus) -> Result<()> {
    match (job.state, &job.why) {
        (JobState::Completed, _) => Ok(()),
        (JobState::Stopped, Some(why)) => anyhow::bail!("job {} was stopped: {why}", job.id),
        (JobState::Stopped, None) => anyhow::bail!("job {} was stopped", job.id),
        (_, Some(why)) => anyhow::bail!("job {} failed: {why}", job.id),
        (state, None) => anyhow::bail!("job {} is {state}", job.id),
    }
}
