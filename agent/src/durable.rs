//! Small files that a crash leaves whole: the old content or the new one.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use rustix::fs::FallocateFlags;

use serde::Serialize;
use tempfile::NamedTempFile;

/// The directory of an agent's state, in that of its cache: the records, the agent's claim, the last scrub.
pub const STATE_DIRECTORY: &str = "state";
/// The file with the space that [`write_json_surely`] takes where the disk is full, and how much that is.
const SPARE_FILE: &str = "spare";
const SPARE_BYTES: u64 = 64 << 10;

/// Writes `content` as JSON into the file `name` of a directory; when this returns, it is on the disk. Touches the local disk.
///
/// # Errors
/// The disk's own.
pub fn write_json(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let mut draft = NamedTempFile::new_in(directory)?;
    draft.write_all(&serde_json::to_vec(content)?)?;
    draft.as_file().sync_all()?;
    draft.persist(directory.join(name)).map_err(|e| e.error)?;
    File::open(directory)?.sync_all()
}

/// Like [`write_json`], also on a full disk, with the space that [`keep_spare`] keeps in the directory. Touches the local disk.
///
/// # Errors
/// The disk's own.
pub fn write_json_surely(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let written = write_json(directory, name, content);
    let is_full =
        |error: &io::Error| matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    if !written.as_ref().is_err_and(is_full) || !drop_spare(directory) {
        return written;
    }
    let written = write_json(directory, name, content);
    // For the next one, as far as there is some left.
    keep_spare(directory);
    written
}

/// Keeps space in a directory for what is written there when the disk is full; none where it is full now, or can't keep any. Touches
/// the local disk.
pub fn keep_spare(directory: &Path) {
    let path = directory.join(SPARE_FILE);
    let keep = || {
        let file = File::create(&path)?;
        Ok::<_, io::Error>(rustix::fs::fallocate(file, FallocateFlags::empty(), 0, SPARE_BYTES)?)
    };
    if keep().is_err() {
        drop_spare(directory);
    }
}

/// Gives back the space that [`keep_spare`] keeps in a directory, and returns whether there was any. Touches the local disk.
pub fn drop_spare(directory: &Path) -> bool {
    fs::remove_file(directory.join(SPARE_FILE)).is_ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    use rustix::thread::{UnshareFlags, unshare_unsafe};

    use super::*;

    /// Mounts a file system of a few blocks on `directory`, for this thread alone; false where that is not allowed.
    pub fn mount_small_disk(directory: &Path) -> bool {
        // SAFETY: no descriptors are unshared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.is_ok()
            && mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).is_ok()
            && mount("disk", directory, "tmpfs", MountFlags::empty(), c"size=256k,mode=0700").is_ok()
    }

    /// Fills the disk of `directory` to its last block.
    pub fn fill(directory: &Path) {
        fs::write(directory.join("others"), vec![0; 1 << 20]).expect_err("the disk is full");
    }

    #[test]
    fn write_json_surely_on_a_full_disk_takes_what_was_kept_for_it() {
        let dir = tempfile::tempdir().expect("directory");
        if !mount_small_disk(dir.path()) {
            return;
        }
        keep_spare(dir.path());
        fill(dir.path());
        write_json(dir.path(), "note", &1).expect_err("no block is free");
        for number in 2..5 {
            write_json_surely(dir.path(), "note", &number).expect("there was space for it");
            let read = fs::read(dir.path().join("note")).expect("there");
            assert_eq!(read, number.to_string().as_bytes());
        }
        fs::remove_file(dir.path().join("others")).expect("removed");
        keep_spare(dir.path());
        assert!(drop_spare(dir.path()) && !drop_spare(dir.path()));
    }
}
