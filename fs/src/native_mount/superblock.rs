//! Superblocks: the file systems that native mounts show. However often a snapshot is mounted with one owner and the same
//! permissions, it has one, so that its pages are cached once and its blobs are opened once.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::BufWriter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use bdnfs::blob::Key;
use bdnfs::cache::directory::CacheDirectory;
use bdnfs::digest::Digest;
use bdnfs::error::{Error, Result};
use bdnfs::native::NativeSnapshot;
use bdnfs::native::image::ImageOptions;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::process::{getgid, getuid};

use crate::Options;
use crate::mount_copy::DetachedMount;
use crate::mounts::{self, IMAGE_SUFFIX, MountEntry, NATIVE_TYPE};

use super::failed;

/// The directory of a cache in which images are made.
const IMAGES_DIRECTORY: &str = "images";

/// The digest of each block of a file; `None` for one that the disk can't read.
pub(super) type BlockDigests = Vec<Option<Digest>>;

/// The superblocks of an agent, and the directory in which their images are made.
#[derive(Debug)]
pub struct Superblocks {
    images: PathBuf,
    live: Mutex<Vec<Weak<NativeSuperblock>>>,
}

/// A superblock: an image over files of the cache, which the kernel serves.
#[derive(Debug)]
pub(super) struct NativeSuperblock {
    /// The path of its image, which the mount table shows; the file has no name any more.
    image: PathBuf,
    /// The snapshot that it shows.
    pub(super) native: Arc<NativeSnapshot>,
    /// The mount points, each with the snapshot of that mount.
    mounted: Mutex<Vec<(PathBuf, Arc<NativeSnapshot>)>>,
    /// The digests of damaged devices, from when the damage is found until it is repaired.
    pub(super) damaged: Mutex<HashMap<Key, BlockDigests>>,
    /// The devices that are being repaired.
    pub(super) repairing: Mutex<HashSet<Key>>,
    /// Held while a repair has a file of a mount open, which then can't be unmounted.
    pub(super) dropping: Mutex<()>,
    /// A reference to itself, for its tasks.
    pub(super) own: Weak<Self>,
}

impl Superblocks {
    /// The superblocks whose images are made in a directory of the cache directory `cache`. Makes it, and removes what an agent
    /// that crashed while it mounted left there, but not the marks of superblocks that are still mounted.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk), also where the directory is a symbolic link or another user's.
    pub fn open(cache: &CacheDirectory) -> Result<Self> {
        let clear = || {
            let directory = cache.subdirectory(IMAGES_DIRECTORY)?;
            let images = directory.path().canonicalize()?;
            for entry in fs::read_dir(&images)? {
                let name = entry?.file_name();
                let path = images.join(&name);
                let is_live =
                    is_mark(&path) && mounts::is_shown_anywhere(&path.with_extension("")).unwrap_or(true);
                if !is_live && (is_mark(&path) || is_image(&path)) {
                    rustix::fs::unlinkat(directory.descriptor(), &name, AtFlags::empty())?;
                }
            }
            Ok(images)
        };
        let cannot = |e: std::io::Error| {
            let images = cache.path().join(IMAGES_DIRECTORY);
            Error::disk(format!("cannot use {} for images", images.display()), e)
        };
        Ok(Self { images: clear().map_err(cannot)?, live: Mutex::default() })
    }

