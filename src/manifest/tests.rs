//! Listings written and read back, and manifests that are damaged.

mod corruption;
mod hub_cache_view;
mod listings;
mod packs;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::blob::{Key, MirrorLocation};
use crate::block::{BLOCK, Check};
use crate::digest::Digest;
use crate::error::Result;
use crate::source::Patterns;

const ORIGIN: &str = "s3://bucket/models";

/// The entry of the model at a path.
#[derive(Clone, Debug, PartialEq)]
enum ExpectedEntry {
    File { size: u64, executable: bool, version: Vec<u8>, sha256: Option<[u8; 32]> },
    Symlink(Vec<u8>),
    Directory,
}

type Model = BTreeMap<Vec<u8>, (ExpectedEntry, (i64, u32))>;

fn list<'a>(things: impl IntoIterator<Item = (&'a Vec<u8>, &'a (ExpectedEntry, (i64, u32)))>) -> Listing {
    let mut listing = Listing::new(ORIGIN, Patterns::default(), &std::env::temp_dir());
    add(&mut listing, things);
    listing
}

fn add<'a>(
    listing: &mut Listing,
    things: impl IntoIterator<Item = (&'a Vec<u8>, &'a (ExpectedEntry, (i64, u32)))>,
) {
    for (path, (thing, mtime)) in things {
        let mtime = *mtime;
        match thing {
            ExpectedEntry::Directory => listing.directory(path, mtime),
            ExpectedEntry::Symlink(target) => listing.symlink(path, target, mtime),
            ExpectedEntry::File { size, executable, version, sha256 } => {
                let (size, executable, sha256) = (*size, *executable, *sha256);
                listing.file(ListedFile { path, size, mtime, executable, version, sha256 });
            }
        }
    }
}

fn finish(listing: Listing) -> Result<Manifest> {
    let mut bytes = Vec::new();
    let digest = listing.finish(&mut bytes)?;
    let manifest = Manifest::from_bytes(bytes)?;
    assert_eq!(manifest.digest(), digest);
    Ok(manifest)
}

fn file(path: &str, size: u64) -> ListedFile<'_> {
    ListedFile { path: path.as_bytes(), size, mtime: (7, 8), executable: false, version: b"v1", sha256: None }
}

fn listing(allow: &[&str], files: &[&str]) -> Listing {
    let allow: Vec<String> = allow.iter().map(|a| a.to_string()).collect();
    let mut listing =
        Listing::new(ORIGIN, Patterns::new(&allow, &[]).expect("patterns"), &std::env::temp_dir());
    files.iter().for_each(|path| listing.file(file(path, 5)));
    listing
}

/// All entries but the root, by their paths, found by walking down.
fn walk(manifest: &Manifest) -> Result<BTreeMap<Vec<u8>, u32>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![0];
    while let Some(directory) = directories.pop() {
        for child in manifest.children(directory)? {
            let (index, entry) = child?;
            if let Node::Directory(_) = entry.node {
                directories.push(index);
            }
            assert_eq!(found.insert(manifest.path(index)?, index), None, "a path is met once");
        }
    }
    Ok(found)
}

