//! Cache homes: the training cache of a project or a team on this node, one directory for all its jobs, which outlives them.
//!
//! ```text
//! <volumes>/<tenant>/caches/project/<name>/tree
//!                          /team/<name>/tree
//! ```
//!
//! A user of a home holds it locked ([`super::home_users`]). Who begins or ends to use it holds the use lock, so that there is a
//! first and a last user; who pulls or saves it holds the sync lock.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bdnfs::checkpoint::encoded_name::{decode, encode};
use bdnfs::error::Result;
use bdnfs::mirror::catalog::HOME_SCHEME;
use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, flock};

use super::{TRASH_DIRECTORY, shared_root, subdirectories, trash};
pub use crate::api::cache_scope::CacheScope;
use crate::context::Context;

/// The directory of a tenant's homes, in that of the tenant.
pub(super) const CACHES_DIRECTORY: &str = "caches";
/// The file beside the tree with the state.
pub(super) const SYNC_STATE_FILE: &str = "sync.json";
/// The file in a home that is locked while a user begins or ends to use it.
const USE_LOCK_FILE: &str = "turn.lock";
/// The file in a home that is locked while it is pulled or saved, and was last written when that last began.
const SYNC_FILE: &str = "sync.lock";
/// The file in a home whose last user saves it, whoever that is.
const OWED_FILE: &str = "owed";
/// The file in a home that is locked by the one who tries again to save it.
const RETRY_LOCK_FILE: &str = "retry.lock";
/// The file in a home on a shared file system that is locked while a node counts what it occupies.
const USAGE_LOCK_FILE: &str = "usage.lock";
/// The file in a home on a shared file system that its users hold locked.
pub(super) const USERS_FILE: &str = "users.lock";

/// The home of a cache, which may not exist.
#[derive(Clone, Debug)]
pub struct CacheHome {
    scope: CacheScope,
    name: String,
    path: PathBuf,
    trash: PathBuf,
    volumes: PathBuf,
    is_shared: bool,
}

impl CacheHome {
    /// The home of the cache of `name`, a project or a team of `tenant`, in the directory of all volumes.
    pub fn new(volumes: &Path, tenant: &str, scope: CacheScope, name: &str) -> Self {
        let tenant = volumes.join(tenant);
        let path = tenant.join(CACHES_DIRECTORY).join(scope.as_str()).join(encode(name));
        let (trash, volumes) = (tenant.join(TRASH_DIRECTORY), volumes.to_owned());
        Self { scope, name: name.into(), path, trash, volumes, is_shared: false }
    }

    /// The same, on a file system that other nodes have, too.
    pub fn on_shared_file_system(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// The home as one on a shared file system, if it is there and such a one, for commands that know no configuration. Touches its
    /// disk.
    pub fn detect_shared_file_system(self) -> Self {
        if self.path.join(USERS_FILE).exists() { self.on_shared_file_system() } else { self }
    }

    /// The homes of a tenant in the directory of all volumes: those of projects first, by their names. Touches the local disk.
    pub fn all(volumes: &Path, tenant: &str) -> Vec<Self> {
        let mut homes = Vec::new();
        for scope in [CacheScope::Project, CacheScope::Team] {
            let directories =
                subdirectories(&volumes.join(tenant).join(CACHES_DIRECTORY).join(scope.as_str()));
            let encoded = directories.iter().filter_map(|path| decode(path.file_name()?.to_str()?));
            let mut names: Vec<_> = encoded.collect();
            names.sort();
            let found = names.iter().map(|name| Self::new(volumes, tenant, scope, name));
            homes.extend(found.map(Self::detect_shared_file_system));
        }
        homes
    }

    /// The scope of the cache.
    pub fn scope(&self) -> CacheScope {
        self.scope
    }

    /// The name of the project or team.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The source name of the cache in a mirror.
    pub fn source(&self) -> String {
        format!("{HOME_SCHEME}{}/{}", self.scope.as_str(), encode(&self.name))
    }

    /// The directory of the home.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it lies on a file system that other nodes have, too.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The directory that jobs see.
    pub fn tree(&self) -> PathBuf {
        self.path.join("tree")
    }

    /// Whether it exists. Touches the local disk.
    pub fn exists(&self) -> bool {
        self.tree().is_dir()
    }

    /// Whether it was never used, or removed since. Touches the local disk.
    pub fn is_new(&self) -> bool {
        self.synced_ago().is_none()
    }

    /// Takes the lock to begin or to end to use it; `None` while another process has it. It is given back when the file is closed.
    /// Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn try_use_lock(&self) -> Result<Option<File>> {
        self.try_lock(USE_LOCK_FILE)
    }

