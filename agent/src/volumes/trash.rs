//! The trash: what is removed is renamed first, which takes no time, and then removed when the disk has nothing else to do.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use crate::runtime;

/// How many things of one name may lie in a trash at a time.
const NAMES_MAX: u32 = 10_000;

/// Moves `path` into the directory `trash`, under a name that begins with `name`. What isn't there needs no move.
///
/// # Errors
/// The disk's own.
pub fn take(path: &Path, trash: &Path, name: &str) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(trash)?;
    for number in 0..NAMES_MAX {
        let moved = fs::rename(path, trash.join(format!("{name}-{number}")));
        match moved {
            Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            moved => return moved,
        }
    }
    Err(io::Error::other(format!("{} is full", trash.display())))
}

/// Begins to remove what lies in the directory `trash`, in a thread of its own. What this process doesn't get to, the next one removes.
pub fn empty(trash: PathBuf) -> Option<JoinHandle<()>> {
    let remove = move || {
        runtime::lower_priority();
        for entry in fs::read_dir(&trash).into_iter().flatten().flatten() {
            // Links are removed and not followed. Another process may be at the same.
            if let Err(error) = fs::remove_dir_all(entry.path())
                && error.kind() != ErrorKind::NotFound
            {
                tracing::warn!("cannot remove {}: {error}", entry.path().display());
            }
        }
    };
    let started = std::thread::Builder::new().name("bdnfs-trash".into()).spawn(remove);
    started.inspect_err(|error| tracing::warn!("cannot start a thread to empty the trash: {error}")).ok()
}
