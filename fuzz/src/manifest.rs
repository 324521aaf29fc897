//! Manifests: whatever the bytes are, no panic, no endless walk, no path out of the tree.

use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::{Manifest, Node};

/// How many entries and blobs of a manifest are looked at. Each is looked at for itself, and some once for every child.
const MAX_VISITED: u32 = 4096;

/// Opens the manifest and calls every accessor for everything in it. Each may fail, for one reason only.
pub(crate) fn decode(bytes: &[u8]) {
    let manifest = match Manifest::from_bytes(bytes.to_vec()) {
        Ok(manifest) => manifest,
        Err(e) => return assert!(matches!(e.kind(), Kind::Corrupt | Kind::Unsupported), "{e}"),
    };
    for index in 0..manifest.entries().min(MAX_VISITED) {
        let _ = manifest.path(index).map(|path| check_path(&path)).map_err(damaged);
        if let Ok(Node::Directory(_)) = manifest.entry(index).map(|entry| entry.node).map_err(damaged) {
            let _ = manifest.lookup(index, b"a").map_err(damaged);
        }
    }
    for index in 0..manifest.blobs().min(MAX_VISITED) {
        let _ = manifest.blob(index).map_err(damaged);
        let _ = manifest.key(index).map_err(damaged);
        let _ = manifest.parts(index).map_err(damaged);
    }
    let _ = walk(&manifest).map_err(damaged);
}

/// Walks the whole tree, and returns how many entries it has.
///
/// # Errors
/// The first of any entry.
pub(crate) fn walk(manifest: &Manifest) -> Result<u32> {
    let (mut left, mut met) = (vec![0], 1);
    while let Some(directory) = left.pop() {
        for child in manifest.children(directory)? {
            let (index, entry) = child?;
            met += 1;
            assert!(met <= manifest.entries(), "an entry is met twice");
            check_path(&manifest.path(index)?);
            match entry.node {
                Node::Directory(_) => left.push(index),
                Node::File(slice) => {
                    let end = slice.offset.checked_add(slice.len).expect("a slice ends");
                    assert!(end <= manifest.blob_size(slice.blob)?, "a slice lies within its blob");
                }
                Node::Symlink(target) => assert!(!target.is_empty() && !target.contains(&0)),
            }
        }
    }
    Ok(met)
}

/// A path is below the root, in names that a directory can hold.
fn check_path(path: &[u8]) {
    let mut names = path.split(|byte| *byte == b'/');
    let good = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && name.len() <= 255 && !name.contains(&0);
    assert!(
        path.is_empty() || names.all(good),
        "the path {:?} leaves its tree",
        path.escape_ascii().to_string()
    );
}

fn damaged(error: Error) {
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
}
