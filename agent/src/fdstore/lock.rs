//! The lock of an fd store that an agent starts: there is one fd store a cache, and its process id is in the file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bdnfs::cache::directory::CacheDirectory;
use bdnfs::error::{Error, Kind, Result};
use rustix::fs::{FlockOperation, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::context::Context;

/// The file that the fd store holds locked, in the cache directory.
const FDSTORE_LOCK_FILE: &str = "holder.lock";
/// The interval at which a killed fd store is looked for.
const FDSTORE_KILL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The lock of the fd store of a cache.
#[derive(Debug)]
pub struct FdStoreLock {
    cache: PathBuf,
}

impl FdStoreLock {
    /// The lock of the fd store of the cache in the directory `cache`. It is not taken yet.
    pub fn new(cache: &Path) -> Self {
        Self { cache: cache.into() }
    }

    /// The locked file, if the lock is free; else the process id that its owner wrote there.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn take(&self) -> Result<std::result::Result<File, String>> {
        let directory = CacheDirectory::open(&self.cache)?;
        let open = || {
            let mut lock = directory.file(FDSTORE_LOCK_FILE, OFlags::RDWR | OFlags::CREATE)?;
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Ok(lock)),
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut owner = Vec::new();
                    lock.read_to_end(&mut owner)?;
                    // Damaged content names no process.
                    Ok(Err(String::from_utf8_lossy(&owner).trim().to_owned()))
                }
                Err(error) => Err(io::Error::from(error)),
            }
        };
        open().with_context(|| format!("cannot lock {}", self.cache.join(FDSTORE_LOCK_FILE).display()))
    }

    /// Takes the lock as soon as it is free, or answers with its owner after `timeout`. Blocks.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn take_within(&self, timeout: Duration) -> Result<std::result::Result<File, String>> {
        let begin = Instant::now();
        loop {
            let taken = self.take()?;
            if taken.is_ok() || begin.elapsed() > timeout {
                return Ok(taken);
            }
            std::thread::sleep(FDSTORE_KILL_POLL_INTERVAL);
        }
    }

    /// Kills an fd store that does not answer, so that no process waits for its mounts, and takes the lock when it has ended,
    /// within `timeout`. `owner` is the process id that it has where it runs: in another container that is another process here,
    /// which is left alone. Blocks.
    ///
    /// # Errors
    /// [`Kind::Timeout`] where it can't be killed; [`Kind::Disk`].
    pub fn kill_owner(&self, owner: &str, timeout: Duration) -> Result<File> {
        let cache = self.cache.display();
        if let Some(process) = self.find_process(owner) {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        } else if self.take()?.is_err() {
            let text = format!(
                "the fd store of {cache} (process {owner}) does not answer, and is not among the processes here: restart it where it runs"
            );
            return Err(Error::new(Kind::Timeout, text));
        }
        self.take_within(timeout)?.map_err(|owner| {
            let limit = timeout.as_secs();
            Error::new(
                Kind::Timeout,
                format!("the fd store of {cache} (process {owner}) did not exit within {limit} s"),
            )
        })
    }

    /// The process with the id `pid`, if it is the fd store: its standard output is the locked file.
    pub fn find_process(&self, pid: &str) -> Option<OwnedFd> {
        let id = Pid::from_raw(pid.parse().ok()?)?;
        // Opened first, so that the process that is checked is the one that is killed.
        let process = pidfd_open(id, PidfdFlags::empty()).ok()?;
        let file = |path: PathBuf| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let output = file(PathBuf::from(format!("/proc/{id}/fd/1")))?;
        (file(self.cache.join(FDSTORE_LOCK_FILE))? == output).then_some(process)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn kill_with_a_reused_process_id_kills_nothing() {
        let cache = tempfile::tempdir().expect("a directory");
        let lock = FdStoreLock::new(cache.path());
        let _taken = lock.take().expect("a lock").expect("free");
        let mut other = Command::new("sleep").arg("infinity").stdout(Stdio::null()).spawn().expect("sleep");
        let error = lock.kill_owner(&other.id().to_string(), TIMEOUT).expect_err("it is not the fd store");
        assert!(error.to_string().contains("restart it where it runs"), "{error}");
        assert!(other.try_wait().expect("a child").is_none(), "another process was killed");
        other.kill().expect("a child");
        other.wait().expect("a child");
    }

    #[test]
    fn take_of_a_held_lock_with_damaged_content_names_no_process() {
        let cache = tempfile::tempdir().expect("a directory");
        let lock = FdStoreLock::new(cache.path());
        let _taken = lock.take().expect("a lock").expect("free");
        fs::write(cache.path().join(FDSTORE_LOCK_FILE), [b'1', 0xff, 0xfe]).expect("written");
        let owner = lock.take().expect("readable").expect_err("held");
        assert!(lock.find_process(&owner).is_none(), "{owner}");
    }

    #[test]
    fn kill_of_the_fdstore_frees_its_lock() {
        let cache = tempfile::tempdir().expect("a directory");
        let lock = FdStoreLock::new(cache.path());
        let taken = lock.take().expect("a lock").expect("free");
        let mut owner = Command::new("sleep").arg("infinity").stdout(taken).spawn().expect("sleep");
        lock.kill_owner(&owner.id().to_string(), TIMEOUT).expect("killed");
        assert!(!owner.wait().expect("a child").success());
    }
}
