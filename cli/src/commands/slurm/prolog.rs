//! Prolog: begins to stage what a job names, and leaves the rest to a process of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::publication::{PublicationRequest, PublicationState};

use super::job_directory::{JobSources, SlurmJobDirectory};
use super::{ProvisionArgs, comment, report};
use crate::publications::{publish_until, unpublish_all};
use crate::{runtime, text};

/// The interval at which a waiting task shows the progress of staging.
const PROGRESS_REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Begins to stage. A failure is written down for the task, which then fails.
///
/// # Errors
/// Where that can't be written down, so that Slurm runs the job elsewhere.
pub fn run(args: &ProvisionArgs) -> Result<()> {
    let Some(comment) = comment::of_job() else { return Ok(()) };
    let job = args.jobs.job()?;
    let uid = std::env::var("SLURM_JOB_UID").context("SLURM_JOB_UID is not set: Slurm runs this command")?;
    let uid = uid.parse().with_context(|| format!("SLURM_JOB_UID={uid}: not the id of a user"))?;
    let begun = comment::parse(&comment);
    let names = begun.as_ref().map(|sources| sources.keys().collect::<Vec<_>>()).unwrap_or_default();
    let sources = names.into_iter().map(|name| (name.clone(), job.target(name))).collect();
    let message = "staging begins".to_owned();
    job.create(uid, &JobSources { state: PublicationState::Staging, message, sources })?;
    // It finds what is wrong with the comment, too, and tells Slurm.
    if let Err(error) = job.watcher_lock().and_then(start_watcher) {
        job.update(&failed(&error))?;
        report(Err(error));
    }
    Ok(())
}

/// Starts the watcher with the arguments and the environment of this process. It holds `lock` for as long as it runs. Slurm ends
/// what stays in the group of its prolog.
fn start_watcher(lock: File) -> Result<()> {
    let words = std::env::args_os().map(|word| if word == "prolog" { "watch".into() } else { word });
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bdnfs").args(words.skip(1)).current_dir("/");
    command.stdin(lock).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: setsid(2) is safe in a child between fork and exec.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        })
    };
    command.spawn().context("cannot start the process that stages")?;
    Ok(())
}

fn failed(error: &anyhow::Error) -> JobSources {
    JobSources { state: PublicationState::Failed, message: text::line(error), sources: BTreeMap::new() }
}

/// Has `scontrol show job` print why staging failed, in the job's AdminComment. It is not waited for, and the task has the reason
/// anyway: the controller may be away.
fn note_failure(job: &SlurmJobDirectory, error: &anyhow::Error) {
    let mut command = Command::new("scontrol");
    command
        .arg("update")
        .arg(format!("JobId={}", job.id()))
        .arg(format!("AdminComment=bdnfs: {}", text::line(error)));
    // Not the lock that this process has as its input.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
}

/// Stages what the job names, and writes the progress to its directory.
pub fn watch(args: &ProvisionArgs) -> Result<()> {
    let (job, client) = (args.jobs.job()?, args.publisher.client()?);
    runtime::block_on(async {
        let is_running = match stage(args, &job, &client).await {
            Ok(is_running) => is_running,
            Err(error) => {
                // For the task first: the agent may be what is missing.
                let is_running = job.update(&failed(&error))?;
                note_failure(&job, &error);
                unpublish_all(&client, &job.key_prefix()).await?;
                is_running
            }
        };
        if !is_running {
            unpublish_all(&client, &job.key_prefix()).await?;
        }
        Ok(())
    })
}

/// Publishes all; returns `false` where the job ended meanwhile.
async fn stage(args: &ProvisionArgs, job: &SlurmJobDirectory, client: &Client) -> Result<bool> {
    let comment = comment::of_job().context("the comment of the job names no sources")?;
    let (mut requests, mut sources) = (BTreeMap::new(), BTreeMap::new());
    for (name, source) in comment::parse(&comment)? {
        let request = args.publisher.request(&source, None, job.consumer())?;
        let target = job.target(&name);
        // For as long as the job lives: the epilog ends it.
        requests
            .insert(name.clone(), PublicationRequest { target: Some(target.clone()), keep: true, ..request });
        sources.insert(name, target);
    }
    let key = |name: &str| format!("{}{name}", job.key_prefix());
    // All are begun before one is waited for.
    for (name, request) in &requests {
        publish_until(client, &key(name), request, Instant::now()).await.with_context(|| name.clone())?;
    }
    for (name, request) in &requests {
        loop {
            let until = Instant::now() + PROGRESS_REPORT_INTERVAL;
            let status =
                publish_until(client, &key(name), request, until).await.with_context(|| name.clone())?;
            let message = format!("{name}: {}", status.message);
            let state = JobSources { state: PublicationState::Staging, message, sources: sources.clone() };
            if !job.update(&state)? {
                return Ok(false);
            }
            if status.state == PublicationState::Published {
                break;
            }
        }
    }
    let message = "every byte is local".to_owned();
    job.update(&JobSources { state: PublicationState::Published, message, sources })
}