fn things() -> impl Strategy<Value = Model> {
    let part = prop_oneof![
        Just(b"a".to_vec()),
        Just(b"b".to_vec()),
        Just(b"a-".to_vec()),
        prop::collection::vec(128u8.., 1..3)
    ];
    let path = prop::collection::vec(part, 1..5).prop_map(|parts| parts.join(&b'/'));
    let bytes = || prop::collection::vec(any::<u8>(), 0..9);
    let file = (prop_oneof![Just(0), 1..10_000_000u64], any::<bool>(), bytes(), any::<Option<[u8; 32]>>());
    let thing = prop_oneof![
        4 => file.prop_map(|(size, executable, version, sha256)| {
            let sha256 = sha256.filter(|_| size > 0);
            ExpectedEntry::File { size, executable, version, sha256 }
        }),
        1 => bytes().prop_map(|t| ExpectedEntry::Symlink([b"x", &t[..]].concat().into_iter().filter(|b| *b > 0).collect())),
        1 => Just(ExpectedEntry::Directory),
    ];
    let time = (any::<i64>(), 0..1_000_000_000u32);
    prop::collection::vec((path, (thing, time)), 1..40).prop_map(|list| {
        let mut model = Model::new();
        for (path, thing) in list {
            let below = model.keys().any(|p| p.starts_with(&[&path[..], b"/"].concat()));
            let inside = model.iter().any(|(p, (t, _))| {
                *t != ExpectedEntry::Directory && path.starts_with(&[&p[..], b"/"].concat())
            });
            if !inside && (!below || thing.0 == ExpectedEntry::Directory) {
                model.insert(path, thing);
            }
        }
        model.insert(
            b"z".to_vec(),
            (ExpectedEntry::File { size: 1, executable: false, version: vec![], sha256: None }, (0, 0)),
        );
        model
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn listing_in_any_order_reads_back_the_same(model in things(), swaps in prop::collection::vec(any::<(Index, Index)>(), 40), room in 0..2_000usize) {
        let manifest = finish(list(&model)).expect("good");
        let mut shuffled: Vec<_> = model.iter().collect();
        for (one, other) in swaps {
            let (one, other) = (one.index(shuffled.len()), other.index(shuffled.len()));
            shuffled.swap(one, other);
        }
        prop_assert_eq!(finish(list(shuffled.clone())).expect("good").digest(), manifest.digest());
        let mut spilled = Listing::new(ORIGIN, Patterns::default(), &std::env::temp_dir());
        spilled.limit_memory(room);
        add(&mut spilled, shuffled);
        prop_assert_eq!(finish(spilled).expect("good").digest(), manifest.digest());

        let mut paths: BTreeSet<Vec<u8>> = model.keys().cloned().collect();
        for path in model.keys() {
            paths.extend((0..path.len()).filter(|i| path[*i] == b'/').map(|i| path[..i].to_vec()));
        }
        let found = walk(&manifest).expect("good");
        prop_assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), paths);
        prop_assert_eq!(manifest.entries() as usize, found.len() + 1);
        let mut sizes = Vec::new();
        for (path, (thing, mtime)) in &model {
            let index = found[path];
            let by_name = path.split(|b| *b == b'/').try_fold(0, |at, name| manifest.lookup(at, name).expect("good"));
            prop_assert_eq!(by_name, Some(index));
            let entry = manifest.entry(index).expect("good");
            prop_assert_eq!(entry.mtime, *mtime);
            match (thing, entry.node) {
                (ExpectedEntry::Directory, Node::Directory(_)) => {}
                (ExpectedEntry::Symlink(target), Node::Symlink(read)) => prop_assert_eq!(read, target),
                (ExpectedEntry::File { size, executable, version, sha256 }, Node::File(slice)) => {
                    let blob = manifest.blob(slice.blob).expect("good");
                    prop_assert_eq!((slice.offset, slice.len, blob.size), (0, *size, *size));
                    prop_assert_eq!(entry.executable, *executable);
                    if *size == 0 {
                        prop_assert_eq!(blob.key, Key::Content(Digest::of(b"")));
                    } else {
                        prop_assert_eq!(blob.key, Key::origin_file(ORIGIN, path, version, sha256.as_ref()));
                        prop_assert_eq!(manifest.key(slice.blob).expect("good"), blob.key);
                        prop_assert_eq!((&blob.path[..], &blob.version[..]), (&path[..], &version[..]));
                        prop_assert_eq!(blob.sha256, *sha256);
                    }
                    sizes.push(*size);
                }
                (thing, node) => prop_assert!(false, "{thing:?} became {node:?}"),
            }
        }
        prop_assert_eq!(manifest.files(), sizes.len() as u64);
        prop_assert_eq!(manifest.bytes(), sizes.iter().sum::<u64>());
        prop_assert_eq!(manifest.largest(), sizes.iter().copied().max().unwrap_or_default());
        prop_assert_eq!(manifest.lookup(0, b"no such name").expect("good"), None);
        prop_assert_eq!(manifest.source(), ORIGIN);
    }

    #[test]
    fn manifest_of_damaged_bytes_never_panics(
        model in things(),
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 0..12),
        cut in prop::option::weighted(0.1, any::<Index>()),
    ) {
        let mut bytes = Vec::new();
        list(&model).finish(&mut bytes).expect("good");
        let len = bytes.len();
        for (at, value) in damage {
            bytes[at.index(len)] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(len));
        }
        read_everything(bytes);
    }

    #[test]
    fn manifest_of_random_bytes_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..2000), entries in 1..20u32) {
        // A right header, so that more than the magic number is met.
        let blobs = 5u32;
        let sections = 64 + (entries + blobs) as usize * 48 + 32;
        if bytes.len() >= sections {
            let strings = (bytes.len() - sections) as u64;
            bytes[..8].copy_from_slice(b"BDNFSMAN");
            for (at, number) in [(8, 1), (12, entries), (16, blobs), (20, 0), (24, 1), (28, 0)] {
                bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
            bytes[32..40].copy_from_slice(&strings.to_le_bytes());
        }
        read_everything(bytes);
    }
}

/// Calls every accessor for everything there is. Each may fail, for one reason only.
fn read_everything(bytes: Vec<u8>) {
    let manifest = match Manifest::from_bytes(bytes) {
        Ok(manifest) => manifest,
        Err(e) => return assert!(matches!(e.kind(), Kind::Corrupt | Kind::Unsupported), "{e}"),
    };
    let damaged = |e: Error| assert_eq!(e.kind(), Kind::Corrupt, "{e}");
    for index in 0..manifest.entries() {
        manifest.path(index).map_or_else(damaged, drop);
        match manifest.entry(index) {
            Err(e) => damaged(e),
            Ok(Entry { node: Node::Directory(_), .. }) => {
                manifest.lookup(index, b"a").map_or_else(damaged, drop);
                manifest.children(index).map_or_else(damaged, |children| {
                    children.for_each(|child| child.map_or_else(damaged, drop));
                });
            }
            Ok(_) => {
                assert_eq!(manifest.lookup(index, b"a").expect_err("no directory").kind(), Kind::Invalid)
            }
        }
    }
    for index in 0..manifest.blobs() {
        manifest.blob_size(index).map_or_else(damaged, drop);
        manifest.blob(index).map_or_else(damaged, drop);
        manifest.parts(index).map_or_else(damaged, drop);
    }
    walk(&manifest).map_or_else(damaged, drop);
    let (_, _, _) = (manifest.digest(), manifest.source().len(), format!("{manifest:?}"));
    assert_eq!(manifest.entry(manifest.entries()).expect_err("past the end").kind(), Kind::Invalid);
    assert_eq!(manifest.blob(manifest.blobs()).expect_err("past the end").kind(), Kind::Invalid);
}
