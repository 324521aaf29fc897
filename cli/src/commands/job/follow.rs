//! Following a job: what happens to it and what it prints, until its end.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::job::{JobEvent, JobState, JobStatus};

use super::show;
use crate::progress::Display;

/// How long an agent may take to come back.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait before it is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// Where a job is followed to.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Events as JSON on standard output, and what it prints on standard error; else the other way round, as text.
    pub json: bool,
}

/// Follows it to its end.
pub async fn follow(client: &Client, id: u64, shown: Shown) -> Result<JobStatus> {
    let ended = std::cell::Cell::new(false);
    let events = async {
        let job = events(client, id, shown).await;
        ended.set(true);
        job
    };
    let log = async {
        let mut from = 0;
        loop {
            let last = ended.get();
            match copy(client, id, &mut from, !last, shown).await {
                Ok(true) => {}
                Ok(false) if last => return,
                Ok(false) => {}
                // The events say what became of it.
                Err(_) if last => return,
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    tokio::join!(events, log).0
}

/// Tells all that happens to it.
async fn events(client: &Client, id: u64, shown: Shown) -> Result<JobStatus> {
    let (mut seen, mut display, mut reported) = (0, None::<Display>, false);
    loop {
        let job = after(client, id, seen).await?;
        if job.events.len() > seen {
            display = None;
        }
        for event in job.events.iter().skip(seen) {
            tell(event, shown)?;
            if event.state == JobState::Running && !shown.json && !std::mem::replace(&mut reported, true) {
                eprint!("{}", show::report(&job));
            }
        }
        seen = job.events.len();
        match &job.staging {
            Some(progress) if !shown.json => {
                display.get_or_insert_with(|| Display::new("staging", progress)).show(progress);
            }
            _ => display = None,
        }
        if job.state.is_last() {
            return Ok(job);
        }
    }
}

/// The job as soon as more than `seen` events have happened, or after a moment. An agent that is started again is waited
/// for: it knows the job.
pub async fn after(client: &Client, id: u64, seen: usize) -> Result<JobStatus, ClientError> {
    let begun = Instant::now();
    loop {
        match client.job_after(id, seen).await {
            Err(trouble) if trouble.is_gone() && begun.elapsed() < PATIENCE => {
                tokio::time::sleep(PAUSE).await
            }
            told => return told,
        }
    }
}

fn tell(event: &JobEvent, shown: Shown) -> Result<()> {
    if shown.json {
        super::say(&serde_json::to_string(event)?)?;
    } else {
        eprintln!("{}", show::line(event));
    }
    Ok(())
}

/// Copies what it printed next. False where there is nothing now.
pub async fn copy(
    client: &Client,
    id: u64,
    from: &mut u64,
    wait: bool,
    shown: Shown,
) -> Result<bool, ClientError> {
    let piece = client.log(id, *from, wait).await?;
    if piece.bytes.is_empty() {
        return Ok(false);
    }
    if piece.from > *from {
        eprintln!("note: {} bytes are no longer kept", piece.from - *from);
    }
    *from = piece.from + piece.bytes.len() as u64;
    // That nobody reads it any more is no reason to end the job.
    let _ = if shown.json {
        std::io::stderr().lock().write_all(&piece.bytes)
    } else {
        let mut out = std::io::stdout().lock();
        out.write_all(&piece.bytes).and_then(|()| out.flush())
    };
    Ok(true)
}

/// Fails unless the job completed.
pub fn judge(job: &JobStatus) -> Result<()> {
    match (job.state, &job.why) {
        (JobState::Completed, _) => Ok(()),
        (JobState::Stopped, _) => anyhow::bail!("job {} was stopped", job.id),
        (_, Some(why)) => anyhow::bail!("job {} failed: {why}", job.id),
        (state, None) => anyhow::bail!("job {} is {state}", job.id),
    }
}
