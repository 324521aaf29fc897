//! `bdnfs job run`.

use std::time::{Duration, Instant};

use anyhow::Result;
use bdnfs::error::Kind;
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::job::JobRequest;
use bdnfs_agent::signals;
use bdnfs_agent::signals::{Shutdown, TerminationSignals};
use bdnfs_agent::{AgentConfig, AgentServer};
use tokio::sync::oneshot;

use super::follow::{self, Shown};
use super::submit::Spec;
use super::{Whose, say};
use crate::mountpoint;
use crate::server::Server;

/// How long a daemon may take to end before its cache is given up on.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait before it is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// What to run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    spec: Spec,
    #[command(flatten)]
    whose: Whose,
    /// Tell each event and in the end the job as a JSON object on a line of its own; what the job prints goes to standard
    /// error then
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job run job.json
  bdnfs job run --mirror s3://mirror --secrets /run/secrets job.json
  bdnfs job run --no-mirror job.toml
  bdnfs job run config.yaml -- python serve.py --port 8080
Ctrl-C stops the job; a second one does not wait for its processes.";

/// Runs it to its end.
pub async fn run(args: Args) -> Result<()> {
    mountpoint::fuse()?;
    let request = args.spec.request()?;
    // Before there is a job: from then on it is to be stopped.
    let mut heard = TerminationSignals::listen()?;
    let begun = Instant::now();
    loop {
        let server = Server::find(&args.whose.cache)?;
        let mut busy = None;
        if let Server::Owner(cache) = &server {
            match AgentServer::start(AgentConfig::on_demand(cache.clone())).await {
                Ok(daemon) => {
                    let client = Client::new(server.socket());
                    return alone(&args, request, daemon, &client, &mut heard).await;
                }
                Err(failure) if failure.is(Kind::Busy) => busy = Some(failure),
                Err(failure) => return Err(failure.into()),
            }
        }
        let client = Client::new(server.socket());
        match client.submit(&request).await {
            Ok(job) => return attend(&args, &client, job.id, &mut heard).await,
            Err(trouble) if trouble.is_gone() && begun.elapsed() < PATIENCE => {
                tokio::time::sleep(PAUSE).await
            }
            // Who owns the cache says more than that nobody listens.
            Err(trouble) => return Err(busy.map_or_else(|| trouble.into(), Into::into)),
        }
    }
}

/// Runs it as the cache's daemon.
async fn alone(
    args: &Args,
    request: JobRequest,
    daemon: AgentServer,
    client: &Client,
    heard: &mut TerminationSignals,
) -> Result<()> {
    let hold = daemon.hold();
    let (done, ended) = oneshot::channel();
    let work = async {
        let request = JobRequest { attached: true, ..request };
        let worked = match client.submit(&request).await {
            Ok(job) => attend(args, client, job.id, heard).await,
            Err(trouble) => Err(trouble.into()),
        };
        drop(hold);
        // It may have ended by itself.
        let _ = done.send(());
        worked
    };
    // As long as there is the job, a signal stops that, and is told of; what others have mounted meanwhile comes after it.
    let asked = async {
        let _ = ended.await;
        signals::termination().await.map(|()| Shutdown::Stop)
    };
    let (served, worked) = tokio::join!(daemon.serve_until(asked), work);
    worked.and(served)
}

/// Follows it to its end. A signal stops it, a second one at once.
async fn attend(args: &Args, client: &Client, id: u64, heard: &mut TerminationSignals) -> Result<()> {
    let shown = Shown { json: args.json };
    let following = follow::follow(client, id, shown);
    tokio::pin!(following);
    let mut asked = 0;
    let job = loop {
        tokio::select! {
            job = &mut following => break job?,
            () = heard.next() => {
                asked += 1;
                client.stop(id, asked > 1).await?;
            }
        }
    };
    if args.json {
        say(&serde_json::to_string(&job)?)?;
    }
    follow::judge(&job)
}
