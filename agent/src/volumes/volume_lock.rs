//! Locks on volumes and on files in them, by which processes tell each other that they use them.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::FlockOperation;

/// The number of retries of a lock, and the pause between them: who looks whether a volume is locked has it for a moment.
const LOCK_RETRIES: u32 = 5;
const LOCK_RETRY_WAIT: Duration = Duration::from_millis(10);

/// Locks the file or the directory of a volume `path`. Waits for who only looks whether it is locked; `how` does not block.
///
/// # Errors
/// The disk's own, or that another process has locked it.
pub fn lock(path: &Path, how: FlockOperation) -> io::Result<File> {
    for _ in 0..LOCK_RETRIES {
        match try_lock(path, how) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOCK_RETRY_WAIT),
            outcome => return outcome,
        }
    }
    try_lock(path, how)
}

/// Locks the file or the directory of a volume `path`, unless it is locked now.
///
/// # Errors
/// As [`lock`].
pub fn try_lock(path: &Path, how: FlockOperation) -> io::Result<File> {
    // NFS has record locks for them: an exclusive one needs a file that is open for writing.
    let locked = File::options().read(true).write(true).open(path).or_else(|_| File::open(path))?;
    rustix::fs::flock(&locked, how)?;
    Ok(locked)
}

/// Whether somebody holds the file `path` locked. One that can't be looked at counts as held, and one that is not there does not:
/// who holds it may write.
pub fn is_locked(path: &Path) -> bool {
    match try_lock(path, FlockOperation::NonBlockingLockShared) {
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_locked_of_a_free_or_missing_file_is_false() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        assert!(!is_locked(&path("missing")));
        let file = File::create(path("file")).unwrap();
        assert!(!is_locked(&path("file")));
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        assert!(is_locked(&path("file")));
        std::os::unix::fs::symlink("loop", path("loop")).unwrap();
        assert!(is_locked(&path("loop")), "nothing is known of it");
    }
}
