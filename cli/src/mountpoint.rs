//! Mount points: checks before a mount, directories created for it, and what keeps one busy.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use bdnfs_fs::mounts;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::probe::{self, MountHealth};

/// The reason why a mount point cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MountPointError {
    /// The path does not exist.
    #[error("mount point {0} does not exist; create it with `mkdir -p {0}`")]
    NotFound(String),
    /// The path is a file.
    #[error("mount point {0} is not a directory")]
    NotDirectory(String),
    /// A bdnfs mount is there.
    #[error("{1} is already mounted on {0}; unmount it with `bdnfs umount {0}`")]
    Mounted(String, String),
    /// A bdnfs mount is there and does not answer.
    #[error("{1} is already mounted on {0} and does not respond; unmount it with `bdnfs umount --lazy {0}`")]
    Unresponsive(String, String),
    /// Another file system is mounted there.
    #[error("another file system ({1}) is already mounted on {0}; unmount it, or choose another mount point")]
    OtherFileSystem(String, String),
    /// The path cannot be sent as text.
    #[error("mount point {0} is not valid UTF-8; choose another")]
    NotUtf8(String),
    /// The kernel has no FUSE.
    #[error("/dev/fuse not found: run `modprobe fuse`, or start the container with `--device /dev/fuse`")]
    NoFuse,
    /// This user may not use FUSE.
    #[error(
        "permission denied on /dev/fuse: run as root, or let other users open it with `chmod 666 /dev/fuse`; start a container with `--device /dev/fuse`"
    )]
    FusePermission,
}

/// A mount point that can be used.
#[derive(Debug)]
pub struct MountPoint {
    /// The path of the mount point, absolute and without links.
    pub path: PathBuf,
    /// Notes for the user, a sentence each.
    pub notes: Vec<String>,
}

/// Checks that a file system can be mounted on `path`. A dead mount that a crash left there is removed.
pub fn prepare(path: &Path) -> Result<MountPoint> {
    let path = resolve(path)?;
    let name = path.display().to_string();
    let mut notes = Vec::new();
    match mounts::at(&path)? {
        None => {}
        Some(other) if !other.ours() => {
            return Err(MountPointError::OtherFileSystem(name, other.source).into());
        }
        Some(ours) => match probe::mount(&path) {
            MountHealth::Dead => {
                mounts::detach(&path)?;
                notes.push(format!("removed a dead mount of {} from {name}", ours.source));
            }
            MountHealth::Unresponsive => return Err(MountPointError::Unresponsive(name, ours.source).into()),
            MountHealth::Alive(_) | MountHealth::Unknown(_) => {
                return Err(MountPointError::Mounted(name, ours.source).into());
            }
        },
    }
    if !path.metadata().with_context(|| format!("cannot access {name}"))?.is_dir() {
        return Err(MountPointError::NotDirectory(name).into());
    }
    if std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) {
        notes.push(format!("mount point {name} is not empty; its files are hidden while it is mounted"));
    }
    Ok(MountPoint { path, notes })
}

/// Directories created for mounts. They are removed on drop, unless kept.
#[derive(Debug, Default)]
pub struct CreatedDirectories(Vec<PathBuf>);

impl CreatedDirectories {
    /// Creates the directory `location`, below `root` where there is one, and its parents.
    pub fn create(&mut self, location: &Path, root: Option<&Path>) -> Result<PathBuf> {
        let mut path = match root {
            Some(root) => resolve(root)?,
            None => PathBuf::from("/"),
        };
        for part in location.components().filter(|part| matches!(part, Component::Normal(_))) {
            path.push(part);
            let name = path.display();
            match path.symlink_metadata() {
                Ok(meta) if meta.is_symlink() && root.is_some() => {
                    bail!(
                        "{name} is a symbolic link, which may lead out of --root; replace it with a directory"
                    )
                }
                Ok(_) => {}
                // A dead mount that a crash left; `prepare` removes it.
                Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    std::fs::create_dir(&path).with_context(|| {
                        format!("cannot create {}; choose a writable directory with --root", path.display())
                    })?;
                    self.0.push(path.clone());
                }
                Err(e) => return Err(e).with_context(|| format!("cannot access {name}")),
            }
        }
        Ok(path)
    }

    /// Keeps the directories: they are not removed on drop.
    pub fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for CreatedDirectories {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // One that is in use by now stays.
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// Resolves the absolute path of a mount point, without symbolic links, even where a dead mount is.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    let name = || path.display().to_string();
    let resolved = match path.canonicalize() {
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            let absolute = std::path::absolute(path).with_context(|| format!("cannot access {}", name()))?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(last)) => parent.canonicalize().map(|parent| parent.join(last)),
                _ => Err(e),
            }
        }
        resolved => resolved,
    };
    match resolved {
        Ok(path) if path.to_str().is_none() => Err(MountPointError::NotUtf8(name()).into()),
        Ok(path) => Ok(path),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(MountPointError::NotFound(name()).into()),
        Err(e) => Err(e).with_context(|| format!("cannot access {}", name())),
    }
}

