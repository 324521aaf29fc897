//! Small files that a crash leaves whole: the old content or the new one.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::FallocateFlags;

use serde::Serialize;
use tempfile::NamedTempFile;

/// The directory of an agent's state, in that of its cache: the records, the agent's claim, the last scrub.
pub const STATE_DIRECTORY: &str = "state";
/// The file with the space that [`write_json_with_spare`] takes where the disk is full, and how much that is.
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

/// Like [`write_json`], also on a full disk, into the space that [`keep_spare`] keeps in the directory: that is never free in
/// between, so nobody else can take it. Afterwards space is kept again, as soon as there is some. Touches the local disk.
///
/// # Errors
/// The disk's own.
pub fn write_json_with_spare(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let written = match write_json(directory, name, content) {
        Err(full) if matches!(full.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            write_into_spare(directory, name, &serde_json::to_vec(content)?).unwrap_or(Err(full))
        }
        written => written,
    };
    keep_spare(directory);
    written
}

/// Writes the file `name` of a directory into the space that is kept there; `None` where there is none, or not enough. It is taken
/// by a name of its own first: who writes at the same time, in any process, finds none.
fn write_into_spare(directory: &Path, name: &str, content: &[u8]) -> Option<io::Result<()>> {
    if content.len() as u64 > SPARE_BYTES {
        return None;
    }
    let spare = directory.join(SPARE_FILE);
    let claim = |path: &Path| {
        fs::rename(&spare, path)?;
        File::options().write(true).open(path)
    };
    let claimed = tempfile::Builder::new().make_in(directory, claim).ok()?;
    let write = || {
        let file = claimed.as_file();
        file.write_all_at(content, 0)?;
        file.set_len(content.len() as u64)?;
        file.sync_all()
    };
    let moved = write().and_then(|()| claimed.persist(directory.join(name)).map_err(|e| e.error));
    Some(moved.and_then(|_| File::open(directory)?.sync_all()))
}

/// Keeps space in a directory for what is written there when the disk is full, unless some is kept there; none where it is full
/// now, or can't keep any. Touches the local disk.
pub fn keep_spare(directory: &Path) {
    let spare = directory.join(SPARE_FILE);
    if spare.exists() {
        return;
    }
    // Under its name it is never there without its space.
    let keep = || {
        let draft = NamedTempFile::new_in(directory)?;
        rustix::fs::fallocate(draft.as_file(), FallocateFlags::empty(), 0, SPARE_BYTES)?;
        draft.persist_noclobber(&spare).map_err(|e| e.error)
    };
    let _ = keep();
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
        let is_mounted = unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.is_ok()
            && mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).is_ok()
            && mount("disk", directory, "tmpfs", MountFlags::empty(), c"size=256k,mode=0700").is_ok();
        assert!(is_mounted || std::env::var_os("CI").is_none(), "CI may mount");
        is_mounted
    }

    /// Fills the disk of `directory` to its last block.
    pub fn fill(directory: &Path) {
        fs::write(directory.join("others"), vec![0; 1 << 20]).expect_err("the disk is full");
    }

    #[test]
    fn write_json_with_spare_on_a_full_disk_takes_what_was_kept_for_it() {
        let dir = tempfile::tempdir().expect("directory");
        if !mount_small_disk(dir.path()) {
            return;
        }
        keep_spare(dir.path());
        fill(dir.path());
        write_json(dir.path(), "note", &1).expect_err("no block is free");
        for number in 2..5 {
            write_json_with_spare(dir.path(), "note", &number).expect("there was space for it");
            let read = fs::read(dir.path().join("note")).expect("there");
            assert_eq!(read, number.to_string().as_bytes());
        }
        fs::remove_file(dir.path().join("others")).expect("removed");
        keep_spare(dir.path());
        assert!(drop_spare(dir.path()) && !drop_spare(dir.path()));
    }

    #[test]
    fn write_json_with_spare_takes_kept_space_that_is_never_free_for_others() {
        use std::os::unix::fs::MetadataExt;
        use std::sync::atomic::{AtomicBool, Ordering};
        let dir = tempfile::tempdir().expect("directory");
        if !mount_small_disk(dir.path()) {
            return;
        }
        keep_spare(dir.path());
        fill(dir.path());
        let inode = |name| fs::metadata(dir.path().join(name)).expect("there").ino();
        let (kept, is_written) = (inode("spare"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // A job that takes each block that it can get.
            scope.spawn(|| {
                let mut others = File::options().append(true).open(dir.path().join("others")).expect("there");
                while !is_written.load(Ordering::Relaxed) {
                    let _ = others.write_all(&[0; 4096]);
                }
            });
            let written = write_json_with_spare(dir.path(), "note", &1);
            is_written.store(true, Ordering::Relaxed);
            written.expect("there was space for it");
        });
        assert_eq!(inode("note"), kept, "the space itself");
        assert_eq!(fs::read(dir.path().join("note")).expect("there"), b"1");
    }

    #[test]
    fn write_json_with_spare_by_several_at_once_writes_whole_files() {
        let dir = tempfile::tempdir().expect("directory");
        if !mount_small_disk(dir.path()) {
            return;
        }
        keep_spare(dir.path());
        fill(dir.path());
        // As long as what is kept: half of one and half of another would be seen.
        let texts = ["a", "b", "c"].map(|letter| letter.repeat(SPARE_BYTES as usize - 2));
        let path = dir.path();
        std::thread::scope(|scope| {
            let writers =
                texts.each_ref().map(|text| scope.spawn(move || write_json_with_spare(path, "note", text)));
            let written = writers.map(|writer| writer.join().expect("no panic").is_ok());
            assert!(written.contains(&true), "one took the space");
        });
        let note: String =
            serde_json::from_slice(&fs::read(path.join("note")).expect("there")).expect("whole");
        assert!(texts.contains(&note));
    }

    #[test]
    fn space_that_was_taken_is_kept_again_when_there_is_some() {
        let dir = tempfile::tempdir().expect("directory");
        if !mount_small_disk(dir.path()) {
            return;
        }
        keep_spare(dir.path());
        fill(dir.path());
        let text = "a".repeat(SPARE_BYTES as usize - 2);
        write_json_with_spare(dir.path(), "note", &text).expect("there was space for it");
        assert!(!dir.path().join("spare").exists(), "there is no more");
        fs::remove_file(dir.path().join("others")).expect("removed");
        write_json_with_spare(dir.path(), "note", &1).expect("there is space");
        assert!(drop_spare(dir.path()));
    }
}
