//! The identity of a mount, by which it is found where it was moved to: with a directory above it, or by itself.

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use bdnfs::error::{Error, Kind, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::mounts;

/// The identity of a mount, which no other mount of this boot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountIdentity {
    /// The id in the mount table. The kernel gives it to another mount once this one is gone.
    id: u64,
    /// The id that is never given again.
    unique: u64,
}

impl MountIdentity {
    /// The identity of the mount that `file` is on; `None` on a Linux that has none (before 6.8). The file system is not asked.
    pub fn of(file: impl AsFd) -> Option<Self> {
        let unique = StatxFlags::from_bits_retain(libc::STATX_MNT_ID_UNIQUE);
        let [id, unique] = [StatxFlags::MNT_ID, unique].map(|kind| {
            let seen = statx(&file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, kind).ok()?;
            (seen.stx_mask & kind.bits() != 0).then_some(seen.stx_mnt_id)
        });
        Some(Self { id: id?, unique: unique? })
    }

    /// Unmounts it where it is now, in use or not; its directory stays there. Returns where that was: `None` if this mount
    /// namespace does not have it any more.
    ///
    /// # Errors
    /// [`Kind::Busy`] where something else is mounted over it; [`Kind::Disk`].
    pub fn detach(self) -> Result<Option<PathBuf>> {
        let Some(entry) = mounts::all()?.into_iter().find(|entry| entry.id == self.id) else {
            return Ok(None);
        };
        let (place, shown) = (&entry.mountpoint, entry.mountpoint.display());
        let failed = |what: &str, error: Errno| {
            Error::with(Kind::Disk, format!("cannot {what} {shown}"), std::io::Error::from(error))
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, place, flags, Mode::empty()).map_err(|e| failed("open", e))?;
        match Self::of(&root) {
            Some(found) if found == self => {}
            // The id is that of a newer mount.
            Some(found) if found.id == self.id => return Ok(None),
            _ => {
                let text = format!("something else is mounted over {shown}; unmount that first");
                return Err(Error::new(Kind::Busy, text));
            }
        }
        // What was opened, wherever it is by now.
        let opened = Path::new("/proc/self/fd").join(root.as_raw_fd().to_string());
        match rustix::mount::unmount(&opened, UnmountFlags::DETACH) {
            Ok(()) => Ok(Some(entry.mountpoint)),
            // Another process was faster.
            Err(Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("unmount", error)),
        }
    }
}
