//! A disk in memory, of any size: what is not written takes none.

use std::ffi::CString;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

/// A disk of its own, which nobody else fills or empties. It goes when it is dropped.
#[derive(Debug)]
pub struct Tmpfs(TempDir);

impl Tmpfs {
    /// An empty disk of `size`, in the words of tmpfs(5): `128m`, `12g`.
    ///
    /// # Panics
    /// When it can't be mounted, as without root.
    pub fn new(size: &str) -> Self {
        let directory = TempDir::with_prefix("bdnfs-tmpfs-").expect("a temporary directory");
        let size = CString::new(format!("size={size}")).expect("no NUL");
        mount("tmpfs", directory.path(), "tmpfs", MountFlags::empty(), Some(size.as_c_str())).expect("tmpfs");
        Self(directory)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// How many bytes of it are in use.
    ///
    /// # Panics
    /// When it is gone.
    pub fn used(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.path()).expect("a disk");
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}