    /// Mounts `native` at `mountpoint` by `attach`, from the superblock that there is or a new one. `None` where that
    /// attached nothing. Blocks on the local disk.
    pub(super) fn mount(
        &self,
        native: &Arc<NativeSnapshot>,
        mountpoint: &Path,
        options: &Options,
        attach: impl FnOnce(BorrowedFd<'_>) -> Result<bool>,
    ) -> Result<Option<Arc<NativeSuperblock>>> {
        let prefix = prefix(native, options);
        // One at a time, so that the next finds what this one makes.
        let mut live = self.live.lock();
        live.retain(|superblock| superblock.strong_count() > 0);
        let mut shared = live.iter().filter_map(Weak::upgrade);
        let (superblock, mount) = match shared.find_map(|found| Some((found.copy(&prefix)?, found))) {
            Some((mount, found)) => (found, mount),
            None => {
                let (superblock, mount) = self.make(native, &prefix, mountpoint, options)?;
                live.push(Arc::downgrade(&superblock));
                (superblock, mount)
            }
        };
        if !attach(mount.as_fd())? {
            return Ok(None);
        }
        superblock.mounted.lock().push((mountpoint.to_owned(), Arc::clone(native)));
        Ok(Some(superblock))
    }

    /// The superblock of `native` that an earlier process mounted as `mounted`; `None` where that is another.
    pub(super) fn resume(
        &self,
        native: &Arc<NativeSnapshot>,
        mounted: &MountEntry,
        options: &Options,
    ) -> Result<Option<Arc<NativeSuperblock>>> {
        let image = Path::new(&mounted.source);
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        let is_its = image.parent() == Some(&self.images) && is_image_of(&name, &prefix(native, options));
        if !mounted.is_native() || !is_its {
            return Ok(None);
        }
        let mut live = self.live.lock();
        let mut shared = live.iter().filter_map(Weak::upgrade);
        let superblock = match shared.find(|superblock| superblock.image == image) {
            Some(superblock) => superblock,
            None => {
                let superblock = NativeSuperblock::new(image.to_owned(), native);
                superblock.repair_all()?;
                superblock.renew_pack(None);
                live.push(Arc::downgrade(&superblock));
                superblock
            }
        };
        superblock.mounted.lock().push((mounted.mountpoint.clone(), Arc::clone(native)));
        Ok(Some(superblock))
    }

    /// A new superblock, and a mount of it that is seen nowhere yet.
    fn make(
        &self,
        native: &Arc<NativeSnapshot>,
        prefix: &str,
        mountpoint: &Path,
        options: &Options,
    ) -> Result<(Arc<NativeSuperblock>, OwnedFd)> {
        let (uid, gid) = owner(options);
        let image_options =
            ImageOptions { uid, gid, allow_other: options.allow_other, control: options.control.clone() };
        // The kernel keeps the file, so its name may go as soon as the superblock is made.
        let image = tempfile::Builder::new()
            .prefix(prefix)
            .suffix(IMAGE_SUFFIX)
            .tempfile_in(&self.images)
            .map_err(|e| Error::disk(format!("cannot make an image in {}", self.images.display()), e))?;
        native.write_image(&image_options, BufWriter::with_capacity(1 << 20, image.as_file()))?;
        // It listens for damage before the kernel opens the devices.
        let superblock = NativeSuperblock::new(image.path().to_owned(), native);
        let devices = native.devices()?;
        let made = match create(image.path(), &devices, true) {
            // Kernels before 6.14, and disks that can't be read past the page cache.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => create(image.path(), &devices, false),
            made => made,
        };
        let mount = made.map_err(|e| failed(e, mountpoint))?;
        // Before it listened, something may have been found damaged that the pack is made of.
        superblock.renew_pack(None);
        Ok((superblock, mount))
    }
}

impl NativeSuperblock {
    fn new(image: PathBuf, native: &Arc<NativeSnapshot>) -> Arc<Self> {
        let (native, mounted) = (Arc::clone(native), Mutex::default());
        let (damaged, repairing, dropping) = Default::default();
        let superblock = Arc::new_cyclic(|own| Self {
            image,
            native,
            mounted,
            damaged,
            repairing,
            dropping,
            own: Weak::clone(own),
        });
        let listener: Weak<Self> = Arc::downgrade(&superblock);
        superblock.native.snapshot().on_removal(listener);
        superblock
    }

    /// The mounts of it that can be seen.
    pub(super) fn roots(&self) -> Result<Vec<MountEntry>> {
        Ok(mounts::all()?.into_iter().filter(|mounted| self.is_shown_by(mounted)).collect())
    }

    /// Whether it is mounted at `mountpoint`, even with another mount over it.
    pub(super) fn is_mounted_at(&self, mountpoint: &Path) -> Result<bool> {
        Ok(self.roots()?.iter().any(|mounted| mounted.mountpoint == mountpoint))
    }

    /// The file that says that the device `key` may have been read while it was damaged. It need not outlive a power cut: no page
    /// does.
    ///
    /// The cache's own [marks of removals](bdnfs::cache::removal_marks) would not do. They go when all listeners of one process are
    /// done; this one stays until the kernel has dropped the pages or the superblock: an agent that can't take the mount up, such
    /// as for want of a secret, leaves it to the next. And it says which file the kernel reads.
    pub(super) fn mark(&self, key: &Key) -> PathBuf {
        self.image.with_added_extension(key.to_string())
    }

