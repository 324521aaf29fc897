//! Mounts, and the files in them, as the kernel reports them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::process::eventually;
use crate::tools::program;

/// Whether something is mounted on `point`.
pub fn is_mounted(point: &Path) -> bool {
    mount_points().iter().any(|mounted| mounted == point)
}

/// Unmounts what is mounted on `point` as umount(8) does, but again while it is busy: other tests' `bdnfs status` looks at all
/// mounts of the machine.
///
/// # Panics
/// When it stays in use.
pub fn unmount(point: &Path) {
    eventually("nobody looks at the mount", || match rustix::mount::unmount(point, UnmountFlags::NOFOLLOW) {
        Err(Errno::BUSY) => false,
        unmounted => {
            unmounted.unwrap_or_else(|e| panic!("cannot unmount {}: {e}", point.display()));
            true
        }
    });
}

/// The value of an extended attribute.
///
/// # Panics
/// When `path` does not have it.
pub fn xattr(path: &Path, name: &str) -> String {
    let mut value = vec![0; 4096];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]);
    value.truncate(len.unwrap_or_else(|e| panic!("{name} of {}: {e}", path.display())));
    String::from_utf8(value).expect("text")
}

/// Whether every byte of the file at `path` is local.
///
/// # Panics
/// When `path` is no file of a mount.
pub fn is_local(path: &Path) -> bool {
    let len = fs::metadata(path).unwrap_or_else(|e| panic!("cannot stat {}: {e}", path.display())).len();
    xattr(path, "user.bdnfs.local") == format!("{len}/{len}")
}

/// Drops what the kernel caches, so that reads reach the file system again.
pub fn drop_caches() {
    let _ = program("sync").status();
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root may drop caches");
}

/// All mount points of this process, oldest first.
///
/// # Panics
/// When /proc can't be read.
pub fn mount_points() -> Vec<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").expect("/proc/self/mountinfo");
    let points =
        table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(|point| PathBuf::from(OsStr::from_bytes(&unescape(point)))).collect()
}

/// Undoes the octal escapes of /proc (`\040` for a space).
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut parts = text.split(|byte| *byte == b'\\');
    let mut out = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(3);
        out.push(digits.iter().fold(0, |code, digit| (code << 3) | (digit - b'0')));
        out.extend_from_slice(rest);
    }
    out
}
