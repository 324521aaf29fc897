//! The users of a cache home: what they hold locked, so that it is not removed, and how other nodes know of them.
//!
//! ```text
//! <home>                    locked, shared, by each user; exclusively by its removal
//!       /users.lock         likewise, on a shared file system: NFS and Lustre lock directories within one node only;
//!                           one that is not empty is that of a home which is being removed
//!       /users/<random id>  what a user on a shared file system writes each minute, in case locks do not hold between nodes
//! ```

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use bdnfs::error::{Error, Kind, Result};
use bdnfs_fs::mounts;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::cache_home::{CacheHome, USERS_FILE, is_at};
use super::cache_sync::LIVING_REPORT_AGE;
use super::node_identity::host_name;
use super::{lock, shared_root};
use crate::context::Context;
use crate::durable::write_json;
use crate::random;

/// The directory in a home on a shared file system with a file of each user.
const USERS_DIRECTORY: &str = "users";
/// The end of the names of these files.
const BEAT_SUFFIX: &str = ".json";
/// The number of attempts to create a home that is removed meanwhile, and the time after the last one: an NFS client may look at
/// the old one for a while.
const CREATE_ATTEMPT_LIMIT: u32 = 500;
const CREATE_RETRY_WAIT: Duration = Duration::from_millis(10);

/// The content of a user's file.
#[derive(Debug, Serialize, Deserialize)]
struct UserBeat {
    /// The name of its machine.
    host: String,
}

/// A user of a home on a shared file system, whose file goes with it.
#[derive(Debug)]
pub struct SharedHomeUser {
    home: CacheHome,
    name: String,
}

impl SharedHomeUser {
    /// A user of `home`, which has no file yet.
    ///
    /// # Errors
    /// [`Kind::Disk`] where the kernel has nothing random.
    pub fn new(home: CacheHome) -> Result<Self> {
        Ok(Self { home, name: random::id()? + BEAT_SUFFIX })
    }

    /// Its home.
    pub fn home(&self) -> &CacheHome {
        &self.home
    }

    /// Writes the file. Touches the home's disk.
    ///
    /// # Errors
    /// [`Kind::Disk`], [`Kind::NoSpace`].
    pub fn write_beat(&self) -> Result<()> {
        let directory = self.home.path().join(USERS_DIRECTORY);
        let failed = || format!("cannot write to {}", directory.display());
        shared_root::create_private(&directory).with_context(failed)?;
        write_json(&directory, &self.name, &UserBeat { host: host_name() }).with_context(failed)
    }
}

impl Drop for SharedHomeUser {
    fn drop(&mut self) {
        let path = self.home.path().join(USERS_DIRECTORY).join(&self.name);
        let remove = move || drop(fs::remove_file(path));
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

impl CacheHome {
    /// Returns the paths that its users hold locked.
    pub fn lock_paths(&self) -> Vec<PathBuf> {
        let file = self.is_shared().then(|| self.path().join(USERS_FILE));
        std::iter::once(self.path().to_owned()).chain(file).collect()
    }

    fn lock_all(&self, how: FlockOperation) -> io::Result<Vec<File>> {
        self.lock_paths().iter().map(|path| lock(path, how)).collect()
    }

    /// Whether a job or a container uses it; on a shared file system of any node. Touches its disk.
    pub fn is_in_use(&self) -> bool {
        self.is_locked() || self.recent_user().is_some() || self.is_bound()
    }

    /// Whether a job or an agent holds it. Touches its disk.
    pub fn is_locked(&self) -> bool {
        let locked = self.lock_all(FlockOperation::NonBlockingLockExclusive);
        locked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Whether a container of this node has it, which holds no lock: the agent holds one for it, as long as the agent lives.
    fn is_bound(&self) -> bool {
        let tree = self.tree().canonicalize();
        tree.is_ok_and(|tree| mounts::is_bound_anywhere(&tree).unwrap_or(true))
    }

    /// The machine of a user of a home on a shared file system that has written its file recently; after a crash it may be gone.
    fn recent_user(&self) -> Option<String> {
        if !self.is_shared() {
            return None;
        }
        let entries = fs::read_dir(self.path().join(USERS_DIRECTORY)).into_iter().flatten().flatten();
        let beats = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(BEAT_SUFFIX));
        let recent = beats.filter(|entry| {
            let written = entry.metadata().and_then(|found| found.modified());
            // A clock that is behind the file system's says nothing.
            written.is_ok_and(|written| written.elapsed().map_or(true, |age| age < LIVING_REPORT_AGE))
        });
        let mut hosts = recent.filter_map(|entry| {
            let beat = serde_json::from_slice::<UserBeat>(&fs::read(entry.path()).ok()?).ok()?;
            Some(beat.host)
        });
        hosts.next()
    }

    /// Creates the home, unless it exists, for its owner alone. The returned locks keep it from being removed; the supervisor of a
    /// job takes the same. Touches its disk.
    ///
    /// # Errors
    /// [`Kind::Busy`] while it is removed; [`Kind::Disk`].
    pub fn create(&self) -> Result<Vec<File>> {
        let failed = || format!("cannot create {}", self.path().display());
        for _ in 0..CREATE_ATTEMPT_LIMIT {
            self.create_tree().with_context(failed)?;
            match self.lock_all(FlockOperation::NonBlockingLockShared) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle) => {}
                locked => {
                    let locked = locked.with_context(failed)?;
                    // The home may have been moved between open and lock.
                    if self.is_locked_by(&locked).with_context(failed)? && self.exists() {
                        return Ok(locked);
                    }
                }
            }
            thread::sleep(CREATE_RETRY_WAIT);
        }
        let text = format!(
            "{self} is being removed; if that was interrupted, remove it again with `bdnfs project rm`"
        );
        Err(Error::new(Kind::Busy, text))
    }