    /// The mount points.
    fn mountpoints(&self) -> Vec<PathBuf> {
        self.mounted.lock().iter().map(|(mountpoint, _)| mountpoint.clone()).collect()
    }

    /// The snapshot that it shows, and those of its other mounts, which may have other credentials for the source.
    pub(super) fn snapshots(&self) -> Vec<Arc<NativeSnapshot>> {
        let mounted = self.mounted.lock();
        let others = mounted.iter().map(|(_, native)| native);
        let others = others.filter(|native| !Arc::ptr_eq(native, &self.native));
        [&self.native].into_iter().chain(others).cloned().collect()
    }

    /// Whether `mounted` shows it.
    pub(super) fn is_shown_by(&self, mounted: &MountEntry) -> bool {
        mounted.is_native() && Path::new(&mounted.source) == self.image
    }

    /// Another mount of it, if its image is one [of](is_image_of) `prefix`; `None` where it is mounted nowhere any more.
    fn copy(&self, prefix: &str) -> Option<OwnedFd> {
        let name = self.image.file_name()?.to_str()?;
        let mountpoints = if is_image_of(name, prefix) { self.mountpoints() } else { Vec::new() };
        mountpoints.into_iter().find_map(|mountpoint| {
            let mounted =
                mounts::at(&mountpoint).ok().flatten().filter(|mounted| self.is_shown_by(mounted))?;
            let copy = OwnedFd::from(DetachedMount::copy_of(&mountpoint).ok()?);
            let seen = statx(&copy, "", AtFlags::EMPTY_PATH, StatxFlags::empty()).ok()?;
            ((seen.stx_dev_major, seen.stx_dev_minor) == mounted.device).then_some(copy)
        })
    }

    /// Removes `mountpoint` from its mounts. False where it was the last, and copies of it are still seen
    /// somewhere: the caller has to wait for them.
    pub(super) fn leave(&self, mountpoint: &Path) -> Result<bool> {
        let mut mounted = self.mounted.lock();
        if mounted.len() < 2 && mounts::is_shown_anywhere(&self.image)? {
            return Ok(false);
        }
        if let Some(at) = mounted.iter().position(|(other, _)| other == mountpoint) {
            mounted.remove(at);
        }
        Ok(true)
    }
}

/// Whether `path` is that of an image.
fn is_image(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(IMAGE_SUFFIX.as_bytes())
}

/// Whether `path` is that of a [mark](NativeSuperblock::mark), and not of an image.
fn is_mark(path: &Path) -> bool {
    path.file_stem().is_some_and(|image| is_image(Path::new(image)))
}

/// The owner of all files.
fn owner(options: &Options) -> (u32, u32) {
    let (uid, gid) = (options.uid, options.gid);
    (uid.unwrap_or_else(|| getuid().as_raw()), gid.unwrap_or_else(|| getgid().as_raw()))
}

/// The prefix of the names of images that show `native` as `options` have it.
fn prefix(native: &NativeSnapshot, options: &Options) -> String {
    let (id, tenant, (uid, gid)) = (native.snapshot().tree_id(), native.tenant(), owner(options));
    format!("{id}-{tenant}-{uid}-{gid}-{}-", if options.allow_other { "all" } else { "owner" })
}

/// Whether `name` is that of an image whose [prefix] is `prefix`, and not a longer one: what follows has no dash, and a tenant may
/// have.
fn is_image_of(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.contains('-'))
}

/// A superblock over `image` and `devices`, mounted nowhere yet. `direct`: the page cache of the devices' files is not used, so
/// that nothing is cached twice.
fn create(image: &Path, devices: &[PathBuf], direct: bool) -> rustix::io::Result<OwnedFd> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_of_a_tenant_named_like_a_prefix_is_not_shared() {
        let (one, other) = ("id-a-1-2-all-", "id-a-1-2-all-3-4-owner-");
        assert!(is_image_of("id-a-1-2-all-x7Yz0Q.bdnfs", one));
        assert!(is_image_of("id-a-1-2-all-3-4-owner-x7Yz0Q.bdnfs", other));
        assert!(!is_image_of("id-a-1-2-all-3-4-owner-x7Yz0Q.bdnfs", one));
        assert!(!is_image_of("id-a-1-2-all-x7Yz0Q.bdnfs", other));
    }
}
