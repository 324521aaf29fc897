//! Mount points in a volume of the job, such as a training cache that repositories of the Hub are shown in: directories of the
//! volume, which other jobs write to at the same time, so that a link may lie anywhere in it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use bdnfs::error::{Error, Kind, Result};
use bdnfs::weights::has_parent;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, chownat, fchmod, fstat, mkdirat, openat2};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};

use crate::context::Context;

/// A directory to mount on.
#[derive(Debug)]
pub struct MountTarget {
    /// The directory.
    pub directory: OwnedFd,
    /// Whether it has entries, which the mount hides.
    pub has_entries: bool,
}

/// Opens the directory `below` in that of `volume`. What is missing of it is made, for those who may use the directory above. No
/// link is followed.
///
/// # Errors
/// [`Kind::Refused`] where something else is in its place; [`Kind::Invalid`] for a path with `..`; [`Kind::Disk`].
pub fn open(volume: &OwnedFd, below: &Path) -> Result<MountTarget> {
    let mut directory = open_entry(volume, Path::new(".")).context("cannot open the volume")?;
    let mut reached = PathBuf::new();
    for part in below.components() {
        let Component::Normal(name) = part else {
            return Err(Error::new(Kind::Invalid, has_parent(&below.to_string_lossy())));
        };
        let name = Path::new(name);
        reached.push(name);
        directory = match open_entry(&directory, name) {
            Err(Errno::NOENT) => make(&directory, name),
            opened => opened,
        }
        .map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR | Errno::XDEV => {
                let reached = reached.display();
                Error::new(Kind::Refused, format!("{reached} is a symbolic link or a file there; remove it"))
            }
            errno => Error::disk(format!("cannot use {}", reached.display()), errno.into()),
        })?;
    }
    let is_dot = |name: &[u8]| matches!(name, b"." | b"..");
    let mut entries = Dir::read_from(&directory).context("cannot read it")?;
    let has_entries = entries.any(|entry| entry.is_ok_and(|entry| !is_dot(entry.file_name().to_bytes())));
    Ok(MountTarget { directory, has_entries })
}

/// Opens the directory `name` in `directory`, neither behind a link nor of another mount.
fn open_entry(directory: impl AsFd, name: &Path) -> rustix::io::Result<OwnedFd> {
    let beneath = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(directory, name, flags, Mode::empty(), beneath)
}

/// Makes the directory `name` in `parent`, with its owner and mode.
fn make(parent: &OwnedFd, name: &Path) -> rustix::io::Result<OwnedFd> {
    let is_made = match mkdirat(parent, name, Mode::RWXU) {
        // Another job was faster.
        Err(Errno::EXIST) => false,
        made => made.map(|()| true)?,
    };
    let (made, above) = (open_entry(parent, name)?, fstat(parent)?);
    // Another job may have moved one of its own there.
    if is_made && fstat(&made)?.st_uid == geteuid().as_raw() {
        fchmod(&made, Mode::from_raw_mode(above.st_mode & 0o3777))?;
        let (owner, group) = (Uid::from_raw(above.st_uid), Gid::from_raw(above.st_gid));
        chownat(&made, "", Some(owner), Some(group), AtFlags::EMPTY_PATH)?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn mount_point_is_made_like_the_directory_above_and_never_behind_a_link() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("tree");
        fs::create_dir(&path).unwrap();
        chown(&path, Some(1234), Some(5678)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o1777)).unwrap();
        let volume: OwnedFd = File::open(&path).unwrap().into();
        let point = open(&volume, Path::new("hub/models--a--b")).unwrap();
        assert!(!point.has_entries);
        for below in ["hub", "hub/models--a--b"] {
            let made = fs::metadata(path.join(below)).unwrap();
            assert_eq!((made.mode() & 0o7777, made.uid(), made.gid()), (0o1777, 1234, 5678), "{below}");
        }
        assert!(open(&volume, Path::new("hub")).unwrap().has_entries);
        let other = home.path().join("other");
        fs::create_dir(&other).unwrap();
        symlink(&other, path.join("link")).unwrap();
        symlink("hub", path.join("beside")).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        symlink(&other, path.join("hub/link")).unwrap();
        for (below, name) in [
            ("link", "link"),
            ("link/models--a--b", "link"),
            ("beside/models--a--b", "beside"),
            ("file", "file"),
            ("file/models--a--b", "file"),
            ("hub/link/models--a--b", "hub/link"),
        ] {
            let error = open(&volume, Path::new(below)).unwrap_err();
            assert_eq!(error.to_string(), format!("{name} is a symbolic link or a file there; remove it"));
        }
        for below in ["../other/x", "hub/../../other/x", "/other"] {
            assert_eq!(open(&volume, Path::new(below)).unwrap_err().kind(), Kind::Invalid, "{below}");
        }
        assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    }
}
