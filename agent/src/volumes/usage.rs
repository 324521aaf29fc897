//! The disk usage of a volume, counted.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The unit of `st_blocks`, whatever the block size of the file system (stat(2)).
const SECTOR: u64 = 512;

/// The bytes that all below `directory` occupies on the disk; what has several names counts once. What goes meanwhile, or can't be
/// looked at, counts nothing. Touches the local disk.
pub fn occupied(directory: &Path) -> u64 {
    let (mut bytes, mut todo, mut linked) = (0, vec![directory.to_owned()], HashSet::new());
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            // The metadata of the entry itself, not of a link's target.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                todo.push(entry.path());
            }
            let is_first = found.is_dir() || found.nlink() < 2 || linked.insert(found.ino());
            bytes += if is_first { found.blocks() * SECTOR } else { 0 };
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occupied_counts_links_once_and_holes_not_at_all() {
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
