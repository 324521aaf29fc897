//! Mounting and unmounting: by the system call where that is allowed, else by the setuid helper
//! `fusermount3`.

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use bdnfs::error::{Error, Kind, Result};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getgid, getuid};

use crate::device::Device;
use crate::fusermount;

/// The file system type of our mounts: `fuse` for the kernel, the rest for people.
pub(crate) const FUSE_TYPE: &str = "fuse.bdnfs";

/// The kernel's readahead, in KiB: four requests, so that the network has work while a reader uses what came.
const READ_AHEAD_KIB: u32 = 4096;

/// Mounts a file system with the source name `source` at `mountpoint`. The kernel checks permissions by the modes that files
/// show. Only the mounting user may use it, unless `allow_other`.
///
/// # Errors
/// Those of [`Device::open`], and [`Kind::Refused`] when neither way is open to this user.
pub(crate) fn mount(mountpoint: &Path, source: &str, allow_other: bool) -> Result<Device> {
    let device = Device::open()?;
    let failed = |e: Errno| {
        Error::with(
            Kind::Invalid,
            format!("cannot mount at {}", mountpoint.display()),
            std::io::Error::from(e),
        )
    };
    let other = if allow_other { ",allow_other" } else { "" };
    let fd = std::os::fd::AsFd::as_fd(&device).as_raw_fd();
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let data = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},default_permissions{other}");
    let data = CString::new(data).map_err(|_| failed(Errno::INVAL))?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    match rustix::mount::mount(source, mountpoint, FUSE_TYPE, flags, data.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => {
            drop(device);
            fusermount::mount(mountpoint, source, allow_other)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Unmounts what is mounted at `mountpoint`. It is no error if nothing is.
///
/// # Errors
/// [`Kind::Busy`] when it is in use.
pub fn unmount(mountpoint: &Path) -> Result<()> {
    unmount_with(mountpoint, UnmountFlags::NOFOLLOW, &["-u"])
}

/// Detaches the mount at `mountpoint` from the tree at once (a lazy unmount); processes that use it may go on.
///
/// # Errors
/// Those of [`unmount`], but it is never busy.
pub fn detach(mountpoint: &Path) -> Result<()> {
    unmount_with(mountpoint, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, &["-u", "-z"])
}

fn unmount_with(mountpoint: &Path, flags: UnmountFlags, helper: &[&str]) -> Result<()> {
    match rustix::mount::unmount(mountpoint, flags) {
        // INVAL: it is no mountpoint, or no more.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => {
            Err(Error::new(Kind::Busy, format!("the mount at {} is in use", mountpoint.display())))
        }
        Err(Errno::PERM) => fusermount::unmount(mountpoint, helper),
        Err(error) => Err(Error::with(
            Kind::Disk,
            format!("cannot unmount {}", mountpoint.display()),
            std::io::Error::from(error),
        )),
    }
}

/// The device number of the mount at `mountpoint`. It is read without a request to this process itself: killed while it waits
/// for its own reply, it could never end.
pub(crate) fn device_number(mountpoint: &Path) -> Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let root = rustix::fs::statx(CWD, mountpoint, flags, StatxFlags::empty())
        .map_err(|e| Error::with(Kind::Disk, "cannot stat the new mount", std::io::Error::from(e)))?;
    Ok((root.stx_dev_major, root.stx_dev_minor))
}

/// Sets the kernel's readahead on `device`, where this process may.
pub(crate) fn set_read_ahead((major, minor): (u32, u32)) {
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = fs::write(&knob, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(%error, knob, "cannot set the kernel's readahead");
    }
}
