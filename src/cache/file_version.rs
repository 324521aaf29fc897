//! File versions: tell whether a file still has the content that was read of it, or was repaired or replaced since.

use std::fs::File;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::XattrFlags;

use super::file_notes;

/// The extended attribute with the time, in nanoseconds since 1970, when a whole blob that the kernel reads by itself was last
/// found damaged. It stays when the file is right again: what was read of it before is not.
const DAMAGE_TIME_XATTR: &str = "user.bdnfs.damaged";

/// The version of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion {
    inode: u64,
    modified_at: (i64, i64),
    damaged_at: Option<[u8; 16]>,
}

impl FileVersion {
    /// The version of `file` by now.
    ///
    /// # Errors
    /// The disk's own.
    pub fn of(file: &File) -> io::Result<Self> {
        let stat = rustix::fs::fstat(file)?;
        let modified_at = (stat.st_mtime, stat.st_mtime_nsec as i64);
        Ok(Self { inode: stat.st_ino, modified_at, damaged_at: damaged_at(file) })
    }
}

/// When `file` was last found damaged and kept; `None` where it never was.
pub(crate) fn damaged_at(file: &File) -> Option<[u8; 16]> {
    file_notes::read(file, DAMAGE_TIME_XATTR).ok().flatten()
}

/// Notes that `file` was found damaged at the time `now`, and is kept. Best effort.
pub(super) fn note_damage(file: &File, now: SystemTime) {
    let time = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_le_bytes();
    if let Err(error) = rustix::fs::fsetxattr(file, DAMAGE_TIME_XATTR, &time, XattrFlags::empty()) {
        tracing::debug!(%error, "cannot note that a blob was damaged");
    }
}
