//! `bdnfs job run`.

use anyhow::{Result, anyhow};
use bdnfs_agent::AgentServer;
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::job::{JobRequest, NOT_COMPLETED_CODE};
use bdnfs_agent::signals::{self, Shutdown, TerminationSignals};
use tokio::sync::oneshot;

use super::AgentArgs;
use super::follow::{self, FollowFormat};
use super::submit::JobSpecArgs;
use crate::endpoint::{Connection, serve_or_request};
use crate::exit_status::ExitStatusError;
use crate::mountpoint;
use crate::output::print_json;

/// The arguments of `bdnfs job run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct JobRunArgs {
    #[command(flatten)]
    spec: JobSpecArgs,
    #[command(flatten)]
    agent: AgentArgs,
    /// Print each event, and at the end the job, as a JSON object on a line of its own; the output of the job goes to stderr
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job run job.json
  bdnfs job run --mirror s3://mirror --secrets /run/secrets job.json
  bdnfs job run --no-mirror job.toml
  bdnfs job run config.yaml -- python serve.py --port 8080
Ctrl-C stops the job; a second Ctrl-C kills its processes at once.
It exits with the code of the command that failed, 128+N where signal N ended it, and 125 for any other failure.";

/// Runs the job until it has ended. A failure has the exit code of the job's command, or 125.
pub async fn run(args: JobRunArgs) -> Result<()> {
    run_job(args).await.map_err(|error| ExitStatusError::wrap(NOT_COMPLETED_CODE, error))
}

async fn run_job(args: JobRunArgs) -> Result<()> {
    mountpoint::check_fuse()?;
    let request = args.spec.request()?;
    // Before there is a job: from then on a signal is to stop it.
    let mut interrupts = TerminationSignals::listen()?;
    let submit = async |client: &Client| client.submit(&request).await;
    match serve_or_request(&args.agent.cache, submit).await? {
        (client, Connection::Server(server)) => {
            run_as_daemon(&args, request, server, &client, &mut interrupts).await
        }
        (client, Connection::Answer(job)) => attach(&args, &client, job.id, &mut interrupts).await,
    }
}

/// Runs the job as the agent of the cache.
async fn run_as_daemon(
    args: &JobRunArgs,
    request: JobRequest,
    daemon: AgentServer,
    client: &Client,
    interrupts: &mut TerminationSignals,
) -> Result<()> {
    let alive = daemon.keep_alive();
    let (ended_sender, ended) = oneshot::channel();
    let work = async {
        let request = JobRequest { attached: true, ..request };
        let submitted = tokio::select! {
            submitted = client.submit(&request) => submitted.map_err(Into::into),
            // There is no job yet, only one that is looked at.
            () = interrupts.next() => Err(anyhow!("interrupted")),
        };
        let result = match submitted {
            Ok(job) => attach(args, client, job.id, interrupts).await,
            Err(error) => Err(error),
        };
        drop(alive);
        // The agent may have ended by itself.
        let _ = ended_sender.send(());
        result
    };
    // A signal stops the job first, and after it the agent, whatever other commands have mounted meanwhile.
    let end = async {
        let _ = ended.await;
        signals::termination().await.map(|()| Shutdown::Stop)
    };
    let (served, result) = tokio::join!(daemon.serve_until(end), work);
    result.and(served.map_err(Into::into))
}

/// Follows the job until it has ended. A signal stops it, a second one kills it.
async fn attach(
    args: &JobRunArgs,
    client: &Client,
    id: u64,
    interrupts: &mut TerminationSignals,
) -> Result<()> {
    let following = follow::follow(client, id, FollowFormat { json: args.json });
    tokio::pin!(following);
    let mut signals = 0;
    let job = loop {
        tokio::select! {
            job = &mut following => break job?,
            () = interrupts.next() => {
                signals += 1;
                client.stop(id, signals > 1, false).await?;
            }
        }
    };
    if args.json {
        print_json(&job)?;
    }
    let code = job.exit_code.unwrap_or(NOT_COMPLETED_CODE);
    follow::check_completed(&job).map_err(|error| ExitStatusError::wrap(code, error))
}
