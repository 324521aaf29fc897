//! Rot: a byte of a file that changes on the disk without a write.

use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Flips the byte at `offset` of the file at `path`, whose times stay as they are.
///
/// # Panics
/// When it can't be written.
pub fn flip_byte(path: &Path, offset: u64) {
    let before = fs::metadata(path).expect("a file");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("permissions");
    let file = File::options().read(true).write(true).open(path).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], offset).expect("a byte");
    let times = FileTimes::new().set_modified(before.modified().expect("a time"));
    file.set_times(times.set_accessed(before.accessed().expect("a time"))).expect("times");
}

/// The largest file below `directory`.
pub fn largest_file(directory: &Path) -> PathBuf {
    let below = |entry: fs::DirEntry| match entry.file_type().expect("a type").is_dir() {
        true => largest_file(&entry.path()),
        false => entry.path(),
    };
    let files = fs::read_dir(directory).expect("a directory").flatten().map(below);
    files.max_by_key(|path| path.metadata().map_or(0, |meta| meta.len())).unwrap_or_default()
}

/// The files below `directory` that have `len` bytes at least.
pub fn largest_files(directory: &Path, len: u64) -> Vec<PathBuf> {
    let below = |entry: fs::DirEntry| match entry.file_type().expect("a type").is_dir() {
        true => largest_files(&entry.path(), len),
        false if entry.metadata().is_ok_and(|meta| meta.len() >= len) => vec![entry.path()],
        false => Vec::new(),
    };
    fs::read_dir(directory).expect("a directory").flatten().flat_map(below).collect()
}
