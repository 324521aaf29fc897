//! Native mounts: a staged snapshot that the kernel serves by itself, as an EROFS over files of the cache. No process is on the path of
//! a reader, and a mount stays when its agent ends.

mod rewrite;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::BufWriter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::native::NativeSnapshot;
use bdnfs::native::image::ImageOptions;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags};
use rustix::process::{getgid, getuid};

use crate::mounts::{self, IMAGE_SUFFIX, MountEntry, NATIVE_TYPE};
use crate::{Mount, Options, mountpoint};

use rewrite::NativeRewriter;

/// How often a mount is looked for: nobody tells when it has ended. A look takes a microsecond.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A native mount. When it is dropped it is detached, unless it is [kept](Self::keep).
#[derive(Debug)]
pub struct NativeMount {
    mountpoint: PathBuf,
    native: Arc<NativeSnapshot>,
    _rewriter: Arc<NativeRewriter>,
    device: (u32, u32),
    kept: AtomicBool,
}

impl NativeMount {
    /// Mounts `native` at the directory `mountpoint`, its image being made in the directory `images`. Blocks on the local disk.
    ///
    /// # Errors
    /// Those of [`Mount::new`](crate::Mount::new); `Unsupported` where the kernel has no EROFS over files (Linux before 6.12).
    pub fn new(
        native: &Arc<NativeSnapshot>,
        mountpoint: &Path,
        images: &Path,
        options: &Options,
    ) -> Result<Self> {
        let mountpoint = mountpoint::prepare(mountpoint)?;
        let superblock = make(native, &mountpoint, images, options)?;
        attach(superblock.as_fd(), &mountpoint, MoveMountFlags::empty())
            .map_err(|e| failed(e, &mountpoint))?;
        let device = crate::mount::device_number(&mountpoint)?;
        Ok(Self::with(native, mountpoint, device))
    }

    /// Mounts `native` in the place of `mount`, which has the same snapshot, and ends that; `None`, and all stays as it is, where
    /// somebody uses it. At no moment is the mount point empty. Blocks on the local disk.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn replace(
        mount: &Mount,
        native: &Arc<NativeSnapshot>,
        images: &Path,
        options: &Options,
    ) -> Result<Option<Self>> {
        let mountpoint = mount.mountpoint().to_owned();
        // Binds of it would go on with FUSE, unknown to anybody.
        if mounts::all()?.iter().filter(|mounted| mounted.device == mount.device).count() > 1 {
            return Ok(None);
        }
        let superblock = make(native, &mountpoint, images, options)?;
        // This does not unmount it, but tells whether it is unused.
        let unused = rustix::mount::unmount(&mountpoint, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW);
        if unused != Err(Errno::AGAIN) {
            return Ok(None);
        }
        attach(superblock.as_fd(), &mountpoint, MoveMountFlags::MOVE_MOUNT_BENEATH)
            .map_err(|e| failed(e, &mountpoint))?;
        // Who has come since then keeps what it has opened.
        mounts::detach(&mountpoint)?;
        let device = crate::mount::device_number(&mountpoint)?;
        Ok(Some(Self::with(native, mountpoint, device)))
    }

    /// Takes up the mount of `native` at `mountpoint` that an earlier process made; `None` where there is none. What else is mounted
    /// over it, that process was about to end.
    ///
    /// # Errors
    /// [`Kind::Disk`] when the mount table can't be read.
    pub fn resume(native: &Arc<NativeSnapshot>, mountpoint: &Path) -> Result<Option<Self>> {
        let is_its = |mounted: &MountEntry| {
            let name = Path::new(&mounted.source).file_name().unwrap_or_default().to_string_lossy();
            mounted.is_native() && name.starts_with(&prefix(native))
        };
        loop {
            let mut there = mounts::all()?;
            there.retain(|mounted| mounted.mountpoint == mountpoint);
            match there.last() {
                Some(top) if is_its(top) => {
                    return Ok(Some(Self::with(native, mountpoint.to_owned(), top.device)));
                }
                Some(_) if there.iter().any(is_its) => mounts::detach(mountpoint)?,
                _ => return Ok(None),
            }
        }
    }

    fn with(native: &Arc<NativeSnapshot>, mountpoint: PathBuf, device: (u32, u32)) -> Self {
        let rewriter = NativeRewriter::start(native, &mountpoint);
        let (native, kept) = (Arc::clone(native), AtomicBool::new(false));
        Self { mountpoint, native, _rewriter: rewriter, device, kept }
    }

    /// What it shows.
    pub fn native(&self) -> &NativeSnapshot {
        &self.native
    }

    /// Removes what an agent that crashed while it mounted left in `images`; makes the directory.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn prepare_images(images: &Path) -> Result<()> {
        let clear = || {
            fs::create_dir_all(images)?;
            fs::read_dir(images)?.try_for_each(|image| fs::remove_file(image?.path()))
        };
        clear().map_err(|e: std::io::Error| Error::disk(format!("cannot use {}", images.display()), e))
    }

    /// The mount point, as a full path.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Leaves the mount as it is when this is dropped: it needs no process.
    pub fn keep(&self) {
        self.kept.store(true, Relaxed);
    }

    /// Whether it is [kept](Self::keep).
    pub fn is_kept(&self) -> bool {
        self.kept.load(Relaxed)
    }

    /// Unmounts it. It is no error if the mount is gone already.
    ///
    /// # Errors
    /// [`Kind::Busy`] when processes use it. The mount stays.
    pub fn unmount(&self) -> Result<()> {
        if self.is_on_top()? { mounts::unmount(&self.mountpoint) } else { Ok(()) }
    }

    /// Waits until no mount of this mount namespace shows it any more.
    pub async fn ended(&self) {
        loop {
            match self.is_mounted() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::warn!(%error, "cannot tell whether a mount has ended"),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether the mount point shows it.
    fn is_on_top(&self) -> Result<bool> {
        Ok(mounts::at(&self.mountpoint)?.is_some_and(|mounted| mounted.device == self.device))
    }

    /// Whether it is mounted anywhere. Most often one look at its mount point tells.
    fn is_mounted(&self) -> Result<bool> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let seen = rustix::fs::statx(CWD, &self.mountpoint, flags, StatxFlags::empty());
        if seen.is_ok_and(|seen| (seen.stx_dev_major, seen.stx_dev_minor) == self.device) {
            return Ok(true);
        }
        Ok(mounts::all()?.iter().any(|mounted| mounted.device == self.device))
    }
}

