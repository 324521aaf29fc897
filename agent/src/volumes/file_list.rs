//! The entries of a cache home, a row for each, in the words of the platform.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// An entry of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// The path in the cache.
    pub path: PathBuf,
    /// The size in bytes; of a directory that of all files below it.
    pub size: u64,
    /// When it was last changed, in seconds since 1970.
    pub modified: i64,
    /// The type of the entry: `file`, `directory` or `symlink`.
    pub kind: &'static str,
    /// The permissions, as `ls -l` shows them.
    pub permissions: String,
}

/// All entries below `tree`, in no order. What goes meanwhile is left out. Touches the local disk.
pub fn list(tree: &Path) -> Vec<CacheEntry> {
    let (mut entries, mut todo) = (Vec::new(), vec![tree.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            // The metadata of the entry itself, not of a link's target.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                todo.push(entry.path());
            }
            let path = entry.path();
            let path = path.strip_prefix(tree).unwrap_or(&path).to_owned();
            entries.push(row(path, &found));
        }
    }
    add_sums(&mut entries);
    entries
}

fn row(path: PathBuf, found: &Metadata) -> CacheEntry {
    let kind = match found.file_type() {
        kind if kind.is_dir() => "directory",
        kind if kind.is_symlink() => "symlink",
        _ => "file",
    };
    let size = if found.is_file() { found.len() } else { 0 };
    CacheEntry { path, size, modified: found.mtime(), kind, permissions: permissions(kind, found.mode()) }
}

/// Gives each directory the size of all below it.
fn add_sums(entries: &mut [CacheEntry]) {
    let mut sums: HashMap<PathBuf, u64> = HashMap::new();
    for entry in entries.iter().filter(|entry| entry.size > 0) {
        for above in entry.path.ancestors().skip(1) {
            *sums.entry(above.to_owned()).or_default() += entry.size;
        }
    }
    for entry in entries.iter_mut().filter(|entry| entry.kind == "directory") {
        entry.size = sums.get(&entry.path).copied().unwrap_or(0);
    }
}

fn permissions(kind: &str, mode: u32) -> String {
    let first = match kind {
        "directory" => 'd',
        "symlink" => 'l',
        _ => '-',
    };
    let letter = |(bit, letter): (u32, char)| if mode & 1 << (8 - bit) != 0 { letter } else { '-' };
    std::iter::once(first).chain((0..9).zip("rwx".chars().cycle()).map(letter)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn file_list_has_every_entry_and_directory_totals() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("a/b")).unwrap();
        fs::write(tree.path().join("a/b/x"), [1; 5]).unwrap();
        fs::write(tree.path().join("a/y"), [1; 2]).unwrap();
        fs::set_permissions(tree.path().join("a/y"), fs::Permissions::from_mode(0o640)).unwrap();
        fs::set_permissions(tree.path().join("a/b"), fs::Permissions::from_mode(0o701)).unwrap();
        symlink("/", tree.path().join("link")).unwrap();
        let mut listed = list(tree.path());
        listed.sort_by(|a, b| a.path.cmp(&b.path));
        let rows = listed.iter().map(|entry| (entry.path.to_str().unwrap(), entry.size, entry.kind));
        let expected = [
            ("a", 7, "directory"),
            ("a/b", 5, "directory"),
            ("a/b/x", 5, "file"),
            ("a/y", 2, "file"),
            ("link", 0, "symlink"),
        ];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
        assert_eq!((&*listed[1].permissions, &*listed[3].permissions), ("drwx-----x", "-rw-r-----"));
    }
}
