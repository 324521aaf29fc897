//! Volumes: the directories of the node's disk that jobs write to.
//!
//! ```text
//! <volumes>/<tenant>/jobs/<id>/scratch       what a job needs while it runs; gone when it has ended
//!                             /checkpoints   what is to outlive it
//!                             /loaded        empty directories, on which the checkpoints that it resumes from are mounted
//!                   /caches/{project,team}/<name>/tree   what its jobs share, and the next ones find
//!                   /trash/                  what is being removed
//! ```
//!
//! They are bound into the namespace of their job, so writing is as fast as the disk, and nothing of bdnfs is
//! on the way. A process that uses the volume of a job (its supervisor, its saver) holds its directory
//! locked, shared: one that is neither locked nor needed by a job of this agent was left by a crash.

pub mod cache_home;
pub mod cache_sync;
pub mod file_list;
pub mod flock_probe;
mod home_eviction;
mod home_mirrors;
mod home_usage;
pub mod home_users;
mod node_identity;
mod shared_io;
mod shared_root;
mod trash;
mod usage;
mod volume_config;
mod volume_lock;
mod volume_space;

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::iter;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bdnfs::cache::node::NodeCache;
use bdnfs::error::{Error, Kind, Result};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use tokio::sync::watch;

use crate::context::Context;
use cache_home::{CacheHome, CacheScope};
pub use home_eviction::HomeEvictions;
use home_mirrors::HomeMirrors;
pub use home_mirrors::{MirrorOpener, NamedMirror};
use shared_io::SharedIo;
pub use usage::{measure_pause, occupied};
pub use volume_config::VolumeConfig;
pub use volume_lock::{is_locked, lock, try_lock};
pub use volume_space::{SPACE_CHECK_INTERVAL, VolumeSpace};

/// The path of a job's scratch directory, as on the platform.
pub const SCRATCH_PLACE: &str = "/mnt/bt-scratch";
/// The path of its checkpoint directory, unless it names another.
pub const CHECKPOINT_PLACE: &str = "/mnt/ckpts";
/// The directory of a tenant's jobs, in that of the tenant.
const VOLUME_JOBS_DIRECTORY: &str = "jobs";
/// The directory of what is being removed, in that of the tenant.
const TRASH_DIRECTORY: &str = "trash";

/// The volumes of a node.
#[derive(Debug)]
pub struct Volumes {
    config: VolumeConfig,
    space: VolumeSpace,
    /// Held by the one who evicts homes.
    eviction: Mutex<()>,
    /// The mirrors that are asked before homes are evicted.
    mirrors: HomeMirrors,
    /// The access to the shared directory.
    shared_io: SharedIo,
    /// The fault of the locks of the shared directory.
    flock_fault: watch::Sender<Option<String>>,
}

