//! The trash: what is removed is renamed first, which takes no time, and then removed when the disk has nothing else to do.

use std::fs::{self, DirBuilder, DirEntry, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::runtime;

/// The number of entries of one name that may lie in a trash at a time.
const MAX_TRASH_NAMES: u32 = 10_000;

/// The time that the one who empties a trash is waited for, and the interval of the checks: jobs wait for the space meanwhile.
const TRASH_LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const TRASH_LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Moves `path` into the directory `trash`, under a name that begins with `name`. What isn't there needs no move.
///
/// # Errors
/// The disk's own.
pub fn move_into(path: &Path, trash: &Path, name: &str) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(trash)?;
    for number in 0..MAX_TRASH_NAMES {
        let moved = fs::rename(path, trash.join(format!("{name}-{number}")));
        match moved {
            Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            moved => return moved,
        }
    }
    Err(io::Error::other(format!("{} is full", trash.display())))
}

/// Starts a thread that removes what lies in the directory `trash`, and is not locked there. What this process doesn't get to, the
/// next one removes.
pub fn empty(trash: PathBuf) -> Option<JoinHandle<()>> {
    let remove = move || {
        runtime::lower_priority();
        remove_all(&trash);
    };
    let started = std::thread::Builder::new().name("bdnfs-trash".into()).spawn(remove);
    started.inspect_err(|error| tracing::warn!("cannot start a thread to empty the trash: {error}")).ok()
}

/// Removes what lies in the directory `trash`. When it returns, the space of all that is free, also of what another thread or
/// process was removing, unless that took longer than [`TRASH_LOCK_TIMEOUT`].
fn remove_all(trash: &Path) {
    let _lock = lock_trash(trash);
    let mut round = TrashPass { removed: true, ..TrashPass::default() };
    while round.removed {
        round = TrashPass { moved: round.moved, ..TrashPass::default() };
        for entry in fs::read_dir(trash).into_iter().flatten().flatten() {
            round.remove(&entry, trash);
        }
    }
    if let Some((path, error)) = round.failed {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

/// Waits until nobody else empties the directory `trash`, and locks it: a file loses its name before its space is free, so what is
/// no longer listed may still occupy the disk. `None` where there is no trash, where its file system has no such locks, and where
/// another one, which may be on another node, takes longer than [`TRASH_LOCK_TIMEOUT`].
fn lock_trash(trash: &Path) -> Option<File> {
    let directory = File::open(trash).ok()?;
    let mut waited = Duration::ZERO;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::WOULDBLOCK | Errno::INTR) if waited < TRASH_LOCK_TIMEOUT => {
                std::thread::sleep(TRASH_LOCK_RETRY_INTERVAL);
                waited += TRASH_LOCK_RETRY_INTERVAL;
            }
            Err(_) => return None,
        }
    }
}

/// One look at all that lies in a trash. What is below a directory in it is moved up into it: a job may have made directories
/// deeper than any stack and than any path, and so each is removed as one that has files alone.
#[derive(Default)]
struct TrashPass {
    /// Whether anything was removed.
    removed: bool,
    /// The number of directories that were moved up so far, for their names.
    moved: u64,
    /// The first that can't be removed, and why.
    failed: Option<(PathBuf, io::Error)>,
}

impl TrashPass {
    /// Removes an entry of the directory `trash`, and what is in it, unless it is in use.
    fn remove(&mut self, entry: &DirEntry, trash: &Path) {
        if is_directory(entry) {
            if is_in_use(entry) {
                return;
            }
            for below in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
                let path = below.path();
                match remove_one(&below) {
                    Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {
                        let moved = self.move_to_top(&path, trash);
                        self.note(path, moved);
                    }
                    removed => self.note(path, removed),
                }
            }
        }
        let removed = remove_one(entry);
        self.note(entry.path(), removed);
    }

    /// Moves a directory into the directory `trash`.
    fn move_to_top(&mut self, path: &Path, trash: &Path) -> io::Result<()> {
        loop {
            self.moved += 1;
            match fs::rename(path, trash.join(format!(".{}", self.moved))) {
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
                moved => return moved,
            }
        }
    }

    /// Notes what became of one.
    fn note(&mut self, path: PathBuf, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.removed = true,
            // Another process may be at the same.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => drop(self.failed.get_or_insert((path, error))),
        }
    }
}

/// Removes a file, or a directory that is empty. Links are removed and not followed.
fn remove_one(entry: &DirEntry) -> io::Result<()> {
    if is_directory(entry) { fs::remove_dir(entry.path()) } else { fs::remove_file(entry.path()) }
}

/// Whether somebody holds a directory locked, to read what is in it.
fn is_in_use(entry: &DirEntry) -> bool {
    let locked = super::lock(&entry.path(), FlockOperation::NonBlockingLockShared);
    locked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn is_directory(entry: &DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

    use super::*;

    /// Deeper than a thread's stack, and than a path is long.
    const TREE_DEPTH: u32 = 15_000;

    #[test]
    fn remove_all_of_a_deep_tree_removes_it_and_follows_no_links() {
        let home = tempfile::tempdir().unwrap();
        let (trash, taken) = (home.path().join("trash"), home.path().join("taken"));
        fs::create_dir_all(taken.join("a/b")).unwrap();
        fs::write(home.path().join("other"), "").unwrap();
        std::os::unix::fs::symlink(home.path(), taken.join("a/b/link")).unwrap();
        fs::write(taken.join("a/file"), "").unwrap();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut deep = openat(CWD, &taken, flags, Mode::empty()).unwrap();
        for _ in 0..TREE_DEPTH {
            mkdirat(&deep, "deep", Mode::RWXU).unwrap();
            deep = openat(&deep, "deep", flags, Mode::empty()).unwrap();
        }
        move_into(&taken, &trash, "x").unwrap();
        remove_all(&trash);
        assert_eq!(fs::read_dir(&trash).unwrap().count(), 0);
        assert!(home.path().join("other").exists());
    }

    #[test]
    fn empty_waits_for_what_another_thread_is_removing() {
        let home = tempfile::tempdir().unwrap();
        // What the other one removes has lost its name.
        let other = lock_trash(home.path()).expect("a lock");
        let thread = empty(home.path().to_owned()).expect("a thread");
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!thread.is_finished(), "the space is not free yet");
        drop(other);
        thread.join().unwrap();
    }

    #[test]
    fn remove_all_leaves_what_is_locked() {
        let home = tempfile::tempdir().unwrap();
        let (trash, taken) = (home.path().join("trash"), home.path().join("taken"));
        fs::create_dir_all(taken.join("below")).unwrap();
        let lock = super::super::lock(&taken, FlockOperation::NonBlockingLockExclusive).unwrap();
        move_into(&taken, &trash, "x").unwrap();
        remove_all(&trash);
        assert!(trash.join("x-0/below").exists(), "somebody reads it");
        drop(lock);
        remove_all(&trash);
        assert_eq!(fs::read_dir(&trash).unwrap().count(), 0);
    }
}