    /// Whether what is `locked` is the home's, and it is not being removed.
    fn is_locked_by(&self, locked: &[File]) -> io::Result<bool> {
        for (file, path) in locked.iter().zip(self.lock_paths()) {
            let found = file.metadata()?;
            if found.is_file() && found.len() > 0 || !is_at(file, &path)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves the home into the trash. Touches its disk. [`empty_trash`](Self::empty_trash) frees the space.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where it is not there, [`Kind::Busy`] while it is used, [`Kind::Disk`].
    pub fn remove(&self) -> Result<()> {
        let failed = || format!("cannot remove {}", self.path().display());
        let locks = match self.lock_all(FlockOperation::NonBlockingLockExclusive) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(self.in_use()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::new(Kind::NotFound, format!("{self} is not on this node")));
            }
            locks => locks.with_context(failed)?,
        };
        if self.recent_user().is_some() || self.is_bound() {
            return Err(self.in_use());
        }
        if !self.is_shared() {
            return self.move_to_trash(self.path()).with_context(failed);
        }
        // A node that finds the home by what it has in memory of the directory above sees that it is removed.
        let mark = |mut file: &File| file.write_all(b"-").and_then(|()| file.sync_all());
        locks.last().map_or(Ok(()), mark).with_context(failed)?;
        self.move_to_trash(self.path())
            .inspect_err(|_| drop(locks.last().map(|file| file.set_len(0))))
            .with_context(failed)
    }

    /// The error for one that is in use.
    pub fn in_use(&self) -> Error {
        let text = match self.recent_user() {
            Some(host) => return self.in_use_on(&host),
            None if self.is_shared() => {
                format!("{self} is in use by a job on another node or this one; stop that first")
            }
            None => format!("{self} is in use by a job or a container on this node; stop that first"),
        };
        Error::new(Kind::Busy, text)
    }

    /// The error for one that is in use on the node called `host`.
    pub(super) fn in_use_on(&self, host: &str) -> Error {
        let text = format!("{self} is in use by a job on the node {host}; stop that first");
        Error::new(Kind::Busy, text)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use super::*;
    use crate::volumes::cache_home::CacheScope;

    fn home(volumes: &Path) -> CacheHome {
        CacheHome::new(volumes, "t", CacheScope::Project, "p")
    }

    #[test]
    fn cache_home_in_use_is_not_removed_and_a_removed_one_starts_empty() {
        let volumes = tempfile::tempdir().unwrap();
        for home in [home(volumes.path()), home(volumes.path()).on_shared_file_system()] {
            let (first, second) = (home.create().unwrap(), home.create().unwrap());
            fs::write(home.tree().join("file"), "kept").unwrap();
            drop(first);
            assert!(home.is_in_use());
            assert_eq!(home.remove().unwrap_err().kind(), Kind::Busy);
            drop(second);
            assert!(!home.is_in_use() && home.tree().join("file").exists());
            home.remove().unwrap();
            assert!(!home.exists());
            assert_eq!(home.remove().unwrap_err().kind(), Kind::NotFound);
            let held = home.create().unwrap();
            assert_eq!(fs::read_dir(home.tree()).unwrap().count(), 0);
            home.empty_trash();
            assert_eq!(fs::read_dir(volumes.path().join("t/trash")).unwrap().count(), 0);
            drop(held);
            home.remove().unwrap();
        }
    }

    #[test]
    fn shared_home_is_in_use_as_long_as_a_node_says_so_whatever_is_locked() {
        let volumes = tempfile::tempdir().unwrap();
        let home = home(volumes.path()).on_shared_file_system();
        drop(home.create().unwrap());
        let user = SharedHomeUser::new(home.clone()).unwrap();
        user.write_beat().unwrap();
        let error = home.remove().unwrap_err();
        assert!(home.is_in_use() && error.to_string().contains(&host_name()), "{error}");
        let beat = File::open(home.path().join(USERS_DIRECTORY).join(&user.name)).unwrap();
        beat.set_modified(SystemTime::now() - LIVING_REPORT_AGE).unwrap();
        assert!(!home.is_in_use(), "its node is gone");
        user.write_beat().unwrap();
        assert!(home.is_in_use());
        drop(user);
        assert!(!home.is_in_use());
        home.remove().unwrap();
    }

    #[test]
    fn shared_home_whose_removal_was_interrupted_is_used_by_none_until_it_is_removed() {
        let volumes = tempfile::tempdir().unwrap();
        let home = home(volumes.path()).on_shared_file_system();
        drop(home.create().unwrap());
        fs::write(home.path().join(USERS_FILE), "-").unwrap();
        assert_eq!(home.create().unwrap_err().kind(), Kind::Busy);
        home.remove().unwrap();
        home.create().unwrap();
    }
}
