//! The command line: its commands and global options.

use anyhow::{Context, Result};
use bdnfs_agent::fdstore::process as fdstore_process;
use bdnfs_agent::jobs::supervisor;
use bdnfs_agent::saver;
use bdnfs_agent::telemetry::traces::OtlpEndpoint;
use clap::{ArgAction, Parser, Subcommand};

use crate::commands::{
    agent, bench, cache, check, checkpoint, cluster, csi, daemon, fdstore, job, ls, mirror, mount, oci_hook,
    project, slurm, source, status, top, umount, wait,
};
use crate::log::{self, LogKind};
use crate::output::STDOUT_CONTEXT;

/// Mount model weights and datasets as read-only directories, from object storage, the Hugging Face Hub or the web.
#[derive(Debug, Parser)]
#[command(name = "bdnfs", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// Log more; repeat for more. BDNFS_LOG sets the log level exactly (debug, or bdnfs=trace,hyper=info)
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 900)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount a source on a directory
    Mount(Box<mount::MountArgs>),
    /// Unmount a directory
    #[command(visible_alias = "unmount")]
    Umount(umount::UnmountArgs),
    /// Run jobs whose data is staged before they start
    Job(job::JobCommandArgs),
    /// Wait until a mount or job is staged, or has ended
    Wait(wait::WaitArgs),
    /// Show mounts, how much of each is local, and the usage of caches
    Status(status::StatusArgs),
    /// Watch transfer rates by mount and tier
    Top(top::TopArgs),
    /// List the files of a source without mounting it
    Ls(ls::ListArgs),
    /// Print the node affinity for a source
    Source(source::SourceCommandArgs),
    /// Check a configuration file and every source it names
    Check(check::CheckArgs),
    /// Copy sources into object storage and manage the copies
    Mirror(mirror::MirrorCommandArgs),
    /// List, show, save and remove what jobs have saved
    Checkpoint(checkpoint::CheckpointCommandArgs),
    /// List, summarize and remove the training caches of projects and teams on this node
    Project(project::ProjectCommandArgs),
    /// Manage certificates of cluster nodes and list the members
    Cluster(cluster::ClusterCommandArgs),
    /// Inspect, pin, verify and evict cached snapshots
    Cache(cache::CacheCommandArgs),
    /// Run the agent of this node, which owns its cache, mounts and jobs
    Agent(agent::AgentCommandArgs),
    /// Run the driver for Kubernetes (CSI), a client of this node's agent
    Csi(csi::CsiArgs),
    /// Mount the weights that a container's annotation names; podman and CRI-O run it
    OciHook(oci_hook::OciHookArgs),
    /// Stage the sources of Slurm jobs; prologs and epilogs run it
    Slurm(slurm::SlurmCommandArgs),
    /// Run the fd store, which keeps the node's mounts while the agent restarts
    Fdstore(fdstore::FdstoreArgs),
    /// Benchmark bdnfs on this machine against other ways to read the same data
    Bench(bench::BenchArgs),
    /// Run an on-demand agent, which exits with its last mount; `bdnfs mount` starts it
    #[command(hide = true)]
    Daemon(daemon::DaemonArgs),
    /// Supervise the commands of a job; the agent starts it
    #[command(hide = true)]
    Launch,
    /// Save the checkpoints of a job; the agent starts it
    #[command(hide = true)]
    Save,
    /// Keep /dev/fuse descriptors while there is no agent; the agent starts it
    #[command(hide = true, alias = "hold")]
    FdstoreProcess,
}

const EXAMPLES: &str = "Examples:
  bdnfs mount s3://models/llama-3-8b /mnt/model
  bdnfs mount hf://openai-community/gpt2@main /mnt/gpt2
  bdnfs status
  bdnfs umount /mnt/model";

impl Cli {
    /// Runs the command that the arguments of this process name, or prints the help or version that they ask for. Exits where they
    /// are wrong.
    pub fn run_arguments() -> Result<()> {
        match Self::try_parse() {
            Ok(cli) => cli.run(),
            Err(usage) if usage.use_stderr() => usage.exit(),
            Err(help) => help.print().context(STDOUT_CONTEXT),
        }
    }

    /// Runs the command.
    fn run(self) -> Result<()> {
        let kind = match &self.command {
            Command::Daemon(_) | Command::FdstoreProcess => LogKind::Detached,
            Command::Agent(_) | Command::Csi(_) | Command::Fdstore(_) => LogKind::Service,
            Command::Mount(mount) if mount.is_foreground() => LogKind::Service,
            _ => LogKind::Command,
        };
        let config = match &self.command {
            Command::Agent(agent) => agent.configuration()?,
            _ => agent::ConfigFile::default(),
        };
        let collector = match &self.command {
            Command::Agent(agent) => agent.collector(&config)?,
            Command::Daemon(_) => OtlpEndpoint::from_environment()?,
            Command::Mount(mount) if mount.is_foreground() => OtlpEndpoint::from_environment()?,
            _ => None,
        };
        // Dropped at the end, which sends the last traces and writes the last lines.
        let _guards = log::start(kind, self.verbose, collector.as_ref())?;
        match self.command {
            Command::Mount(args) => mount::run(*args, self.verbose),
            Command::Umount(args) => umount::run(&args),
            Command::Job(args) => job::run(args),
            Command::Wait(args) => wait::run(&args),
            Command::Launch => Ok(supervisor::run()?),
            Command::Save => Ok(saver::run()?),
            Command::Status(args) => status::run(&args),
            Command::Top(args) => top::run(&args),
            Command::Ls(args) => ls::run(&args),
            Command::Source(args) => source::run(args),
            Command::Check(args) => check::run(&args),
            Command::Mirror(args) => mirror::run(args),
            Command::Checkpoint(args) => checkpoint::run(args),
            Command::Project(args) => project::run(args),
            Command::Cluster(args) => cluster::run(&args),
            Command::Cache(args) => cache::run(&args),
            Command::Agent(args) => agent::run(&args, config),
            Command::Csi(args) => csi::run(args),
            Command::OciHook(args) => oci_hook::run(&args),
            Command::Slurm(args) => slurm::run(&args),
            Command::Fdstore(args) => fdstore::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Daemon(args) => daemon::run(&args),
            Command::FdstoreProcess => Ok(fdstore_process::run()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn invalid_arguments_are_a_usage_error() {
        for line in [
            "bdnfs",
            "bdnfs mount s3://b/p",
            "bdnfs mount s3://b/p /mnt -o rw",
            "bdnfs mount s3://b/p /mnt --cache-size many",
            "bdnfs mount s3://b/p /mnt --uid root",
            "bdnfs mount ftp://host/p /mnt",
            "bdnfs mount --root /srv s3://b/p /mnt",
            "bdnfs mount --lenient s3://b/p /mnt",
            "bdnfs mirror add --lenient s3://b/p",
            "bdnfs ls relative",
        ] {
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
