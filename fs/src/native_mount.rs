//! Native mounts: a staged snapshot that the kernel serves by itself, as an EROFS over files of the cache. No process is on the
//! path of a reader, and a mount stays when its agent ends.

mod device_repair;
mod superblock;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::native::NativeSnapshot;
use bdnfs::task::blocking;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount};
use rustix::path::Arg;

use crate::mounts;
use crate::{Mount, Options, mountpoint};

use superblock::NativeSuperblock;
pub use superblock::Superblocks;

/// The interval at which it is checked whether a mount has ended: the kernel does not tell. A check takes a microsecond.
const MOUNT_END_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The interval at which copies of an unmounted mount are looked for: that asks for the mount namespaces of all processes.
const COPIES_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The number of looks at a FUSE mount before it counts as in use, and the pause between them. Who only looks at it, such as a
/// monitor that asks for its size, is gone by then.
const USE_CHECKS: usize = 10;
const USE_CHECK_PAUSE: Duration = Duration::from_millis(50);
/// The number of attempts at a replacement where somebody looks at the mount at the very moment of it.
const REPLACE_TRIES: usize = 3;
/// STATX_MNT_ID_UNIQUE (linux/stat.h, since 6.8): a mount id that is never given twice while the machine is up.
const MNT_ID_UNIQUE: u32 = 0x4000;

/// A native mount. When it is dropped it is detached, unless it is [kept](Self::keep).
#[derive(Debug)]
pub struct NativeMount {
    mountpoint: PathBuf,
    /// The mount id, which no other mount has had or will have while the machine is up. Unknown of one that was covered when it was
    /// taken over, until it is uncovered: the kernel tells that of the uppermost only.
    id: OnceLock<u64>,
    /// The device number of its superblock.
    device: (u32, u32),
    superblock: Arc<NativeSuperblock>,
    kept: AtomicBool,
    left: Arc<AtomicBool>,
}

impl NativeMount {
    /// Mounts `native` at the directory `mountpoint`. Blocks on the local disk.
    ///
    /// # Errors
    /// Those of [`Mount::new`](crate::Mount::new); `Unsupported` where the kernel has no EROFS over files (Linux before 6.12).
    pub fn new(
        superblocks: &Superblocks,
        native: &Arc<NativeSnapshot>,
        mountpoint: &Path,
        options: &Options,
    ) -> Result<Self> {
        let mountpoint = mountpoint::prepare(mountpoint)?;
        let put = || Ok(true);
        let mounted =
            Self::attach(superblocks, native, &mountpoint, options, (MoveMountFlags::empty(), put))?;
        mounted.ok_or_else(|| failed(Errno::BUSY, &mountpoint))
    }

