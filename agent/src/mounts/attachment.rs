//! The backend of a mount: this process, by FUSE, or the kernel alone.

use std::path::Path;

use bdnfs::error::Result;
use bdnfs_fs::Mount;
use bdnfs_fs::handover::MountDescriptors;
use bdnfs_fs::mounts;
use bdnfs_fs::native_mount::NativeMount;

/// A mount, served by this process or by the kernel.
#[derive(Debug)]
pub enum Attachment {
    /// A FUSE mount, which this process serves.
    Fuse(Mount),
    /// A native mount, which the kernel serves.
    Native(NativeMount),
}

impl Attachment {
    /// Whether the kernel serves it alone.
    pub fn is_native(&self) -> bool {
        matches!(self, Self::Native(..))
    }

    /// The mount point, as a full path.
    pub fn mountpoint(&self) -> &Path {
        match self {
            Self::Fuse(mount) => mount.mountpoint(),
            Self::Native(mount) => mount.mountpoint(),
        }
    }

    /// Unmounts it. It is no error if the mount is gone already.
    ///
    /// # Errors
    /// [`Kind::Busy`](bdnfs::error::Kind::Busy) when processes use it. The mount stays.
    pub fn unmount(&self) -> Result<()> {
        match self {
            Self::Fuse(mount) => mount.unmount(),
            Self::Native(mount) => mount.unmount(),
        }
    }

    /// Detaches it from the directory tree; processes that use it go on.
    ///
    /// # Errors
    /// Those of [`mounts::detach`]; [`Kind::Busy`](bdnfs::error::Kind::Busy) when another mount covers a native one.
    pub fn detach(&self) -> Result<()> {
        match self {
            Self::Fuse(mount) => mounts::detach(mount.mountpoint()),
            Self::Native(mount) => mount.detach(),
        }
    }

    /// Whether the mount point shows it, and not another mount, or none.
    ///
    /// # Errors
    /// Those of [`Mount::is_mounted`].
    pub fn is_mounted(&self) -> Result<bool> {
        match self {
            Self::Fuse(mount) => mount.is_mounted(),
            Self::Native(mount) => Ok(mount.is_on_top()),
        }
    }

    /// Waits until it has ended, for whatever reason.
    pub async fn await_end(&self) {
        match self {
            Self::Fuse(mount) => mount.await_end().await,
            Self::Native(mount) => {
                mount.await_end().await;
                mount.native().release().await;
            }
        }
    }

    /// The descriptors that keep it alive without this process, where there are any.
    ///
    /// # Errors
    /// Those of [`Mount::descriptors`].
    pub fn descriptors(&self) -> Result<Option<MountDescriptors>> {
        match self {
            Self::Fuse(mount) => mount.descriptors(),
            Self::Native(..) => Ok(None),
        }
    }

    /// Hands it over to the next process.
    pub fn hand_over(&self) {
        match self {
            Self::Fuse(mount) => mount.hand_over(),
            Self::Native(mount) => mount.keep(),
        }
    }

    /// Whether it was [left](Self::hand_over) to the next process.
    pub fn is_handed_over(&self) -> bool {
        match self {
            Self::Fuse(mount) => mount.is_handed_over(),
            Self::Native(mount) => mount.is_kept(),
        }
    }

    /// Whether an earlier process made it, and it ends without one that serves it.
    pub fn is_resumed(&self) -> bool {
        matches!(self, Self::Fuse(mount) if mount.is_resumed())
    }

    /// Whether the kernel reads whole files by itself.
    pub fn passthrough(&self) -> bool {
        match self {
            Self::Fuse(mount) => mount.passthrough(),
            Self::Native(..) => true,
        }
    }

    /// Whether passthrough is wanted, but not allowed by the kernel or the privileges.
    pub fn lacks_passthrough(&self) -> bool {
        matches!(self, Self::Fuse(mount) if mount.lacks_passthrough())
    }
}