/// Whether a bdnfs mount is where `path` leads to, as far as can be told.
pub fn is_mounted(path: &Path) -> bool {
    resolve(path).is_ok_and(|path| is_ours(&path).is_ok_and(|is_ours| is_ours))
}

/// Whether a bdnfs mount is at `path`, which is [resolved](resolve).
pub fn is_ours(path: &Path) -> Result<bool> {
    Ok(mounts::at(path)?.is_some_and(|mounted| mounted.ours()))
}

/// Checks that this process may use FUSE.
pub fn check_fuse() -> Result<()> {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        // Without the kernel module there may be a device file, which fails with ENODEV or ENXIO.
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Err(MountPointError::NoFuse.into()),
            Some(Errno::ACCESS | Errno::PERM) => Err(MountPointError::FusePermission.into()),
            _ => Err(e).context("cannot open /dev/fuse"),
        },
    }
}

/// The processes, mounts and devices that are seen to use the mount on `path`.
pub fn holders(path: &Path) -> Vec<String> {
    let Some(mounted) = mounts::at(path).ok().flatten() else { return Vec::new() };
    let users = mounts::users(&mounted);
    let processes = users.iter().map(|user| format!("{} (pid {})", user.command, user.pid));
    processes.chain(mounts::dependents(&mounted).iter().map(ToString::to_string)).collect()
}

/// The error that the mount on `path` is in use by `holders`.
pub fn busy_message(path: &Path, holders: &[String]) -> String {
    format_busy(path, holders, geteuid().is_root())
}

fn format_busy(path: &Path, holders: &[String], is_root: bool) -> String {
    let path = path.display();
    if holders.is_empty() && is_root {
        return format!(
            "{path}: target is busy: in use, by nobody who can be seen here; try again, or use `bdnfs umount --lazy {path}`"
        );
    }
    if holders.is_empty() {
        return format!(
            "{path}: target is busy: in use by a process of another user; run as root to see it, or use `bdnfs umount --lazy {path}`"
        );
    }
    format!("{path}: target is busy: in use by {}", holders.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_point_error_says_what_to_do() {
        let texts = [
            (
                MountPointError::NotFound("/m".into()),
                "mount point /m does not exist; create it with `mkdir -p /m`",
            ),
            (
                MountPointError::Mounted("/m".into(), "s3://b/p".into()),
                "s3://b/p is already mounted on /m; unmount it with `bdnfs umount /m`",
            ),
            (MountPointError::NotDirectory("/m".into()), "mount point /m is not a directory"),
            (
                MountPointError::NoFuse,
                "/dev/fuse not found: run `modprobe fuse`, or start the container with `--device /dev/fuse`",
            ),
        ];
        for (error, text) in texts {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn prepare_refuses_what_cannot_be_mounted_on() {
        let dir = tempfile::tempdir().expect("directory");
        let refusal = |result: Result<MountPoint>| {
            result.expect_err("an error").downcast::<MountPointError>().expect("known")
        };
        let missing = dir.path().join("missing");
        assert!(matches!(refusal(prepare(&missing)), MountPointError::NotFound(_)));
        assert!(matches!(refusal(prepare(Path::new("/proc"))), MountPointError::OtherFileSystem(..)));
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("written");
        assert!(matches!(refusal(prepare(&file)), MountPointError::NotDirectory(_)));
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).expect("made");
        assert!(prepare(&empty).expect("usable").notes.is_empty());
        assert_eq!(prepare(dir.path()).expect("usable").notes.len(), 1, "it is not empty");
    }

    #[test]
    fn created_directories_are_below_the_root_and_removed_unless_kept() {
        let dir = tempfile::tempdir().expect("directory");
        let root = dir.path().canonicalize().expect("there");
        std::os::unix::fs::symlink("/etc", root.join("link")).expect("linked");
        let mut created = CreatedDirectories::default();
        let path = created.create(Path::new("/a/b"), Some(&root)).expect("made");
        assert_eq!(path, root.join("a/b"));
        assert_eq!(created.create(Path::new("/a"), Some(&root)).expect("there"), root.join("a"));
        let error = created.create(Path::new("/link/x"), Some(&root)).expect_err("a way out");
        assert!(error.to_string().contains("symbolic link"), "{error}");
        drop(created);
        assert!(!root.join("a").exists());
        let mut created = CreatedDirectories::default();
        created.create(Path::new("/a/b"), Some(&root)).expect("made");
        created.keep();
        assert!(root.join("a/b").is_dir());
    }

    #[test]
    fn busy_message_names_the_holders() {
        let holders = ["python3 (pid 123)", "/dev/loop1"].map(str::to_owned);
        let text = format_busy(Path::new("/m"), &holders, true);
        assert_eq!(text, "/m: target is busy: in use by python3 (pid 123), /dev/loop1");
        assert!(format_busy(Path::new("/m"), &[], false).contains("--lazy /m"));
        assert!(
            format_busy(Path::new("/m"), &[], true).contains("try again, or use `bdnfs umount --lazy /m`")
        );
    }
}