    /// Replaces `mount`, which has the same snapshot, by `native`; `None`, and nothing changes, where it is
    /// in use. At no moment is the mount point empty. Blocks on the local disk.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn replace(
        superblocks: &Superblocks,
        mount: &Mount,
        native: &Arc<NativeSnapshot>,
        options: &Options,
    ) -> Result<Option<Self>> {
        let mountpoint = mount.mountpoint();
        let is_alone = || -> Result<bool> {
            // Bind mounts of it, here or in a container, would stay on FUSE unnoticed.
            let mounts = mounts::all()?.iter().filter(|mounted| mounted.device == mount.device).count();
            Ok(mounts == 1 && !mounts::is_mounted_elsewhere(mountpoint)?)
        };
        let unused = || Ok(is_alone()? && mark_unused(mountpoint));
        for _ in 0..REPLACE_TRIES {
            // Before anything is made, or others are kept waiting.
            if !await_unused(mountpoint) || !is_alone()? {
                return Ok(None);
            }
            let how = (MoveMountFlags::MOVE_MOUNT_BENEATH, unused);
            if let Some(mounted) = Self::attach(superblocks, native, mountpoint, options, how)? {
                // A process that came since then keeps what it has opened.
                mounts::detach(mountpoint)?;
                return Ok(Some(mounted));
            }
        }
        Ok(None)
    }

    /// Takes over the mount of `native` at `mountpoint` that an earlier process made; `None` where there is
    /// none. What else of bdnfs is mounted over it, that process was about to end; what is another's stays.
    ///
    /// # Errors
    /// [`Kind::Disk`] when the mount table can't be read.
    pub fn resume(
        superblocks: &Superblocks,
        native: &Arc<NativeSnapshot>,
        mountpoint: &Path,
        options: &Options,
    ) -> Result<Option<Self>> {
        let there = mounts::stack_at(mountpoint)?;
        for (above, mounted) in there.iter().rev().enumerate() {
            let Some(superblock) = superblocks.resume(native, mounted, options)? else { continue };
            let own_covers = there.iter().rev().take(above).take_while(|cover| cover.ours()).count();
            (0..own_covers).try_for_each(|_| mounts::detach(mountpoint))?;
            let resumed = Self::with(superblock, mountpoint, (OnceLock::new(), mounted.device));
            if !resumed.is_on_top() {
                tracing::warn!(mountpoint = %mountpoint.display(), "another mount covers a native mount");
            }
            return Ok(Some(resumed));
        }
        Ok(None)
    }

    fn attach(
        superblocks: &Superblocks,
        native: &Arc<NativeSnapshot>,
        mountpoint: &Path,
        options: &Options,
        (how, is_wanted): (MoveMountFlags, impl FnOnce() -> Result<bool>),
    ) -> Result<Option<Self>> {
        let (mut id, mut device) = Default::default();
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | how;
        let superblock = superblocks.mount(native, mountpoint, options, |mount| {
            let is_wanted = is_wanted()?;
            if is_wanted {
                let attached = look_at(mount, "", AtFlags::EMPTY_PATH)
                    .and_then(|seen| move_mount(mount, "", CWD, mountpoint, flags).map(|()| seen));
                (id, device) = attached.map_err(|e| failed(e, mountpoint))?;
            }
            Ok(is_wanted)
        })?;
        Ok(superblock.map(|superblock| Self::with(superblock, mountpoint, (OnceLock::from(id), device))))
    }

    fn with(
        superblock: Arc<NativeSuperblock>,
        mountpoint: &Path,
        (id, device): (OnceLock<u64>, (u32, u32)),
    ) -> Self {
        let (kept, left) = Default::default();
        Self { mountpoint: mountpoint.to_owned(), id, device, superblock, kept, left }
    }

    /// The snapshot that the mount shows.
    pub fn native(&self) -> &NativeSnapshot {
        &self.superblock.native
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
    /// [`Kind::Busy`] when processes use it, or another mount covers it. The mount stays.
    pub fn unmount(&self) -> Result<()> {
        // A repair that has a file of it open is not a process that uses it.
        let _dropping = self.superblock.dropping.lock();
        self.end_with(mounts::unmount)
    }

    /// Detaches it from the directory tree; processes that use it go on. It is no error if the mount is gone already.
    ///
    /// # Errors
    /// [`Kind::Busy`] when another mount covers it. The mount stays.
    pub fn detach(&self) -> Result<()> {
        self.end_with(mounts::detach)
    }

    fn end_with(&self, end: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if self.is_on_top() {
            end(&self.mountpoint)
        } else if self.superblock.is_mounted_at(&self.mountpoint)? {
            Err(covered(&self.mountpoint))
        } else {
            Ok(())
        }
    }

    /// Waits until it is unmounted. The last of the mounts of one superblock waits until no mount of any namespace shows it: its
    /// blobs are read as long.
    pub async fn await_end(&self) {
        while !self.left.load(Relaxed) {
            let pause =
                if self.is_on_top() { Ok(MOUNT_END_POLL_INTERVAL) } else { self.leave_if_unmounted().await };
            let pause = pause.unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot tell whether a mount has ended");
                MOUNT_END_POLL_INTERVAL
            });
            tokio::time::sleep(pause).await;
        }
    }

    /// Leaves the superblock, if it is unmounted; returns the time until the next look.
    async fn leave_if_unmounted(&self) -> Result<Duration> {
        let (superblock, mountpoint) = (Arc::clone(&self.superblock), self.mountpoint.clone());
        let left = Arc::clone(&self.left);
        let look = move || {
            if superblock.is_mounted_at(&mountpoint)? {
                return Ok(MOUNT_END_POLL_INTERVAL);
            }
            left.store(superblock.leave(&mountpoint)?, Relaxed);
            Ok(if left.load(Relaxed) { Duration::ZERO } else { COPIES_POLL_INTERVAL })
        };
        // The tables of all mount namespaces may be long.
        blocking(look).await
    }

    /// Whether the mount point shows it.
    pub fn is_on_top(&self) -> bool {
        let Ok((id, device)) = look_at(CWD, &self.mountpoint, AtFlags::NO_AUTOMOUNT) else { return false };
        if device == self.device {
            self.id.get_or_init(|| id);
        }
        self.id.get() == Some(&id)
    }
}

impl Drop for NativeMount {
    fn drop(&mut self) {
        if self.is_kept() || self.left.load(Relaxed) {
            return;
        }
        let detached = if self.is_on_top() { mounts::detach(&self.mountpoint) } else { Ok(()) };
        if let Err(error) = detached.and_then(|()| self.superblock.leave(&self.mountpoint)) {
            tracing::warn!(mountpoint = %self.mountpoint.display(), %error, "cannot unmount");
        }
    }
}

/// Waits until nobody uses the mount at `mountpoint`, for half a second. False where somebody still does.
fn await_unused(mountpoint: &Path) -> bool {
    let is_unused = (0..USE_CHECKS).any(|check| {
        if check > 0 {
            thread::sleep(USE_CHECK_PAUSE);
        }
        mark_unused(mountpoint)
    });
    // Any use takes the mark away: a marked one would be unmounted by the next look.
    let _ = rustix::fs::open(mountpoint, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    is_unused
}

/// Marks the mount at `mountpoint` as expired if nobody uses it, and says whether it did. It stays mounted, if it was not marked.
fn mark_unused(mountpoint: &Path) -> bool {
    let expire = UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW;
    rustix::mount::unmount(mountpoint, expire) == Err(Errno::AGAIN)
}

fn covered(mountpoint: &Path) -> Error {
    let text = format!("another mount covers the mount at {}; unmount that one first", mountpoint.display());
    Error::new(Kind::Busy, text)
}

/// The id of the mount at `path`, which no other gets while the machine is up, and its device number.
fn look_at(at: impl AsFd, path: impl Arg, flags: AtFlags) -> rustix::io::Result<(u64, (u32, u32))> {
    let mask = StatxFlags::from_bits_retain(MNT_ID_UNIQUE);
    let seen = statx(at, path, flags | AtFlags::STATX_DONT_SYNC, mask)?;
    Ok((seen.stx_mnt_id, (seen.stx_dev_major, seen.stx_dev_minor)))
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
