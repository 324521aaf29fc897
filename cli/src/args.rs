//! The command line as a whole: its commands and what they share.

use anyhow::Result;
use bdnfs_agent::telemetry::traces::Collector;
use bdnfs_agent::{fdstore, jobs::supervisor};
use clap::{ArgAction, Parser, Subcommand};

use crate::commands::{
    agent, bench, cache, check, cluster, daemon, job, ls, mirror, mount, status, top, umount, wait,
};
use crate::log;

/// Mount model weights and datasets as read-only directories: there at once, and local once they have been read.
#[derive(Debug, Parser)]
#[command(name = "bdnfs", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// Tell more of what happens; repeat for more. BDNFS_LOG sets the level exactly (debug, or bdnfs=trace,hyper=info)
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 900)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount a source on a directory
    Mount(Box<mount::Args>),
    /// Unmount a directory
    #[command(visible_alias = "unmount")]
    Umount(umount::Args),
    /// Run a job when all that it reads is local, and look after it
    Job(job::Args),
    /// Wait until all of a mount or job is local
    Wait(wait::Args),
    /// Show what is mounted, how much of it is local, and how full the caches are
    Status(status::Args),
    /// Watch what is fetched, from where and how fast, as it happens
    Top(top::Args),
    /// List the files of a source without mounting it
    Ls(ls::Args),
    /// Judge a configuration and the weights that it names, line by line
    Check(check::Args),
    /// Copy sources into object storage, once, and look after them there
    Mirror(mirror::Args),
    /// Nodes that serve each other: their certificates, and who is there
    Cluster(cluster::Args),
    /// Tell what a cache holds, and decide what becomes of it
    Cache(cache::Args),
    /// Own this node's cache and host its mounts, for as long as it runs
    Agent(agent::Args),
    /// Measure this machine, beside its own file system and other ways to read the same
    Bench(bench::Args),
    /// Own a cache and host its mounts; `bdnfs mount` starts it
    #[command(hide = true)]
    Daemon(daemon::Args),
    /// Supervise a job's commands; the daemon starts it
    #[command(hide = true)]
    Launch,
    /// Hold an agent's mounts while there is no agent; the agent starts it
    #[command(hide = true)]
    Hold,
}

const EXAMPLES: &str = "Examples:
  bdnfs mount s3://models/llama-3-8b /mnt/model
  bdnfs mount hf://openai-community/gpt2@main /mnt/gpt2
  bdnfs status
  bdnfs umount /mnt/model";

impl Cli {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let serves = match &self.command {
            Command::Daemon(_) | Command::Agent(_) | Command::Hold => true,
            Command::Mount(mount) => mount.foreground(),
            _ => false,
        };
        let config = match &self.command {
            Command::Agent(agent) => agent.configuration()?,
            _ => agent::Config::default(),
        };
        let collector = match &self.command {
            Command::Agent(agent) => agent.collector(&config)?,
            Command::Daemon(_) => Collector::ambient()?,
            Command::Mount(mount) if mount.foreground() => Collector::ambient()?,
            _ => None,
        };
        // To the end: it is then that the last traces are sent.
        let _traces = log::start(serves, self.verbose, collector.as_ref())?;
        match self.command {
            Command::Mount(args) => mount::run(*args, self.verbose),
            Command::Umount(args) => umount::run(&args),
            Command::Job(args) => job::run(args),
            Command::Wait(args) => wait::run(&args),
            Command::Launch => supervisor::run(),
            Command::Status(args) => status::run(&args),
            Command::Top(args) => top::run(&args),
            Command::Ls(args) => ls::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Mirror(args) => mirror::run(args),
            Command::Cluster(args) => cluster::run(&args),
            Command::Cache(args) => cache::run(&args),
            Command::Agent(args) => agent::run(&args, config),
            Command::Bench(args) => bench::run(&args),
            Command::Daemon(args) => daemon::run(&args),
            Command::Hold => fdstore::process::run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_wrong_is_a_usage_error() {
        for line in [
            "bdnfs",
            "bdnfs mount s3://b/p",
            "bdnfs mount s3://b/p /mnt -o rw",
            "bdnfs mount s3://b/p /mnt --cache-size many",
            "bdnfs mount s3://b/p /mnt --uid root",
            "bdnfs mount ftp://host/p /mnt",
            "bdnfs ls relative",
        ] {
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
