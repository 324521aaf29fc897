//! `bdnfs slurm`: sources for the jobs of Slurm, by its prologs and epilogs.
//!
//! ```text
//!  Prolog (root, exits at once) ─> watcher (root) ─> publish at DIRECTORY/JOB/NAME
//!                                     └─> DIRECTORY/JOB/state <─ TaskProlog (user) waits, exports or fails
//!  Epilog (root) ─> unpublish
//! ```
//!
//! A prolog that fails or takes long takes its node out of service, so nothing but the task waits, and nothing but the task fails.
//! Only where the task could not be told that, the prolog fails: the job would run without what it named.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;

use crate::output::stderr_line;
use crate::publications::PublisherArgs;
use job_directory::SlurmJobDirectory;

mod comment;
mod epilog;
mod job_directory;
mod prolog;
mod task_prolog;

/// The arguments of `bdnfs slurm`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SlurmCommandArgs {
    #[command(subcommand)]
    command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
enum SlurmCommand {
    /// Begin to stage the sources in the job's comment; for Prolog
    Prolog(ProvisionArgs),
    /// Wait until they are staged, and export their paths; for TaskProlog
    TaskProlog(JobDirectoryArgs),
    /// Release them; for Epilog
    Epilog(ProvisionArgs),
    /// Stage and report; the prolog starts it
    #[command(hide = true)]
    Watch(ProvisionArgs),
}

/// The options of what runs as root.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
struct ProvisionArgs {
    #[command(flatten)]
    jobs: JobDirectoryArgs,
    #[command(flatten)]
    publisher: PublisherArgs,
}

/// The options that say where jobs find what they named.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
struct JobDirectoryArgs {
    /// Directory with a directory for each job, below one of the agent's target directories
    #[arg(long, value_name = "DIR", default_value = "/run/bdnfs/jobs")]
    directory: PathBuf,
}

const EXAMPLES: &str = "slurm.conf names scripts that run these:
  exec bdnfs slurm prolog
  exec bdnfs slurm task-prolog
  exec bdnfs slurm epilog
A job names sources in its comment, and its tasks find them by variables:
  sbatch --comment='bdnfs:llama=hf://o/m' job.sh     # $BDNFS_LLAMA";

/// Runs the subcommand.
pub fn run(args: &SlurmCommandArgs) -> Result<()> {
    match &args.command {
        SlurmCommand::Prolog(args) => prolog::run(args),
        SlurmCommand::TaskProlog(args) => task_prolog::run(&args.job()?),
        SlurmCommand::Epilog(args) => {
            report(epilog::run(args));
            Ok(())
        }
        SlurmCommand::Watch(args) => prolog::watch(args),
    }
}

/// Writes a failure to slurmd's log, and no more: Slurm would take the node out of service.
fn report(result: Result<()>) {
    if let Err(error) = result {
        stderr_line!("bdnfs: {}", crate::text::line(&error));
    }
}

impl JobDirectoryArgs {
    /// The directory of the job that this process runs for.
    fn job(&self) -> Result<SlurmJobDirectory> {
        let id = std::env::var("SLURM_JOB_ID").context("SLURM_JOB_ID is not set: Slurm runs this command")?;
        let id = id.parse().with_context(|| format!("SLURM_JOB_ID={id}: not the id of a job"))?;
        Ok(SlurmJobDirectory::new(&self.directory, id))
    }
}
