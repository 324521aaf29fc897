//! `bdnfs job`: jobs whose data is staged before they start.

use anyhow::{Result, bail};
use bdnfs_agent::api::client::Client;
use clap::Subcommand;

use crate::cache::CacheArgs;
use crate::endpoint::Endpoint;
use crate::runtime;

pub mod follow;
mod logs;
mod ls;
mod run;
mod show;
mod stop;
mod submit;
mod training;
pub mod wait;

/// The arguments of `bdnfs job`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct JobCommandArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// Run a job and wait for it: through the agent where one runs, else in this process
    Run(Box<run::JobRunArgs>),
    /// Submit a job to the agent and return
    Submit(Box<submit::JobSubmitArgs>),
    /// List the jobs of the agent
    Ls(ls::JobListArgs),
    /// Show a job: its state, its events and the report of its deployment
    Show(show::JobShowArgs),
    /// Wait until a job has ended; fail unless it completed
    Wait(wait::JobWaitArgs),
    /// Print the output of a job
    Logs(logs::JobLogsArgs),
    /// Stop a job
    Stop(stop::JobStopArgs),
}

const EXAMPLES: &str = "Examples:
  bdnfs job run job.json
  bdnfs job run --secrets /run/secrets --mirror s3://mirror job.json
  bdnfs job run config.yaml -- python serve.py
  bdnfs job submit job.json
  bdnfs job logs --follow 7
  bdnfs job stop 7";

/// Runs the subcommand.
pub fn run(args: JobCommandArgs) -> Result<()> {
    match args.command {
        JobCommand::Run(args) => runtime::block_on_threads(run::run(*args)),
        JobCommand::Submit(args) => runtime::block_on(submit::run(*args)),
        JobCommand::Ls(args) => runtime::block_on(ls::run(args)),
        JobCommand::Show(args) => runtime::block_on(show::run(args)),
        JobCommand::Wait(args) => runtime::block_on(wait::run(args)),
        JobCommand::Logs(args) => runtime::block_on(logs::run(args)),
        JobCommand::Stop(args) => runtime::block_on(stop::run(args)),
    }
}

/// The options that name an agent.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct AgentArgs {
    #[command(flatten)]
    cache: CacheArgs,
}

impl AgentArgs {
    /// The client of the agent, which must be running.
    pub fn client(&self) -> Result<Client> {
        let client = Client::new(Endpoint::find(&self.cache)?.socket());
        if !client.is_served() {
            bail!("no agent is running; start `bdnfs agent`, or name its cache with --cache-dir");
        }
        Ok(client)
    }
}

/// The arguments that name a job.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct JobArgs {
    /// Id of the job
    #[arg(value_name = "JOB")]
    id: u64,
    #[command(flatten)]
    agent: AgentArgs,
}
