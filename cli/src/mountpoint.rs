//! Mountpoints: what stands in the way of a mount, said before anything is started, or of its end.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use bdnfs_fs::mounts::{self, MountUser};
use rustix::io::Errno;

use crate::pulse::{self, Pulse};

/// Why nothing can be mounted at a place.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    /// There is nothing.
    #[error("{0} does not exist; make it with `mkdir -p {0}`")]
    Missing(String),
    /// It is a file.
    #[error("{0} is not a directory")]
    NotDirectory(String),
    /// A bdnfs mount is there.
    #[error("{0} already has {1} mounted; unmount it first with `bdnfs umount {0}`")]
    Mounted(String, String),
    /// A bdnfs mount is there and doesn't answer.
    #[error(
        "{0} already has {1} mounted, which does not answer; unmount it first with `bdnfs umount --lazy {0}`"
    )]
    Stuck(String, String),
    /// Another file system is mounted there.
    #[error("{0} already has another file system mounted ({1}); unmount it, or choose another directory")]
    Other(String, String),
    /// The path can't be sent as text.
    #[error("{0} is not valid UTF-8; choose another directory")]
    NotText(String),
    /// There is no FUSE.
    #[error("there is no /dev/fuse: run `modprobe fuse`, or start the container with `--device /dev/fuse`")]
    NoFuse,
    /// FUSE is for others.
    #[error("no permission to use /dev/fuse: run as root, or start the container with `--device /dev/fuse`")]
    FuseRefused,
}

/// A place where a mount can be made.
#[derive(Debug)]
pub struct Place {
    /// Its path, absolute and without links.
    pub path: PathBuf,
    /// What the user should know, a sentence each.
    pub notes: Vec<String>,
}

/// Makes sure that a mount can be made at `asked`. A mount that a crash left dead there is taken away.
pub fn prepare(asked: &Path) -> Result<Place> {
    let path = find(asked)?;
    let name = path.display().to_string();
    let mut notes = Vec::new();
    match mounts::at(&path)? {
        None => {}
        Some(other) if !other.ours() => return Err(Obstacle::Other(name, other.source).into()),
        Some(ours) => match pulse::of(&path) {
            Pulse::Dead => {
                mounts::detach(&path)?;
                notes.push(format!("a dead mount of {} was taken away from {name}", ours.source));
            }
            Pulse::Silent => return Err(Obstacle::Stuck(name, ours.source).into()),
            Pulse::Alive(_) | Pulse::Unknown(_) => return Err(Obstacle::Mounted(name, ours.source).into()),
        },
    }
    if !path.metadata().with_context(|| name.clone())?.is_dir() {
        return Err(Obstacle::NotDirectory(name).into());
    }
    if std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) {
        notes.push(format!("{name} is not empty; what it holds is hidden while the mount is there"));
    }
    Ok(Place { path, notes })
}

/// Directories that were made for mounts. Those that are not to be kept go again.
#[derive(Debug, Default)]
pub struct Made(Vec<PathBuf>);

impl Made {
    /// The directory `location`, below `root` where there is one. What is missing of it is made.
    pub fn directory(&mut self, location: &Path, root: Option<&Path>) -> Result<PathBuf> {
        let mut path = match root {
            Some(root) => find(root)?,
            None => PathBuf::from("/"),
        };
        for part in location.components().filter(|part| matches!(part, Component::Normal(_))) {
            path.push(part);
            let name = path.display();
            match path.symlink_metadata() {
                Ok(meta) if meta.is_symlink() && root.is_some() => {
                    bail!("{name} is a link, which may lead out of the root; put a directory there")
                }
                Ok(_) => {}
                // A mount that a crash left dead, which is dealt with where it matters.
                Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    std::fs::create_dir(&path).with_context(|| {
                        format!("cannot make {}; choose where all of it goes with --root", path.display())
                    })?;
                    self.0.push(path.clone());
                }
                Err(e) => return Err(e).with_context(|| name.to_string()),
            }
        }
        Ok(path)
    }

    /// Lets them stay.
    pub fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // What somebody else uses by now stays.
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// The absolute path of `asked`, without links. A mount left dead there doesn't hinder it.
pub fn find(asked: &Path) -> Result<PathBuf> {
    let name = || asked.display().to_string();
    let found = match asked.canonicalize() {
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            let absolute = std::path::absolute(asked).with_context(name)?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(last)) => parent.canonicalize().map(|parent| parent.join(last)),
                _ => Err(e),
            }
        }
        found => found,
    };
    match found {
        Ok(path) if path.to_str().is_none() => Err(Obstacle::NotText(name()).into()),
        Ok(path) => Ok(path),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(Obstacle::Missing(name()).into()),
        Err(e) => Err(e).with_context(name),
    }
}

