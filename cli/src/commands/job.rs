//! `bdnfs job`: commands that run when all they read is local.

use std::io::Write;

use anyhow::{Result, bail};
use bdnfs_agent::api::client::Client;
use bdnfs_agent::runtime;
use clap::Subcommand;

use crate::cache;
use crate::server::Server;

pub mod follow;
mod logs;
mod ls;
mod run;
mod show;
mod stop;
mod submit;
pub mod wait;

/// What to do with jobs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a job and wait for its end: through the agent where there is one, else by itself
    Run(Box<run::Args>),
    /// Have the agent run a job, and return
    Submit(Box<submit::Args>),
    /// List the agent's jobs
    Ls(ls::Args),
    /// Show a job: where it is on its way, what happened, what its deployment came to
    Show(show::Args),
    /// Wait for the end of a job; fails unless it completed
    Wait(wait::Args),
    /// Print what a job printed
    Logs(logs::Args),
    /// Stop a job
    Stop(stop::Args),
}

const EXAMPLES: &str = "Examples:
  bdnfs job run job.json
  bdnfs job run --secrets /run/secrets --mirror s3://mirror job.json
  bdnfs job run config.yaml -- python serve.py
  bdnfs job submit job.json
  bdnfs job logs --follow 7
  bdnfs job stop 7";

/// Does it.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Run(args) => runtime::block_on_threads(run::run(*args)),
        Command::Submit(args) => runtime::block_on(submit::run(*args)),
        Command::Ls(args) => runtime::block_on(ls::run(args)),
        Command::Show(args) => runtime::block_on(show::run(args)),
        Command::Wait(args) => runtime::block_on(wait::run(args)),
        Command::Logs(args) => runtime::block_on(logs::run(args)),
        Command::Stop(args) => runtime::block_on(stop::run(args)),
    }
}

/// Which agent is meant.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Whose {
    #[command(flatten)]
    cache: cache::Args,
}

impl Whose {
    /// The agent, which must be there.
    pub fn client(&self) -> Result<Client> {
        let client = Client::new(Server::find(&self.cache)?.socket());
        if !client.is_served() {
            bail!("there is no agent here; start one with `bdnfs agent`, or name its cache with --cache-dir");
        }
        Ok(client)
    }
}

/// Which job, and whose.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Which {
    /// The job's number
    #[arg(value_name = "JOB")]
    job: u64,
    #[command(flatten)]
    whose: Whose,
}

/// Prints a line.
fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}
