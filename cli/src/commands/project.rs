//! `bdnfs project`: the training caches of projects and teams on this node.

use std::path::PathBuf;

use anyhow::Result;
use bdnfs_agent::VolumeConfig;
use bdnfs_agent::api::DEFAULT_TENANT;
use bdnfs_agent::volumes::cache_home::{CacheHome, CacheScope};
use clap::Subcommand;

mod ls;
mod rm;
mod summarize;

/// The arguments of `bdnfs project`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ProjectCommandArgs {
    #[command(subcommand)]
    command: ProjectCommand,
}

#[derive(Debug, Subcommand)]
enum ProjectCommand {
    /// List the caches on this node
    Ls(ls::ProjectListArgs),
    /// Show what a cache holds
    Summarize(summarize::ProjectSummarizeArgs),
    /// Remove a cache from this node
    Rm(rm::ProjectRemoveArgs),
}

const EXAMPLES: &str = "Examples:
  bdnfs project ls
  bdnfs project summarize llama --sort size --order desc
  bdnfs project rm llama";

/// The cache directory with the caches.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct CacheHomeArgs {
    /// Tenant that the project or team belongs to
    #[arg(long, value_name = "NAME", default_value = DEFAULT_TENANT)]
    tenant: String,
    /// Directory of all volumes: [volumes] dir of the agent. Default: /var/lib/bdnfs/volumes
    #[arg(long, value_name = "DIR")]
    volumes_dir: Option<PathBuf>,
}

impl CacheHomeArgs {
    fn directory(&self) -> PathBuf {
        self.volumes_dir.clone().unwrap_or_else(|| VolumeConfig::default().dir)
    }

    /// All caches of the tenant.
    fn all(&self) -> Result<Vec<CacheHome>> {
        bdnfs::source::tenant::check(&self.tenant)?;
        Ok(CacheHome::all(&self.directory(), &self.tenant))
    }

    /// The cache of a project, or of a team.
    fn of(&self, name: &str, is_team: bool) -> Result<CacheHome> {
        bdnfs::source::tenant::check(&self.tenant)?;
        let scope = if is_team { CacheScope::Team } else { CacheScope::Project };
        Ok(CacheHome::new(&self.directory(), &self.tenant, scope, name))
    }
}

/// Runs the subcommand.
pub fn run(args: &ProjectCommandArgs) -> Result<()> {
    match &args.command {
        ProjectCommand::Ls(args) => ls::run(args),
        ProjectCommand::Summarize(args) => summarize::run(args),
        ProjectCommand::Rm(args) => rm::run(args),
    }
}
