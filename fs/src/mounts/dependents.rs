//! Dependents of a mount in the kernel, which keep it from being unmounted without a process that has anything open.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{MountEntry, all};

/// The directory in which the kernel lists block devices, loop devices among them.
const BLOCK_DEVICES_PATH: &str = "/sys/block";

/// Something in the kernel that depends on a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountDependent {
    /// A mount below it.
    Mount(PathBuf),
    /// A loop device whose file lies in it.
    Loop(PathBuf),
}

impl fmt::Display for MountDependent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(at) => write!(f, "the mount at {}", at.display()),
            Self::Loop(device) => write!(f, "{}", device.display()),
        }
    }
}

/// Lists what depends on `mounted`, as far as this mount namespace shows it.
pub fn dependents(mounted: &MountEntry) -> Vec<MountDependent> {
    let mut found = mounts_below(all().unwrap_or_default(), &mounted.mountpoint);
    let devices = fs::read_dir(BLOCK_DEVICES_PATH).into_iter().flatten().flatten();
    found.extend(devices.filter_map(|device| {
        let file = fs::read(device.path().join("loop/backing_file")).ok()?;
        let lies_in_it = Path::new(OsStr::from_bytes(file.trim_ascii_end())).starts_with(&mounted.mountpoint);
        lies_in_it.then(|| MountDependent::Loop(Path::new("/dev").join(device.file_name())))
    }));
    found
}

/// Those of `mounts` that are below `mountpoint`. An overlay is none of them: it has copies of the mounts of its layers.
fn mounts_below(mounts: Vec<MountEntry>, mountpoint: &Path) -> Vec<MountDependent> {
    let is_below = |at: &PathBuf| at != mountpoint && at.starts_with(mountpoint);
    let mountpoints = mounts.into_iter().map(|mounted| mounted.mountpoint);
    mountpoints.filter(is_below).map(MountDependent::Mount).collect()
}

#[cfg(test)]
mod tests {
    use super::super::entries;
    use super::*;

    #[test]
    fn mounts_below_a_mount_depend_on_it() {
        let table = b"1 0 0:40 / /mnt/model rw - fuse.bdnfs s3://x rw\n\
            2 1 8:1 / /mnt/model/below rw - ext4 /dev/a rw\n\
            3 1 8:1 / /mnt/models rw - ext4 /dev/a rw\n";
        let found = mounts_below(entries(table).collect(), Path::new("/mnt/model"));
        let named: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(named, ["the mount at /mnt/model/below"]);
    }
}
