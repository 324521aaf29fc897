//! Trees of files with known content, and the comparison of a mounted tree with the original.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Sizes around the edges of pages and blocks, by the name of a file that has it.
pub const SIZES: [(&str, usize); 8] = [
    ("empty", 0),
    ("byte", 1),
    ("page", 4 << 10),
    ("block-1", (1 << 20) - 1),
    ("block", 1 << 20),
    ("block+1", (1 << 20) + 1),
    ("pages", (2 << 20) + 4097),
    ("blocks", (5 << 20) + 12_345),
];

/// Names that are valid keys and still need care: in URLs, XML, shells and command lines.
pub const NAMES: [&str; 10] = [
    "with space",
    " ",
    "-rf",
    "ünï-漢",
    "a&b<c>",
    "100%41",
    "#hash?query",
    ".hidden",
    "a+b=c",
    "back\\slash'quote\"",
];

/// `len` bytes that `seed` determines.
pub fn content(seed: &str, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(seed.as_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Writes a file of `len` bytes that its path determines, with the directories above it, and returns the bytes.
pub fn write_file(root: &Path, path: impl AsRef<OsStr>, len: usize) -> Vec<u8> {
    let path = root.join(path.as_ref());
    let bytes = content(&path.file_name().expect("a name").to_string_lossy(), len);
    fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    fs::write(&path, &bytes).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
    bytes
}

/// Writes a tree that any source can hold: all of [`SIZES`] and [`NAMES`], and directories.
pub fn write_tree(root: &Path) {
    for (name, len) in SIZES {
        write_file(root, format!("sizes/{name}"), len);
    }
    for (number, name) in NAMES.iter().enumerate() {
        write_file(root, format!("names/{name}"), 100 + number);
        write_file(root, format!("in {name}/file"), 200 + number);
    }
    write_file(root, format!("names/{}", "n".repeat(255)), 300);
    write_file(root, "a/b/c/d/e/f/g/h/deep", 400);
    write_file(root, "config.json", 500);
}

/// Adds what only a file system can hold: control characters and bytes that are no text, links, empty directories, executables.
pub fn write_odd_tree(root: &Path) {
    write_file(root, "new\nline/tab\tand\x01", 599);
    write_file(root, OsStr::from_bytes(b"names/\xff\xfe\x80"), 600);
    write_file(root, OsStr::from_bytes(b"\xc3\x28/file"), 601);
    fs::create_dir_all(root.join("nothing/in/here")).expect("directories");
    symlink("../sizes/blocks", root.join("names/link")).expect("a link");
    symlink("nowhere/at all", root.join("dangling")).expect("a link");
    symlink("names", root.join("to-directory")).expect("a link");
    write_file(root, "run", 700);
    fs::set_permissions(root.join("run"), fs::Permissions::from_mode(0o755)).expect("chmod");
}

/// The regular files below `root`, with what `lstat` says of them; not those that a process removes or renames meanwhile.
///
/// # Panics
/// When some of it can't be read.
pub fn regular_files(root: &Path) -> Vec<(PathBuf, Metadata)> {
    let stat = |path: PathBuf| match root.join(&path).symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        meta => Some((path, meta.expect("a file that can be looked at"))),
    };
    let all = walk(root).into_iter().filter(|(_, kind)| matches!(kind, TreeEntry::File(_)));
    all.filter_map(|(path, _)| stat(path)).collect()
}

/// The sum of the sizes of the regular files below `root`.
pub fn total_bytes(root: &Path) -> u64 {
    regular_files(root).iter().map(|(_, meta)| meta.len()).sum()
}

/// The entry at a path of a tree.
#[derive(Debug, PartialEq, Eq)]
enum TreeEntry {
    Directory,
    File(u64),
    Link(PathBuf),
}

/// Holds the tree at `mounted` against the one at `original`: names, kinds, sizes, link targets and every byte.
///
/// # Panics
/// At the first difference, with its path and offset.
pub fn assert_same_tree(original: &Path, mounted: &Path) {
    let (expected, found) = (walk(original), walk(mounted));
    for (path, kind) in &expected {
        assert_eq!(found.get(path), Some(kind), "at {path:?} (left: in the mount, right: in the original)");
    }
    for path in found.keys() {
        assert!(expected.contains_key(path), "the mount has {path:?}, the original does not");
    }
    for (path, _) in expected.iter().filter(|(_, kind)| matches!(kind, TreeEntry::File(_))) {
        assert_same_file(&original.join(path), &mounted.join(path));
    }
}

/// Holds two files against each other.
///
/// # Panics
/// At the first byte that differs, or when one can't be read.
pub fn assert_same_file(original: &Path, mounted: &Path) {
    let read = |path: &Path| {
        let mut bytes = Vec::new();
        let done = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
        done.unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        bytes
    };
    assert_same(&read(original), &read(mounted), &mounted.display().to_string());
}

/// Asserts that `found` is `expected`, and says where it is not rather than printing both.
///
/// # Panics
/// When they differ.
pub fn assert_same(expected: &[u8], found: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "length of {what}");
    if let Some(at) = expected.iter().zip(found).position(|(a, b)| a != b) {
        let zeros = found[at..].iter().take_while(|byte| **byte == 0).count();
        panic!("{what} differs first at byte {at} of {}: {zeros} zeros from there", expected.len());
    }
}

fn walk(root: &Path) -> BTreeMap<PathBuf, TreeEntry> {
    let (mut found, mut open) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        let entries =
            fs::read_dir(&directory).unwrap_or_else(|e| panic!("cannot list {}: {e}", directory.display()));
        for entry in entries {
            let path = entry.unwrap_or_else(|e| panic!("cannot list {}: {e}", directory.display())).path();
            let meta = match fs::symlink_metadata(&path) {
                // A process has removed or renamed it meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                meta => meta.unwrap_or_else(|e| panic!("cannot stat {}: {e}", path.display())),
            };
            let kind = if meta.is_dir() {
                open.push(path.clone());
                TreeEntry::Directory
            } else if meta.is_symlink() {
                TreeEntry::Link(
                    fs::read_link(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display())),
                )
            } else {
                TreeEntry::File(meta.len())
            };
            found.insert(path.strip_prefix(root).expect("below the root").to_owned(), kind);
        }
    }
    found
}

/// Numbers that a seed determines (splitmix64), for tests that try things at random and can be run again.
#[derive(Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
