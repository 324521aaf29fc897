//! `bdnfs project`: the training caches of projects and teams on this node.

use std::path::PathBuf;

use anyhow::Result;
use bdnfs::mirror::Mirror;
use bdnfs_agent::VolumeConfig;
use bdnfs_agent::api::DEFAULT_TENANT;
use bdnfs_agent::volumes::cache_home::{CacheHome, CacheScope};
use clap::Subcommand;

use crate::access::{AccessArgs, option_name};
use crate::mirror::MirrorArgs;
use crate::runtime;

mod forget;
mod key;
mod ls;
mod rm;
mod save;
mod show;
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
    /// Show on which nodes a cache lies, and what of it is saved
    Show(show::ProjectShowArgs),
    /// Save a cache in a mirror
    Save(save::ProjectSaveArgs),
    /// Print the affinity of pods that prefer nodes which have a cache, for `bdnfs csi --locality`
    Key(key::ProjectKeyArgs),
    /// Give up the unsaved changes of a node that is gone
    Forget(forget::ProjectForgetArgs),
    /// Remove a cache from this node, and what a mirror has of it
    Rm(rm::ProjectRemoveArgs),
}

const EXAMPLES: &str = "Examples:
  bdnfs project ls
  bdnfs project summarize llama --sort size --order desc
  bdnfs project show llama --mirror s3://mirror
  bdnfs project save llama --mirror s3://mirror
  bdnfs project rm llama --mirror s3://mirror";

/// The options that name a cache.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct CacheNameArgs {
    /// Name of the project, or with --team of the team
    #[arg(value_name = "NAME")]
    name: String,
    /// The cache of a team
    #[arg(long)]
    team: bool,
}

/// The options that name the directory of a tenant's caches.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct CacheHomeArgs {
    /// Tenant that the project or team belongs to
    #[arg(long, value_name = "NAME", default_value = DEFAULT_TENANT)]
    tenant: String,
    /// Directory of all volumes: [projects] dir or [volumes] dir of the agent. Default: /var/lib/bdnfs/volumes
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

    /// The home of a cache of the tenant.
    fn home(&self, cache: &CacheNameArgs) -> Result<CacheHome> {
        bdnfs::source::tenant::check(&self.tenant)?;
        let scope = if cache.team { CacheScope::Team } else { CacheScope::Project };
        Ok(CacheHome::new(&self.directory(), &self.tenant, scope, &cache.name).detect_shared_file_system())
    }
}

/// The options that name a cache and the mirror that it is saved in.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct CacheMirrorArgs {
    #[command(flatten)]
    cache: CacheNameArgs,
    /// Directory of all volumes: [projects] dir or [volumes] dir of the agent. Default: /var/lib/bdnfs/volumes
    #[arg(long, value_name = "DIR")]
    volumes_dir: Option<PathBuf>,
    #[command(flatten)]
    mirror: MirrorArgs,
    #[command(flatten)]
    access: AccessArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl CacheMirrorArgs {
    /// The home of the cache.
    fn home(&self) -> Result<CacheHome> {
        let tenant = self.mirror.tenant().unwrap_or(DEFAULT_TENANT).to_owned();
        CacheHomeArgs { tenant, volumes_dir: self.volumes_dir.clone() }.home(&self.cache)
    }

    /// Opens the mirror that is named, if any. It need not exist.
    async fn open(&self, home: &CacheHome) -> Result<Option<Mirror>> {
        self.access.check(&[], self.mirror.uri(), option_name)?;
        let request = self.mirror.request(&self.access, &[])?;
        let scratch = if home.exists() { home.path().to_owned() } else { std::env::temp_dir() };
        let mirror = request.map(|request| bdnfs_agent::mirror::open(&request, scratch)).transpose()?;
        if let Some(mirror) = &mirror {
            mirror.check_format().await?;
        }
        Ok(mirror)
    }
}

/// Runs the subcommand.
pub fn run(args: ProjectCommandArgs) -> Result<()> {
    match args.command {
        ProjectCommand::Ls(args) => ls::run(&args),
        ProjectCommand::Key(args) => key::run(&args),
        ProjectCommand::Summarize(args) => summarize::run(&args),
        ProjectCommand::Show(args) => runtime::block_on_threads(show::run(args)),
        ProjectCommand::Forget(args) => runtime::block_on_threads(forget::run(args)),
        ProjectCommand::Save(args) => runtime::block_on_threads(save::run(args)),
        ProjectCommand::Rm(args) => runtime::block_on_threads(rm::run(args)),
    }
}
