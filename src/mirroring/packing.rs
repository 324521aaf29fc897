//! Packing: decides which files make up which blob.
//!
//! A large file is a blob. Small ones are packed, neighbours together, so that few requests move many of them. Where a
//! pack ends depends on the names of the files around that place and on nothing before it: when files come, go or grow,
//! the packs some way off stay what they were, and are known by their recipes.
//!
//! What is the same is stored once by the blob: a large file, or a pack whose files are all the same. So a data set
//! that is mirrored again under another name stores nothing, and one file more or less among 2,000 of 64 KiB stores a
//! pack or two anew, 7 to 10 of 131 MB at a median, though it reads no more than that file. A small file whose
//! neighbours differ is stored again with them. To refer to the old pack instead would save those bytes, and cost
//! what packs are for: a stage would read other snapshots' files along with its own, in as many pieces as there were
//! changes, until they are packed anew; and a damaged block could no longer be restored from an origin that has some
//! of its files no more. Smaller packs cost less: below 16 MiB they are a request each, however large they are.

use crate::blob::{Blob, Key};
use crate::block::BLOCK;
use crate::digest::Digest;
use crate::error::Result;
use crate::extent::MAX_EXTENT_BLOCKS;
use crate::manifest::Manifest;
use crate::mirror::record::recipe;

/// Files of this size and more are blobs of their own: requests of a block and more no longer gain from company.
pub(super) const MIN_OWN_BLOB_BYTES: u64 = BLOCK;
/// The least and the most that a pack holds, in bytes. A pack of the most fits into one request, and no request moves more
/// however large the pack is; but all of a pack is made again when a file of it changes.
const MIN_PACK_BYTES: u64 = 4 << 20;
const MAX_PACK_BYTES: u64 = MAX_EXTENT_BLOCKS * BLOCK;
/// The maximum number of bytes beyond the least that a pack holds on average. With the least that is as much as is asked for at
/// once of a store that takes 20 ms to begin ([`crate::extent`]).
const MEAN_PACK_EXCESS_BYTES: u64 = 4 << 20;
/// The most files in a pack: their versions must fit into a manifest's record.
const MAX_PACK_FILES: usize = 65_536;

/// A blob to build: its files, and the digest that names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recipe {
    /// The files: their blobs in the listing, in order.
    pub files: Vec<u32>,
    /// The length in bytes.
    pub size: u64,
    /// The digest that names it.
    pub name: Digest,
}

/// A pack that is being gathered.
#[derive(Default)]
struct PackDraft {
    files: Vec<u32>,
    names: Vec<([u8; 32], u64)>,
    size: u64,
}

/// The blobs that hold what `listing` lists of the source with this identity, in the order of their first files. Empty
/// files need none.
///
/// # Errors
/// [`Kind::Corrupt`](crate::error::Kind::Corrupt) when the listing is.
pub(super) fn plan(listing: &Manifest, source: &str) -> Result<Vec<Recipe>> {
    let mut recipes = Vec::new();
    let mut pack = PackDraft::default();
    for index in 0..listing.blobs() {
        let blob = listing.blob(index)?;
        let name = name(source, &blob);
        match blob.size {
            0 => {}
            size if size >= MIN_OWN_BLOB_BYTES => {
                let name = recipe([(name, size)]);
                recipes.push(Recipe { files: vec![index], size, name });
            }
            size => {
                if pack.size + size > MAX_PACK_BYTES || pack.files.len() == MAX_PACK_FILES {
                    recipes.push(pack.close());
                }
                pack.files.push(index);
                pack.names.push((name, size));
                pack.size += size;
                if pack.size >= MIN_PACK_BYTES && ends(&blob.path, size) {
                    recipes.push(pack.close());
                }
            }
        }
    }
    if !pack.files.is_empty() {
        recipes.push(pack.close());
    }
    recipes.sort_by_key(|recipe| recipe.files[0]);
    Ok(recipes)
}

impl PackDraft {
    fn close(&mut self) -> Recipe {
        let PackDraft { files, names, size } = std::mem::take(self);
        Recipe { files, size, name: recipe(names) }
    }
}

/// Names the content of a file, whatever commit it was listed at: by its SHA-256 where the origin publishes one, which
/// other sources may have too; else by the origin's own version of it.
fn name(source: &str, blob: &Blob) -> [u8; 32] {
    let key = match &blob.sha256 {
        Some(sha256) => Key::origin("sha256", sha256, b""),
        None => Key::origin(source, &blob.path, &blob.version),
    };
    let (Key::Origin(name) | Key::Content(name)) = key;
    name.0
}