impl Drop for NativeMount {
    fn drop(&mut self) {
        if self.is_kept() {
            return;
        }
        let detached = match self.is_on_top() {
            Ok(true) => mounts::detach(&self.mountpoint),
            other => other.map(|_| ()),
        };
        if let Err(error) = detached {
            tracing::warn!(mountpoint = %self.mountpoint.display(), %error, "cannot unmount");
        }
    }
}

/// A superblock of `native`, mounted nowhere yet.
fn make(native: &NativeSnapshot, mountpoint: &Path, images: &Path, options: &Options) -> Result<OwnedFd> {
    let image_options = ImageOptions {
        uid: options.uid.unwrap_or_else(|| getuid().as_raw()),
        gid: options.gid.unwrap_or_else(|| getgid().as_raw()),
        allow_other: options.allow_other,
        control: options.control.clone(),
    };
    // The kernel keeps the file, so its name may go as soon as the superblock is made.
    let image = tempfile::Builder::new()
        .prefix(&prefix(native))
        .suffix(IMAGE_SUFFIX)
        .tempfile_in(images)
        .map_err(|e| Error::disk(format!("cannot make an image in {}", images.display()), e))?;
    native.write_image(&image_options, BufWriter::with_capacity(1 << 20, image.as_file()))?;
    let devices = native.devices()?;
    let superblock = match superblock(image.path(), &devices, true) {
        // Kernels before 6.14, and disks that can't be read past the page cache.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => superblock(image.path(), &devices, false),
        made => made,
    };
    superblock.map_err(|e| failed(e, mountpoint))
}

/// How the names of the images of a snapshot begin.
fn prefix(native: &NativeSnapshot) -> String {
    format!("{}-", native.snapshot().tree_id())
}

/// A superblock over `image` and `devices`, mounted nowhere yet. `direct`: the page cache of the devices' files is not used, so
/// that nothing is cached twice.
fn superblock(image: &Path, devices: &[PathBuf], direct: bool) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(NATIVE_TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_flag(&context, "ro")?;
    rustix::mount::fsconfig_set_string(&context, "source", image)?;
    for device in devices {
        rustix::mount::fsconfig_set_string(&context, "device", device)?;
    }
    if direct {
        rustix::mount::fsconfig_set_flag(&context, "directio")?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn attach(superblock: BorrowedFd<'_>, mountpoint: &Path, how: MoveMountFlags) -> rustix::io::Result<()> {
    rustix::mount::move_mount(superblock, "", CWD, mountpoint, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | how)
}

fn failed(error: Errno, mountpoint: &Path) -> Error {
    let kind = match error {
        Errno::PERM | Errno::ACCESS => Kind::Refused,
        Errno::NODEV | Errno::NOTBLK | Errno::NOSYS | Errno::OPNOTSUPP => Kind::Unsupported,
        _ => Kind::Disk,
    };
    let text = format!("cannot mount an EROFS at {}", mountpoint.display());
    Error::with(kind, text, std::io::Error::from(error))
}
