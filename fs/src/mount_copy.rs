//! A detached copy of a mount or directory, for another mount namespace or directory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use bdnfs::error::{Error, Kind, Result};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::mount_identity::MountIdentity;
use crate::mounts::{self, MountEntry};

/// A copy of a mount: without devices and set-user-ID, and private, so that it follows no other. It is unmounted when it is dropped
/// before it was attached.
#[derive(Debug)]
pub struct DetachedMount(OwnedFd);

impl DetachedMount {
    /// Copies the bdnfs mount at or above `path`, read-only, as it is seen at `path`.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where this process sees no such mount there, but what it would cover; [`Kind::Disk`] where there is no
    /// directory, or this process may not mount.
    pub fn copy_of(path: &Path) -> Result<Self> {
        // Before and after: it may become native in between.
        let before = mounts::list()?;
        let copy = Self::copy(path, libc::MOUNT_ATTR_RDONLY)?;
        let shows = |mounted: &MountEntry| mounts::lies_on(&copy.0, "", mounted.device);
        if before.iter().any(shows) || mounts::list()?.iter().any(shows) {
            return Ok(copy);
        }
        let text = format!(
            "nothing is mounted at {} in this mount namespace; run this where the agent runs, or share its mounts",
            path.display()
        );
        Err(Error::new(Kind::NotFound, text))
    }

    /// Makes a mount of the directory `path`, as writable as that is.
    ///
    /// # Errors
    /// [`Kind::Disk`] where there is no directory, or this process may not mount.
    pub fn writable_copy_of(path: &Path) -> Result<Self> {
        Self::copy(path, 0)
    }

    fn copy(path: &Path, attributes: u64) -> Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let copy = open_tree(CWD, path, flags).and_then(|tree| {
            restrict(&tree, attributes)?;
            Ok(Self(tree))
        });
        copy.map_err(|e| Error::disk(format!("cannot copy the mount {}", path.display()), e.into()))
    }

    /// The identity that the mount has, attached or not.
    pub fn identity(&self) -> Option<MountIdentity> {
        MountIdentity::of(&self.0)
    }

    /// Mounts it on the directory `target`, in the mount namespace of this thread.
    ///
    /// # Errors
    /// As move_mount(2).
    pub fn attach(self, target: impl AsFd) -> std::result::Result<(), Errno> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&self.0, c"", target, c"", flags)
    }
}

impl From<DetachedMount> for OwnedFd {
    fn from(mount: DetachedMount) -> Self {
        mount.0
    }
}

fn restrict(tree: &OwnedFd, others: u64) -> std::result::Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | others,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: path and attributes outlive the call, and the size is that of the attributes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
