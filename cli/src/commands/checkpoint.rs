//! `bdnfs checkpoint`: what jobs have saved into the mirror.

use anyhow::{Result, bail};
use bdnfs::checkpoint::group::CheckpointGroup;
use bdnfs::checkpoint::{CheckpointSelector, DEFAULT_PROJECT};
use bdnfs::mirror::Mirror;
use clap::Subcommand;

use crate::access::{AccessArgs, option_name};
use crate::mirror::{self, MirrorArgs};
use crate::runtime;

mod get;
mod ls;
mod model;
mod push;
mod rm;
mod show;
mod wait;

/// The arguments of `bdnfs checkpoint`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointCommandArgs {
    #[command(subcommand)]
    command: CheckpointCommand,
}

#[derive(Debug, Subcommand)]
enum CheckpointCommand {
    /// List saved checkpoints
    Ls(ls::CheckpointListArgs),
    /// Show a checkpoint, or the weights entry that serves it
    Show(show::CheckpointShowArgs),
    /// Wait until a checkpoint is saved, or complete
    Wait(wait::CheckpointWaitArgs),
    /// Download a checkpoint into a directory
    Get(get::CheckpointGetArgs),
    /// Save a directory as a checkpoint, without a job
    Push(push::CheckpointPushArgs),
    /// Remove a checkpoint from the mirror; `bdnfs mirror gc` frees its space
    Rm(rm::CheckpointRemoveArgs),
}

const EXAMPLES: &str = "Examples:
  bdnfs checkpoint ls --project llama --mirror s3://mirror
  bdnfs checkpoint show bt://llama/checkpoint-500 --weights
  bdnfs checkpoint push ./out/checkpoint-500 --project llama --name checkpoint-500
  bdnfs mount bt://llama /mnt/latest --mirror s3://mirror";

/// The mirror with the checkpoints.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct CheckpointMirrorArgs {
    /// Project of the jobs
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// ID of the job
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    #[command(flatten)]
    mirror: MirrorArgs,
    #[command(flatten)]
    access: AccessArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl CheckpointMirrorArgs {
    /// Opens the mirror, whether or not it exists.
    fn open_or_create(&self) -> Result<Mirror> {
        self.access.check(&[], self.mirror.uri(), option_name)?;
        let request = self.mirror.request_or_default(&self.access, &[])?;
        Ok(bdnfs_agent::mirror::open(&request, std::env::temp_dir())?)
    }

    /// Opens the mirror, which must exist.
    async fn open(&self) -> Result<Mirror> {
        self.access.check(&[], self.mirror.uri(), option_name)?;
        let request = self.mirror.request_or_default(&self.access, &[])?;
        mirror::open_existing(&request, "name the one that the jobs save into with --mirror").await
    }

    /// The project that is named.
    fn project(&self) -> &str {
        self.project.as_deref().unwrap_or(DEFAULT_PROJECT)
    }

    /// The checkpoint that `name` refers to, by its name or `bt://`.
    fn selector(&self, name: &str) -> Result<CheckpointSelector> {
        if name.contains("://") {
            if self.project.is_some() || self.job.is_some() {
                bail!("{name} names its project and job itself: leave --project and --job out");
            }
            return Ok(name.parse()?);
        }
        let (project, job) = (self.project().to_owned(), self.job.clone());
        Ok(CheckpointSelector { project, job, name: Some(name.to_owned()), rank: 0 })
    }
}

/// Whether a checkpoint is all there, in a word.
fn state(group: &CheckpointGroup) -> &'static str {
    match (group.is_whole(), group.is_complete()) {
        (false, _) => "ranks missing",
        (true, false) => "incomplete",
        (true, true) => "complete",
    }
}

/// The source that mounts all that rank 0 saved of a checkpoint. Where that is what it was when it was last complete, it is the
/// latest of its job: its name stands for what was saved since.
fn source(group: &CheckpointGroup) -> String {
    let id = &group.rank(0).unwrap_or(&group.ranks()[0]).id;
    if !group.is_earlier() {
        return id.to_string();
    }
    let (project, job) = (id.project().to_owned(), Some(id.job().to_owned()));
    CheckpointSelector { project, job, name: None, rank: id.rank() }.to_string()
}

/// Runs the subcommand.
pub fn run(args: CheckpointCommandArgs) -> Result<()> {
    match args.command {
        CheckpointCommand::Ls(args) => runtime::block_on_threads(ls::run(args)),
        CheckpointCommand::Show(args) => runtime::block_on_threads(show::run(args)),
        CheckpointCommand::Wait(args) => runtime::block_on_threads(wait::run(args)),
        CheckpointCommand::Get(args) => runtime::block_on_threads(get::run(args)),
        CheckpointCommand::Push(args) => runtime::block_on_threads(push::run(args)),
        CheckpointCommand::Rm(args) => runtime::block_on_threads(rm::run(args)),
    }
}
