//! The lock of a cache directory: one process owns it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::directory::CacheDirectory;
use crate::error::{Error, Kind, Result};

/// The time for which another program may have the directory locked, as tools do that clean up, and the interval of the checks.
const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(2);
const DIRECTORY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The lock of a cache directory, as long as this lives.
#[derive(Debug)]
pub(super) struct RootLock {
    file: File,
    /// The directory itself, locked as well: the file may be removed and made anew.
    _directory: File,
}

impl RootLock {
    /// Takes the lock, and writes this process's id into its file.
    ///
    /// # Errors
    /// [`Kind::Busy`] where another process has it; [`Kind::Disk`].
    pub fn take(root: &CacheDirectory) -> Result<Self> {
        let name = root.path().display();
        let fault = |e: io::Error| Error::disk(format!("cannot lock the cache {name}"), e);
        let mut file = root.file("lock", OFlags::RDWR | OFlags::CREATE).map_err(fault)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut owner = String::new();
            file.read_to_string(&mut owner).map_err(fault)?;
            let owner = owner.trim();
            return Err(Error::new(Kind::Busy, format!("the cache {name} is in use by process {owner}")));
        }
        let directory = File::open(root.path()).map_err(fault)?;
        let begin = Instant::now();
        // A file system that locks no directories has the file only.
        while flock(&directory, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            if begin.elapsed() > DIRECTORY_TIMEOUT {
                let text = format!(
                    "the cache {name} is locked by another process: an agent whose file \"lock\" was removed, or a program that locks directories"
                );
                return Err(Error::new(Kind::Busy, text));
            }
            std::thread::sleep(DIRECTORY_POLL_INTERVAL);
        }
        file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(fault)?;
        writeln!(file, "{}", std::process::id()).map_err(fault)?;
        Ok(Self { file, _directory: directory })
    }

    /// Its file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_whose_file_is_removed_is_held() {
        let home = tempfile::tempdir().expect("a directory");
        let root = CacheDirectory::open(home.path()).expect("opened");
        let held = RootLock::take(&root).expect("free");
        std::fs::remove_file(home.path().join("lock")).expect("removed");
        let error = RootLock::take(&root).expect_err("held");
        assert!(error.kind() == Kind::Busy && error.to_string().contains("was removed"), "{error}");
        drop(held);
        RootLock::take(&root).expect("free again");
    }
}