    /// Takes the lock to pull or to save it; `None` while another process has it. It is given back when the file is closed. Touches
    /// the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn try_sync_lock(&self) -> Result<Option<File>> {
        let lock = self.try_idle_sync_lock()?;
        if let Some(lock) = &lock {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            rustix::fs::futimens(lock, &times)
                .with_context(|| format!("cannot lock {}", self.path.display()))?;
        }
        Ok(lock)
    }

    /// Like [`try_sync_lock`](Self::try_sync_lock), for a user that neither pulls nor saves the home.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn try_idle_sync_lock(&self) -> Result<Option<File>> {
        self.try_lock(SYNC_FILE)
    }

    /// Takes the lock to try again and again to save it; `None` while another process has it. It is given back when the file is
    /// closed. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn try_retry_lock(&self) -> Result<Option<File>> {
        self.try_lock(RETRY_LOCK_FILE)
    }

    /// Takes the lock to count what it occupies; `None` while another process has it. Touches its disk.
    pub(super) fn try_usage_lock(&self) -> Result<Option<File>> {
        self.try_lock(USAGE_LOCK_FILE)
    }

    /// Marks the home's save as pending: a user whose changes are to be saved has left that to the home's other users. Touches the
    /// local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk), [`Kind::NoSpace`](bdnfs::error::Kind::NoSpace).
    pub fn mark_save_pending(&self) -> Result<()> {
        let owed = File::create(self.path.join(OWED_FILE));
        owed.map(drop).with_context(|| format!("cannot write to {}", self.path.display()))
    }

    /// Whether a save of the home is pending, left by a user to others. Touches the local disk.
    pub fn is_save_pending(&self) -> bool {
        self.path.join(OWED_FILE).exists()
    }

    /// Clears the mark of a pending save: the home is saved. Touches the local disk.
    pub(super) fn clear_pending_save(&self) -> Result<()> {
        match fs::remove_file(self.path.join(OWED_FILE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot write to {}", self.path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the time since it was last pulled or saved, or since that began; `None` where it never was. Touches the local disk.
    pub fn synced_ago(&self) -> Option<Duration> {
        let synced = fs::metadata(self.path.join(SYNC_FILE)).and_then(|found| found.modified()).ok()?;
        // Where the clock was set back since, by how much: nothing is known, and the next save must not wait for that time to come.
        Some(synced.elapsed().unwrap_or_else(|later| later.duration()))
    }

    fn try_lock(&self, name: &str) -> Result<Option<File>> {
        let failed = || format!("cannot lock {}", self.path.display());
        self.create_tree().with_context(failed)?;
        let (path, file) = (self.path.join(name), self.open_lock_file(name).with_context(failed)?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Removed with the home meanwhile: the next one is another file.
            Ok(()) => Ok(is_at(&file, &path).with_context(failed)?.then_some(file)),
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => Ok(None),
            Err(error) => Err(error).with_context(failed),
        }
    }

    /// Opens one of its lock files, which is made where it is not there.
    fn open_lock_file(&self, name: &str) -> io::Result<File> {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        // The open of a pipe would wait for its other end.
        let file = options.custom_flags(libc::O_NONBLOCK).open(self.path.join(name))?;
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other(format!("{name} is not a regular file: remove it"))),
        }
    }

    /// Whether there is a home without the directory that jobs see.
    fn is_lost(&self) -> bool {
        let tree = fs::symlink_metadata(self.tree());
        self.path.is_dir() && tree.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    }

    /// Makes the directory that jobs see, for its owner alone.
    pub(super) fn create_tree(&self) -> io::Result<()> {
        if self.is_shared {
            shared_root::check(&self.volumes)?;
        }
        let make = || DirBuilder::new().recursive(true).mode(0o700).create(self.tree());
        if self.is_lost() {
            let lock = self.open_lock_file(SYNC_FILE)?;
            // Whoever has the lock takes it away by intent, and notes what it is then.
            let is_free = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
            if is_free && self.is_lost() {
                // What it was equal to is lost with it: compared with that, all of it would count as removed.
                match fs::remove_file(self.path.join(SYNC_STATE_FILE)) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => make()?,
                }
            }
        }
        make()?;
        if self.is_shared {
            self.open_lock_file(USERS_FILE)?;
        }
        Ok(())
    }

    /// The directory of all volumes.
    pub fn volumes(&self) -> &Path {
        &self.volumes
    }

    /// The trash of its tenant.
    pub(super) fn trash(&self) -> &Path {
        &self.trash
    }

    /// Moves `path`, which lies in it, into the trash.
    pub(super) fn move_to_trash(&self, path: &Path) -> io::Result<()> {
        trash::move_into(path, &self.trash, &format!("{}-cache", self.scope.as_str()))
    }

    /// Removes what lies in the trash of its tenant, and waits until that is done. Touches the local disk.
    pub fn empty_trash(&self) {
        if let Some(thread) = trash::empty(self.trash.clone()) {
            let _ = thread.join();
        }
    }
}