/// Makes sure that this process may use FUSE at all.
pub fn fuse() -> Result<()> {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        // Without the module a device file may be there: then opening it says ENODEV or ENXIO.
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Err(Obstacle::NoFuse.into()),
            Some(Errno::ACCESS | Errno::PERM) => Err(Obstacle::FuseRefused.into()),
            _ => Err(e).context("cannot open /dev/fuse"),
        },
    }
}

/// Why the mount at `path` can't be taken away: who holds it.
pub fn busy(path: &Path) -> String {
    let mounted = mounts::at(path).ok().flatten();
    held(path, &mounted.map(|mounted| mounts::users(&mounted)).unwrap_or_default())
}

fn held(path: &Path, holders: &[MountUser]) -> String {
    let path = path.display();
    if holders.is_empty() {
        let way_out = format!("try as root, or use `bdnfs umount --lazy {path}`");
        return format!("{path} is busy: held by a process that this user can't see; {way_out}");
    }
    let names: Vec<_> =
        holders.iter().map(|holder| format!("{} (pid {})", holder.command, holder.pid)).collect();
    format!("{path} is busy: held by {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obstacles_say_what_to_do() {
        let texts = [
            (Obstacle::Missing("/m".into()), "/m does not exist; make it with `mkdir -p /m`"),
            (
                Obstacle::Mounted("/m".into(), "s3://b/p".into()),
                "/m already has s3://b/p mounted; unmount it first with `bdnfs umount /m`",
            ),
            (Obstacle::NotDirectory("/m".into()), "/m is not a directory"),
            (
                Obstacle::NoFuse,
                "there is no /dev/fuse: run `modprobe fuse`, or start the container with `--device /dev/fuse`",
            ),
        ];
        for (obstacle, text) in texts {
            assert_eq!(obstacle.to_string(), text);
        }
    }

    #[test]
    fn places_are_looked_at() {
        let dir = tempfile::tempdir().expect("directory");
        let obstacle =
            |found: Result<Place>| found.expect_err("an obstacle").downcast::<Obstacle>().expect("known");
        let missing = dir.path().join("missing");
        assert!(matches!(obstacle(prepare(&missing)), Obstacle::Missing(_)));
        assert!(matches!(obstacle(prepare(Path::new("/proc"))), Obstacle::Other(..)));
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("written");
        assert!(matches!(obstacle(prepare(&file)), Obstacle::NotDirectory(_)));
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).expect("made");
        assert!(prepare(&empty).expect("nothing in the way").notes.is_empty());
        assert_eq!(prepare(dir.path()).expect("nothing in the way").notes.len(), 1, "it is not empty");
    }

    #[test]
    fn what_is_missing_is_made_below_the_root_and_taken_back() {
        let dir = tempfile::tempdir().expect("directory");
        let root = dir.path().canonicalize().expect("there");
        std::os::unix::fs::symlink("/etc", root.join("link")).expect("linked");
        let mut made = Made::default();
        let path = made.directory(Path::new("/a/b"), Some(&root)).expect("made");
        assert_eq!(path, root.join("a/b"));
        assert_eq!(made.directory(Path::new("/a"), Some(&root)).expect("there"), root.join("a"));
        let error = made.directory(Path::new("/link/x"), Some(&root)).expect_err("a way out");
        assert!(error.to_string().contains("is a link"), "{error}");
        drop(made);
        assert!(!root.join("a").exists());
        let mut made = Made::default();
        made.directory(Path::new("/a/b"), Some(&root)).expect("made");
        made.keep();
        assert!(root.join("a/b").is_dir());
    }

    #[test]
    fn holders_are_named() {
        let holder = |name: &str, pid| MountUser { pid, command: name.to_owned() };
        let text = held(Path::new("/m"), &[holder("python3", 123), holder("bash", 77)]);
        assert_eq!(text, "/m is busy: held by python3 (pid 123), bash (pid 77)");
        assert!(held(Path::new("/m"), &[]).contains("--lazy /m"));
    }
}
