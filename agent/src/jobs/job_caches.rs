//! The training caches of a job: which homes they are, where the job sees them, and when it can't have them.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bdnfs::error::{Error, Kind, Result};
use bdnfs::weights::is_cache_base;

use super::job::Job;
use super::job_services::JobServices;
use crate::api::job::{JobRequest, TrainingCache};
use crate::context::Context;
use crate::volumes::SCRATCH_PLACE;
use crate::volumes::cache_home::{CacheHome, CacheScope};

/// The directory of the Hub's library in the cache of a project.
const HUB_DIRECTORY: &str = "huggingface";

/// The caches of a job.
pub struct JobCaches {
    cache: TrainingCache,
    project: CacheHome,
    team: CacheHome,
    is_team_named: bool,
}

impl JobCaches {
    /// The caches of `job`, if it asks for any.
    pub fn of(services: &JobServices, job: &Job) -> Option<Self> {
        let (cache, training) = (job.request().cache.clone()?, &job.request().training);
        let home = |scope, name| services.volumes.cache_home(services.tenant_of(job), scope, name);
        let project = home(CacheScope::Project, training.project());
        let team = home(CacheScope::Team, training.team());
        Some(Self { cache, project, team, is_team_named: training.team.is_some() })
    }

    /// The homes of the caches.
    pub fn homes(&self) -> impl Iterator<Item = &CacheHome> {
        [&self.project, &self.team].into_iter()
    }

    /// Whether the job must begin with the newest state of `home`. Not with that of a team that it does not name: jobs of any
    /// project would wait for each other.
    pub fn needs_newest(&self, home: &CacheHome) -> bool {
        self.cache.require_cache_affinity && (home.scope() == CacheScope::Project || self.is_team_named)
    }

    /// The bind mounts: what is bound, and where.
    pub fn binds(&self) -> Vec<(PathBuf, PathBuf)> {
        let hub = self.cache.hub_path().map(|place| (self.hub_directory(), place));
        let project = (self.project.tree(), self.cache.project_path());
        [project, (self.team.tree(), self.cache.team_path())].into_iter().chain(hub).collect()
    }

    /// Creates the directory of the Hub's library in the home of the project, which is there, if it is to be bound. Touches the
    /// local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn create_hub_directory(&self) -> Result<()> {
        if self.cache.enable_legacy_hf_mount { create_unless_there(&self.hub_directory()) } else { Ok(()) }
    }

    fn hub_directory(&self) -> PathBuf {
        self.project.tree().join(HUB_DIRECTORY)
    }
}

/// Creates a directory, which another job, of this node or another, may create at the same time.
fn create_unless_there(directory: &Path) -> Result<()> {
    let failed = || format!("cannot create {}", directory.display());
    // A link that a job put there can't be bound.
    let is_there = || fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir());
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && is_there() => Ok(()),
        created => created.with_context(failed),
    }
}

/// The variables that name the caches.
pub fn variables(cache: &TrainingCache) -> [(&'static str, String); 3] {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let project = text(cache.project_path());
    [
        ("BT_PROJECT_CACHE_DIR", project.clone()),
        ("BT_RW_CACHE_DIR", project),
        ("BT_TEAM_CACHE_DIR", text(cache.team_path())),
    ]
}

/// Refuses a job that can't have the caches that it asks for, on nodes where these are `shared` or not.
///
/// # Errors
/// [`Kind::Invalid`].
pub fn check(request: &JobRequest, shared: bool) -> Result<()> {
    let Some(cache) = &request.cache else { return Ok(()) };
    let invalid = |text: String| Err(Error::new(Kind::Invalid, text));
    if !is_cache_base(&cache.mount_base_path) {
        let base = cache.mount_base_path.display();
        return invalid(format!("mount_base_path {base}: must be an absolute path without '..'"));
    }
    if request.training.nodes > 1 && cache.require_cache_affinity && !shared {
        return invalid(format!(
            "the job runs on {} nodes, which have no cache in common; name a directory of a shared file system in [projects] of \
             their agents, or set require_cache_affinity to false, and each has its own",
            request.training.nodes
        ));
    }
    let caches = cache.paths();
    let shown = request.shown_sources()?.into_iter().filter(|shown| !shown.is_in_cache(&caches));
    let others = shown.map(|shown| shown.place);
    let others = others.chain(request.load.as_ref().map(|load| load.download_folder.clone()));
    check_cache_places(cache, &others.collect::<Vec<_>>())
}

/// Refuses caches that hide, or are hidden by, a directory of `others` or the scratch directory. `others` are the directories of
/// the job's sources and checkpoints, without repositories of the Hub, which may lie in a cache.
///
/// # Errors
/// [`Kind::Invalid`].
pub fn check_cache_places(cache: &TrainingCache, others: &[PathBuf]) -> Result<()> {
    let scratch = PathBuf::from(SCRATCH_PLACE);
    let others: Vec<_> = others.iter().chain([&scratch]).collect();
    for place in cache.paths() {
        if let Some(other) = others.iter().find(|other| other.starts_with(&place) || place.starts_with(other))
        {
            let (other, place) = (other.display(), place.display());
            let text = format!("{other} and the cache at {place} hide each other; choose another place");
            return Err(Error::new(Kind::Invalid, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_that_several_jobs_create_at_once_is_there_for_each_and_a_link_is_none() {
        let home = tempfile::tempdir().unwrap();
        for round in 0..100 {
            let directory = home.path().join(round.to_string());
            std::thread::scope(|scope| {
                let jobs = [(); 4].map(|()| scope.spawn(|| create_unless_there(&directory)));
                jobs.into_iter().for_each(|job| job.join().unwrap().unwrap());
            });
        }
        std::os::unix::fs::symlink("0", home.path().join("link")).unwrap();
        assert_eq!(create_unless_there(&home.path().join("link")).unwrap_err().kind(), Kind::Disk);
    }
}