/// Whether the open file `locked` is the one at `path`.
pub(super) fn is_at(locked: &File, path: &Path) -> io::Result<bool> {
    let locked = locked.metadata()?;
    match fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (locked.dev(), locked.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl std::fmt::Display for CacheHome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the cache of the {} {}", self.scope.as_str(), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(volumes: &Path, tenant: &str, name: &str) -> CacheHome {
        CacheHome::new(volumes, tenant, CacheScope::Project, name)
    }

    #[test]
    fn cache_home_whose_lock_is_a_pipe_waits_for_nobody() {
        let volumes = tempfile::tempdir().unwrap();
        let home = home(volumes.path(), "t", "p");
        home.create().unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, home.path().join(SYNC_FILE), rustix::fs::Mode::RWXU).unwrap();
        let error = home.try_sync_lock().unwrap_err().to_string();
        assert!(error.contains("sync.lock is not a regular file: remove it"), "{error}");
        let shared = home.on_shared_file_system();
        rustix::fs::mkfifoat(rustix::fs::CWD, shared.path().join(USERS_FILE), rustix::fs::Mode::RWXU)
            .unwrap();
        let error = shared.create().unwrap_err().to_string();
        assert!(error.contains("users.lock is not a regular file: remove it"), "{error}");
    }

    #[test]
    fn cache_homes_of_any_name_and_tenant_are_distinct_and_listed() {
        let volumes = tempfile::tempdir().unwrap();
        let names = ["..", "a/b", "a%2Fb", "ä b"];
        let mut paths: Vec<_> = names.iter().map(|name| home(volumes.path(), "t", name).tree()).collect();
        for name in names {
            home(volumes.path(), "t", name).create().unwrap();
        }
        CacheHome::new(volumes.path(), "t", CacheScope::Team, "a/b").create().unwrap();
        let all = CacheHome::all(volumes.path(), "t");
        assert_eq!(all.iter().map(CacheHome::name).collect::<Vec<_>>(), ["..", "a%2Fb", "a/b", "ä b", "a/b"]);
        assert!(CacheHome::all(volumes.path(), "other").is_empty());
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), names.len());
        assert!(
            paths
                .iter()
                .all(|path| path.is_dir() && path.starts_with(volumes.path().join("t/caches/project")))
        );
    }
}
