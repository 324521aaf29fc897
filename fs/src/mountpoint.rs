//! Mount points: checked and prepared before a mount.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bdnfs::error::{Error, Kind, Result};
use rustix::io::Errno;

use crate::{mount, mounts};

/// Prepares the directory `path` for a mount, and returns its full path. A mount of ours that a crash left dead there is
/// unmounted.
///
/// # Errors
/// [`Kind::NotFound`], [`Kind::Invalid`] when it is no directory, [`Kind::Busy`] when something is mounted there,
/// [`Kind::Refused`] when it may not be looked at; each in one line for a person.
pub(crate) fn prepare(path: &Path) -> Result<PathBuf> {
    let full = fs::canonicalize(path).map_err(|e| unusable(path, e))?;
    while let Some(other) = mounts::at(&full)? {
        if !(other.ours() && dead(&full)) {
            let (path, source) = (full.display(), &other.source);
            let line = if other.ours() {
                format!("{source} is already mounted on {path}; unmount it with `bdnfs umount {path}`")
            } else {
                format!(
                    "another file system ({source}) is already mounted on {path}; unmount it, or choose another mount \
                     point"
                )
            };
            return Err(Error::new(Kind::Busy, line));
        }
        tracing::warn!(mountpoint = %full.display(), "replacing a mount that a crash left dead");
        mount::detach(&full)?;
    }
    if !fs::metadata(&full).map_err(|e| unusable(path, e))?.is_dir() {
        return Err(Error::new(Kind::Invalid, format!("mount point {} is not a directory", path.display())));
    }
    Ok(full)
}

/// Whether the agent of the mount at `full` is no more. The kernel goes on to answer what it has cached,
/// attributes for one; so this asks for what it doesn't cache.
fn dead(full: &Path) -> bool {
    matches!(rustix::fs::statfs(full), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// The error for a `path` where nothing can be mounted.
fn unusable(path: &Path, error: io::Error) -> Error {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => Error::new(
            Kind::NotFound,
            format!("mount point {path} does not exist; create it with `mkdir -p {path}`"),
        ),
        io::ErrorKind::PermissionDenied => {
            Error::with(Kind::Refused, format!("permission denied on mount point {path}"), error)
        }
        _ => Error::with(Kind::Invalid, format!("cannot use mount point {path}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountpoint_with_a_dead_mount_is_freed() {
        let dir = tempfile::tempdir().expect("a directory");
        let device = mount::mount(dir.path(), "test", false).expect("needs root, or fusermount3");
        drop(device);
        assert!(mounts::at(dir.path()).expect("a table").is_some_and(|mounted| mounted.ours()));
        assert_eq!(prepare(dir.path()).expect("replaced"), dir.path());
        assert_eq!(mounts::at(dir.path()).expect("a table"), None);
    }

    #[test]
    fn mountpoint_unusable_is_refused_with_its_name() {
        let kind = |path: &Path| prepare(path).map_err(|error| (error.kind(), error.to_string()));
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("written");
        assert!(
            matches!(kind(&dir.path().join("no")), Err((Kind::NotFound, m)) if m.contains("/no does not exist"))
        );
        assert!(matches!(kind(&file), Err((Kind::Invalid, m)) if m.ends_with("file is not a directory")));
        assert!(
            matches!(kind(Path::new("/proc")), Err((Kind::Busy, m)) if m.contains("already mounted on /proc"))
        );
        assert_eq!(kind(dir.path()).expect("ready"), dir.path().canonicalize().expect("a path"));
    }
}