impl Volumes {
    /// The volumes of an agent with this `cache`.
    ///
    /// # Errors
    /// [`Kind::Invalid`] where one of the directories lies in the other: a cache may be deleted at any time.
    pub fn new(config: VolumeConfig, cache: &NodeCache) -> Result<Self> {
        let space = VolumeSpace::new(&config.dir, cache);
        let (cache, dir) = (&shared_root::resolve(cache.root()), shared_root::resolve(&config.dir));
        let is_within = |a: &Path, b: &Path| a.starts_with(b) || b.starts_with(a);
        if let Some(shared) = config.shared_dir.as_deref().map(shared_root::resolve)
            && (is_within(&shared, cache) || is_within(&shared, &dir))
        {
            let (shared, dir, cache) = (shared.display(), dir.display(), cache.display());
            let text = format!(
                "the directory of projects {shared} must lie neither in the directory of volumes {dir} nor in the cache {cache}, \
                 nor they in it; choose another with [projects] dir"
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        if is_within(&dir, cache) {
            let (dir, cache) = (dir.display(), cache.display());
            let text = format!(
                "the directory of volumes {dir} and the cache {cache} lie in each other, and a cache may be deleted at any \
                 time; choose another with [volumes] dir"
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        Ok(Self {
            config,
            space,
            eviction: Mutex::default(),
            mirrors: HomeMirrors::default(),
            shared_io: SharedIo::default(),
            flock_fault: watch::Sender::default(),
        })
    }

    /// The directory of all volumes.
    pub fn directory(&self) -> &Path {
        &self.config.dir
    }

    /// The directory of homes on a file system that other nodes have, too, if there is one.
    pub fn shared_directory(&self) -> Option<&Path> {
        self.config.shared_dir.as_deref()
    }

    /// Waits until the locks of the shared directory are known not to hold between nodes, and says why.
    pub async fn await_flock_fault(&self) -> String {
        let mut faults = self.flock_fault.subscribe();
        // The sender lives as long as `self`.
        let fault = faults.wait_for(Option::is_some).await.map(|fault| fault.clone());
        fault.ok().flatten().unwrap_or_default()
    }

    /// The space on their disk.
    pub fn space(&self) -> &VolumeSpace {
        &self.space
    }

    /// The configuration of volumes.
    pub fn config(&self) -> &VolumeConfig {
        &self.config
    }

    /// The most that the cache with this `home` may occupy, in bytes.
    pub fn cache_limit(&self, home: &CacheHome) -> u64 {
        let limits = match home.scope() {
            CacheScope::Project => &self.config.project_limits,
            CacheScope::Team => &self.config.team_limits,
        };
        limits.get(home.name()).copied().unwrap_or(self.config.cache_limit)
    }

    /// The home of the cache of `name`, a project or a team of `tenant`.
    pub fn cache_home(&self, tenant: &str, scope: CacheScope, name: &str) -> CacheHome {
        self.cache_home_in(self.shared_directory().unwrap_or(&self.config.dir), tenant, scope, name)
    }

    /// The same, as it lies in `directory`: that of all volumes or of homes that nodes share, by this configuration or an earlier
    /// one.
    pub fn cache_home_in(&self, directory: &Path, tenant: &str, scope: CacheScope, name: &str) -> CacheHome {
        let home = CacheHome::new(directory, tenant, scope, name);
        if directory == self.config.dir { home } else { home.on_shared_file_system() }
    }

    /// The homes of all tenants on this node, with their tenants; none of those that nodes share. Touches the local disk.
    pub fn own_homes(&self) -> Vec<(String, CacheHome)> {
        let tenants = subdirectories(&self.config.dir);
        let names = tenants.iter().filter_map(|tenant| tenant.file_name()?.to_str());
        let homes = names.flat_map(|tenant| {
            CacheHome::all(&self.config.dir, tenant).into_iter().map(|home| (tenant.to_owned(), home))
        });
        homes.collect()
    }

    /// The volume of the job `id` of `tenant`, which may not exist.
    pub fn of_job(&self, tenant: &str, id: &str) -> JobVolume {
        let tenant = self.config.dir.join(tenant);
        JobVolume {
            path: tenant.join(VOLUME_JOBS_DIRECTORY).join(id),
            trash: tenant.join(TRASH_DIRECTORY),
            id: id.into(),
        }
    }

    /// Whether nothing lies in their directory, as where a disk is not mounted. Touches the local disk.
    pub fn is_empty(&self) -> bool {
        fs::read_dir(&self.config.dir).map_or(true, |mut entries| entries.next().is_none())
    }

    /// Removes what a crash has left: the trash, and unlocked scratch directories, except those of the jobs `needed`. The rest is
    /// removed in the background. Touches the local disk.
    pub fn remove_leftovers(&self, needed: &HashSet<PathBuf>) {
        for (_, volume) in self.of_jobs() {
            if !needed.contains(&volume.path) {
                volume.retire(false);
            }
        }
        for directory in iter::once(self.directory()).chain(self.shared_directory()) {
            for tenant in subdirectories(directory) {
                // On a shared file system others may have directories beside those of tenants.
                if directory == self.directory() || tenant.join(cache_home::CACHES_DIRECTORY).is_dir() {
                    trash::empty(tenant.join(TRASH_DIRECTORY));
                }
            }
        }
    }

    /// The volumes of jobs that there are, with their tenants. Touches the local disk.
    pub fn of_jobs(&self) -> Vec<(String, JobVolume)> {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let jobs = subdirectories(&self.config.dir).into_iter().flat_map(|tenant| {
            let tenant = name(&tenant);
            let ids = subdirectories(&self.config.dir.join(&tenant).join(VOLUME_JOBS_DIRECTORY));
            ids.into_iter().map(move |job| (tenant.clone(), name(&job)))
        });
        jobs.map(|(tenant, id)| (tenant.clone(), self.of_job(&tenant, &id))).collect()
    }
}

/// The volume of one job.
#[derive(Clone, Debug)]
pub struct JobVolume {
    path: PathBuf,
    trash: PathBuf,
    id: String,
}

impl JobVolume {
    /// The directory of the volume.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The id of the job.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The scratch directory.
    pub fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    /// The directory on which the checkpoints are mounted that the job resumes from.
    pub fn loaded(&self) -> PathBuf {
        self.path.join("loaded")
    }

    /// The checkpoint directory.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Creates its `directories`, for their owner alone, and locks it, so that nobody clears it. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Busy`] where another job of this id runs on this node; [`Kind::Disk`].
    pub fn create(&self, directories: &[PathBuf]) -> Result<File> {
        let failed = || format!("cannot create the volume {}", self.path.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path).with_context(failed)?;
        let taken =
            || format!("a job with the id {} runs on this node already; choose another --id", self.id);
        let lock = match self.lock(FlockOperation::NonBlockingLockExclusive) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(Error::new(Kind::Busy, taken())),
            lock => lock.with_context(failed)?,
        };
        for directory in directories {
            DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(failed)?;
        }
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).with_context(failed)?;
        Ok(lock)
    }

    /// Locks it, shared or exclusive.
    ///
    /// # Errors
    /// The disk's own, or that another process has locked it.
    pub fn lock(&self, how: FlockOperation) -> io::Result<File> {
        lock(&self.path, how)
    }

    /// Moves what only the commands of a job needed into the trash at once, and removes it in the background. Call it when they
    /// have ended; its saver may run. Touches the local disk.
    pub fn remove_scratch(&self) {
        self.move_all(&[self.scratch(), self.loaded()]);
        self.empty_trash();
    }

    fn move_all(&self, directories: &[PathBuf]) {
        for directory in directories {
            if let Err(error) = trash::move_into(directory, &self.trash, &self.id) {
                tracing::warn!("cannot remove {}: {error}", directory.display());
            }
        }
    }

    /// Moves what a job leaves into the trash at once, however much it is, and removes it in the background.
    /// Checkpoints stay unless all `is_saved`, and all of it while somebody holds it. Touches the local disk.
    pub fn retire(&self, is_saved: bool) {
        if self.move_to_trash(is_saved).is_some() {
            self.empty_trash();
        }
    }

    /// Moves what a job leaves into the trash, as [`retire`](Self::retire) does, where it stays as long as the returned lock lives.
    /// `None` where somebody holds it. Touches the local disk.
    pub fn move_to_trash(&self, is_saved: bool) -> Option<File> {
        let lock = self.lock(FlockOperation::NonBlockingLockExclusive).ok()?;
        let all = if is_saved { vec![self.path.clone()] } else { vec![self.scratch(), self.loaded()] };
        self.move_all(&all);
        // Directories that are not empty stay.
        let _ = fs::remove_dir(self.checkpoints());
        let _ = fs::remove_dir(&self.path);
        Some(lock)
    }

    /// Removes what is in the trash and not locked, in the background.
    pub fn empty_trash(&self) {
        trash::empty(self.trash.clone());
    }
}

/// The directories in `path`, no links among them.
fn subdirectories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use bdnfs::cache::Limits;

    use super::*;

    /// The cache in `root`, without limits.
    pub fn node_cache(root: &Path) -> NodeCache {
        let limits = Limits { capacity: None, reserve: 0 };
        NodeCache::open(root, limits, BTreeMap::new(), SystemTime::now).unwrap().0
    }

    /// Volumes in `home`, beside the cache.
    pub fn volumes(home: &Path) -> Volumes {
        let config = VolumeConfig { dir: home.join("volumes"), ..Default::default() };
        Volumes::new(config, &node_cache(&home.join("cache"))).unwrap()
    }

    #[test]
    fn volumes_in_the_cache_or_around_it_are_refused() {
        let own = ["volumes", "shared", "cache"];
        for [dir, shared, cache] in [
            ["cache/volumes", "shared", "cache"],
            ["volumes", "shared", "volumes/cache"],
            ["volumes", "volumes/shared", "cache"],
            ["volumes", "cache/shared", "cache"],
            ["x/volumes", "x", "cache"],
            own,
        ] {
            let home = tempfile::tempdir().unwrap();
            let shared_dir = Some(home.path().join(shared));
            let config = VolumeConfig { dir: home.path().join(dir), shared_dir, ..Default::default() };
            if [dir, shared, cache] == own {
                assert!(Volumes::new(config, &node_cache(&home.path().join(cache))).is_ok());
                continue;
            }
            let error = Volumes::new(config, &node_cache(&home.path().join(cache))).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{error}");
        }
    }

    #[test]
    fn remove_leftovers_spares_locked_and_needed_volumes() {
        let home = tempfile::tempdir().unwrap();
        let volumes = volumes(home.path());
        let of = |id: &str| {
            let volume = volumes.of_job("default", id);
            let lock = volume.create(&[volume.scratch()]).unwrap();
            fs::write(volume.scratch().join("file"), id).unwrap();
            (volume, lock)
        };
        let ((held, _lock), (needed, _), (left, _)) = (of("held"), of("needed"), of("left"));
        volumes.remove_leftovers(&HashSet::from([needed.path().to_owned()]));
        assert!(held.scratch().exists() && needed.scratch().exists());
        assert!(!left.path().exists());
    }

    #[test]
    fn create_of_a_volume_in_use_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let volume = volumes(home.path()).of_job("default", "x");
        let lock = volume.create(&[volume.scratch()]).unwrap();
        assert_eq!(volume.create(&[]).unwrap_err().kind(), Kind::Busy);
        drop(lock);
        assert!(volume.create(&[]).is_ok());
    }
}