/// Whether a pack that is large enough ends with this file: one in as many as make up the size that is wanted.
fn ends(path: &[u8], size: u64) -> bool {
    let hash = blake3::hash(path);
    let number = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    number / (u64::MAX / MEAN_PACK_EXCESS_BYTES) < size
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::manifest::{ListedFile, Listing};
    use crate::source::Patterns;

    fn listing(files: impl IntoIterator<Item = (String, u64)>) -> Manifest {
        let mut listing = Listing::new("memory", Patterns::default(), &std::env::temp_dir());
        for (path, size) in files {
            let path = path.as_bytes();
            listing.file(ListedFile {
                path,
                size,
                mtime: (0, 0),
                executable: false,
                version: b"1",
                sha256: None,
            });
        }
        let mut bytes = Vec::new();
        listing.finish(&mut bytes).expect("memory");
        Manifest::from_bytes(bytes).expect("good")
    }

    fn many(count: u32, size: u64) -> impl Iterator<Item = (String, u64)> {
        (0..count).map(move |i| (format!("d{}/{i:06}", i / 1000), size))
    }

    #[test]
    fn plan_puts_each_file_into_one_blob_and_small_ones_share() {
        let files =
            many(5000, 40 << 10).chain([("e".into(), 0), ("big".into(), 9 << 20), ("one".into(), BLOCK)]);
        let listing = listing(files);
        let recipes = plan(&listing, "memory").expect("good");
        let mut all: Vec<u32> = recipes.iter().flat_map(|r| r.files.clone()).collect();
        all.sort_unstable();
        let filled: Vec<u32> =
            (0..listing.blobs()).filter(|i| listing.blob_size(*i).expect("good") > 0).collect();
        assert_eq!(all, filled);
        for recipe in &recipes {
            let sum = recipe.files.iter().map(|f| listing.blob_size(*f).expect("good")).sum::<u64>();
            assert!(recipe.size == sum && (sum <= MAX_PACK_BYTES || recipe.files.len() == 1));
        }
        assert_eq!(recipes.iter().filter(|r| r.files.len() == 1).count(), 2);
        assert!(recipes.len() < 40, "{} blobs for 200 MB", recipes.len());
        assert!(recipes.is_sorted_by_key(|r| r.files[0]));
    }

    /// Returns the number of bytes of packs that are stored for `after` where those of `before` are.
    fn stored(before: &[(String, u64)], after: Vec<(String, u64)>) -> u64 {
        let known: HashSet<_> = recipes(before.to_vec()).into_iter().map(|recipe| recipe.name).collect();
        let new = recipes(after).into_iter().filter(|recipe| !known.contains(&recipe.name));
        new.map(|recipe| recipe.size).sum()
    }

    fn recipes(files: Vec<(String, u64)>) -> Vec<Recipe> {
        plan(&listing(files), "memory").expect("good")
    }

    #[test]
    fn plan_after_a_change_stores_few_packs_anew() {
        let before: Vec<_> = many(2000, 64 << 10).collect();
        type Change = fn(&mut Vec<(String, u64)>, usize);
        let changes: [(&str, Change); 3] = [
            ("added", |files, at| files.insert(at, (format!("{}x", files[at].0), 64 << 10))),
            ("changed", |files, at| files[at].1 += 1),
            ("removed", |files, at| drop(files.remove(at))),
        ];
        for (what, change) in changes {
            let places = (0..before.len()).step_by(160);
            let mut stored: Vec<u64> = places
                .map(|at| {
                    let mut files = before.clone();
                    change(&mut files, at);
                    stored(&before, files)
                })
                .collect();
            stored.sort_unstable();
            let (median, most) = (stored[stored.len() / 2], stored[stored.len() - 1]);
            assert!(
                median < 3 * MIN_PACK_BYTES && most < 3 * MAX_PACK_BYTES,
                "{what}: {median} at the median, {most} at the most"
            );
        }
        let mut files: Vec<_> = many(20_000, 40 << 10).collect();
        let before = files.clone();
        files[3000].1 += 1;
        files.insert(9000, ("d9/added".into(), 77));
        files.remove(15_000);
        let moved = stored(&before, files);
        assert!(moved > 0 && moved < 6 * MAX_PACK_BYTES, "{moved} of 819 MB");
    }
}
