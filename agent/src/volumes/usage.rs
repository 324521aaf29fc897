//! The disk usage of a volume, counted.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::path::Arg;

/// The interval at which the size of a volume is measured: a disk of 2 GB/s writes no more meanwhile than a cache keeps free.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
/// The pause after a measurement, as a multiple of its duration: a cache may have millions of files.
const MEASURE_PAUSE_FACTOR: u32 = 20;
/// The unit of `st_blocks`, whatever the block size of the file system (stat(2)).
const SECTOR_BYTES: u64 = 512;

/// The pause after a measurement that `took` so long.
pub fn measure_pause(took: Duration) -> Duration {
    MEASURE_INTERVAL.max(took * MEASURE_PAUSE_FACTOR)
}

/// The bytes that all below `directory` occupies on the disk; what has several names counts once. What goes meanwhile, or can't be
/// looked at, counts nothing. Touches the local disk.
///
/// One directory is open at a time, and is left by `..`: a job may have made them deeper than a path is long.
pub fn occupied(directory: &Path) -> u64 {
    let Ok(root) = open(CWD, directory) else { return 0 };
    let mut count = UsageCount::default();
    let mut levels = Vec::from_iter(count.read(&root));
    let Ok(mut here) = root.try_clone() else { return 0 };
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.todo.pop() {
            if let Ok(below) = open(&here, &*name)
                && let Some(level) = count.read(&below)
            {
                here = below;
                levels.push(level);
            }
            continue;
        }
        levels.pop();
        let Some(above) = levels.last() else { break };
        match open(&here, c"..") {
            Ok(parent) if fstat(&parent).is_ok_and(|stat| identity(&stat) == above.identity) => here = parent,
            // Moved meanwhile: what is left beside it waits for the next count.
            _ => {
                let Ok(root) = root.try_clone() else { break };
                here = root;
                levels.truncate(1);
            }
        }
    }
    count.bytes
}

/// A directory that is being counted.
struct CountedDirectory {
    identity: (u64, u64),
    /// The directories in it that are not counted yet.
    todo: Vec<CString>,
}

#[derive(Default)]
struct UsageCount {
    bytes: u64,
    /// The files with several names that are counted.
    linked: HashSet<u64>,
}

impl UsageCount {
    /// Counts what is in a directory, but not below; `None` where it can't be read.
    fn read(&mut self, directory: &OwnedFd) -> Option<CountedDirectory> {
        let identity = identity(&fstat(directory).ok()?);
        let mut todo = Vec::new();
        for entry in Dir::read_from(directory).ok()?.flatten() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            // The metadata of the entry itself, not of a link's target.
            let Ok(found) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
            if is_directory {
                todo.push(name.to_owned());
            }
            let is_first = is_directory || found.st_nlink < 2 || self.linked.insert(found.st_ino);
            self.bytes += if is_first { found.st_blocks.unsigned_abs() * SECTOR_BYTES } else { 0 };
        }
        Some(CountedDirectory { identity, todo })
    }
}

/// Opens the directory `path`, which is no link.
fn open(directory: impl AsFd, path: impl Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, path, flags, Mode::empty())
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn occupied_of_a_tree_deeper_than_path_max_counts_all() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("beside")).unwrap();
        let mut deep = open(CWD, home.path()).unwrap();
        for _ in 0..5000 {
            mkdirat(&deep, "deep", Mode::RWXU).unwrap();
            deep = open(&deep, c"deep").unwrap();
        }
        let before = occupied(home.path());
        let path = format!("/proc/self/fd/{}/file", std::os::fd::AsRawFd::as_raw_fd(&deep));
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        fs::write(home.path().join("beside/file"), vec![1; 1 << 20]).unwrap();
        fs::File::open(home.path().join("beside/file")).unwrap().sync_all().unwrap();
        let grown = occupied(home.path()) - before;
        assert!(((2 << 20)..(2 << 20) + (64 << 10)).contains(&grown), "{grown}");
    }

    #[test]
    fn occupied_counts_hard_links_once_and_holes_not() {
        let home = tempfile::tempdir().unwrap();
        let (below, file) = (home.path().join("a/b"), home.path().join("file"));
        fs::create_dir_all(&below).unwrap();
        let before = occupied(home.path());
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        fs::hard_link(&file, below.join("link")).unwrap();
        fs::File::create(below.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        std::os::unix::fs::symlink("/", below.join("root")).unwrap();
        fs::File::open(&file).unwrap().sync_all().unwrap();
        let grown = occupied(home.path()) - before;
        assert!(((1 << 20)..(1 << 20) + (64 << 10)).contains(&grown), "{grown}");
    }
}
