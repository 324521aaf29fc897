//! Listings written and read back, and manifests that are damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::Index;

use super::encoder::{BlobEntry, BlobName, ManifestContents, encode};
use super::*;
use crate::blob::{Key, Stored};
use crate::block::{BLOCK, Check};
use crate::digest::Digest;
use crate::error::Result;
use crate::source::Patterns;

const ORIGIN: &str = "s3://bucket/models";

/// What the model holds at a path.
#[derive(Clone, Debug, PartialEq)]
enum Thing {
    File { size: u64, executable: bool, version: Vec<u8>, sha256: Option<[u8; 32]> },
    Symlink(Vec<u8>),
    Directory,
}

type Model = BTreeMap<Vec<u8>, (Thing, (i64, u32))>;

fn list<'a>(things: impl IntoIterator<Item = (&'a Vec<u8>, &'a (Thing, (i64, u32)))>) -> Listing {
    let mut listing = Listing::new(ORIGIN, Patterns::default(), &std::env::temp_dir());
    add(&mut listing, things);
    listing
}

fn add<'a>(listing: &mut Listing, things: impl IntoIterator<Item = (&'a Vec<u8>, &'a (Thing, (i64, u32)))>) {
    for (path, (thing, mtime)) in things {
        let mtime = *mtime;
        match thing {
            Thing::Directory => listing.directory(path, mtime),
            Thing::Symlink(target) => listing.symlink(path, target, mtime),
            Thing::File { size, executable, version, sha256 } => {
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
        4 => file.prop_map(|(size, executable, version, sha256)| Thing::File { size, executable, version, sha256 }),
        1 => bytes().prop_map(|t| Thing::Symlink([b"x", &t[..]].concat().into_iter().filter(|b| *b > 0).collect())),
        1 => Just(Thing::Directory),
    ];
    let time = (any::<i64>(), 0..1_000_000_000u32);
    prop::collection::vec((path, (thing, time)), 1..40).prop_map(|list| {
        let mut model = Model::new();
        for (path, thing) in list {
            let below = model.keys().any(|p| p.starts_with(&[&path[..], b"/"].concat()));
            let inside = model
                .iter()
                .any(|(p, (t, _))| *t != Thing::Directory && path.starts_with(&[&p[..], b"/"].concat()));
            if !inside && (!below || thing.0 == Thing::Directory) {
                model.insert(path, thing);
            }
        }
        model.insert(
            b"z".to_vec(),
            (Thing::File { size: 1, executable: false, version: vec![], sha256: None }, (0, 0)),
        );
        model
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_listed_is_read_back(model in things(), swaps in prop::collection::vec(any::<(Index, Index)>(), 40), room in 0..2_000usize) {
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
                (Thing::Directory, Node::Directory(_)) => {}
                (Thing::Symlink(target), Node::Symlink(read)) => prop_assert_eq!(read, target),
                (Thing::File { size, executable, version, sha256 }, Node::File(slice)) => {
                    let blob = manifest.blob(slice.blob).expect("good");
                    prop_assert_eq!((slice.offset, slice.len, blob.size), (0, *size, *size));
                    prop_assert_eq!(entry.executable, *executable);
                    if *size == 0 {
                        prop_assert_eq!(blob.key, Key::Content(Digest::of(b"")));
                    } else {
                        prop_assert_eq!(blob.key, Key::origin(ORIGIN, path, version));
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
    fn damaged_bytes_are_an_error_at_worst(
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
    fn noise_is_an_error_at_worst(mut bytes in prop::collection::vec(any::<u8>(), 0..2000), entries in 1..20u32) {
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

/// A manifest as a mirror will write them: one blob of content with its checks, two files in it.
struct Pack {
    content: Vec<u8>,
    checks: Vec<Check>,
}

impl Pack {
    fn entries() -> [Entry<'static>; 3] {
        let slice = |offset, len| Node::File(Slice { blob: 0, offset, len });
        let entries =
            [(&b""[..], Node::Directory(1..3)), (b"one", slice(0, BLOCK + 3)), (b"two", slice(BLOCK + 3, 7))];
        entries.map(|(name, node)| Entry { name, parent: 0, mtime: (1, 2), executable: false, node })
    }

    fn stored() -> Stored {
        Stored { place: "uploads/x".into(), ends: Some(vec![7; 16].into()) }
    }
}

impl ManifestContents for Pack {
    fn source(&self) -> &str {
        ORIGIN
    }
    fn entries(&self, each: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()> {
        Self::entries().into_iter().try_for_each(each)
    }
    fn blobs(&self, each: &mut dyn FnMut(BlobEntry<'_>) -> Result<()>) -> Result<()> {
        let name = BlobName::Content(Digest::of(&self.content), Some(&self.checks));
        let size = self.content.len() as u64;
        let stored = Self::stored();
        // The versions "v1" and "v22", each with its length.
        let version = b"\x02\0v1\x03\0v22"[..].into();
        each(BlobEntry { name, size, entry: Some(1), version, packed: true, sha256: Some([9; 32]), stored })
    }
}

#[test]
fn content_keeps_its_checks() {
    let content: Vec<u8> = (0..BLOCK + 10).map(|i| i as u8).collect();
    let size = content.len() as u64;
    let blocks = content.chunks(BLOCK as usize).enumerate();
    let checks = blocks.map(|(i, bytes)| Check::of(size, i as u64, bytes)).collect();
    let pack = Pack { content, checks };
    let mut bytes = Vec::new();
    encode(&pack, &mut bytes).expect("memory");
    let manifest = Manifest::from_bytes(bytes.clone()).expect("good");
    let blob = manifest.blob(0).expect("good");
    assert_eq!(blob.key, Key::Content(Digest::of(&pack.content)));
    assert_eq!(blob.checks.as_deref(), Some(&pack.checks[..]));
    assert_eq!(Key::Content(Check::combine(size, &pack.checks).expect("two")), blob.key);
    assert_eq!((blob.sha256, &blob.path[..], blob.size), (Some([9; 32]), &b""[..], size));
    let two = manifest.lookup(0, b"two").expect("good").expect("there");
    assert_eq!(manifest.entry(two).expect("good"), Pack::entries()[2]);
    assert_eq!(blob.stored, Pack::stored());
    let parts = manifest.parts(0).expect("good");
    let part = |range, path: &'static str, version: &'static str| PackedFile {
        range,
        path: path.into(),
        version: version.into(),
    };
    assert_eq!(parts, [part(0..BLOCK + 3, "one", "v1"), part(BLOCK + 3..size, "two", "v22")]);
    assert_eq!((manifest.files(), manifest.bytes(), manifest.largest()), (2, size, BLOCK + 3));
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x41;
        read_everything(bytes);
    }
}

#[test]
fn a_file_is_mapped_and_a_newer_version_refused() {
    let mut bytes = Vec::new();
    let digest = listing(&[], &["a/b"]).finish(&mut bytes).expect("good");
    let mut disk = tempfile::tempfile().expect("file");
    disk.write_all(&bytes).expect("written");
    disk.rewind().expect("rewound");
    let manifest = Manifest::open(&disk).expect("good");
    assert_eq!((manifest.digest(), manifest.entries()), (digest, 3));
    manifest.release_pages();
    assert_eq!(manifest.path(2).expect("good"), b"a/b");
    assert_eq!(
        Manifest::open(&tempfile::tempfile().expect("file")).expect_err("empty").kind(),
        Kind::Corrupt
    );
    bytes[8] = 2;
    assert_eq!(Manifest::from_bytes(bytes).expect_err("newer").kind(), Kind::Unsupported);
}

#[test]
fn bad_names_are_refused_all_together() {
    let mut bad =
        listing(&[], &["ok", "a//b", "/abs", "x/../y", "nul\0", "twice", "twice", "both", "both/in"]);
    bad.file(file("huge", 1 << 63));
    bad.symlink(b"link", b"", (0, 0));
    bad.directory(b"d/", (0, 0));
    bad.directory(b"ok", (0, 0));
    bad.file(ListedFile { path: b"\xff\n/./x", ..file("", 1) });
    let error = finish(bad).expect_err("bad");
    assert_eq!(error.kind(), Kind::Invalid);
    let text = error.to_string();
    for named in [
        r#""a//b""#,
        r#""/abs""#,
        r#""x/../y""#,
        r#""nul\0""#,
        r#""twice""#,
        r#""both""#,
        r#""huge""#,
        r#""link""#,
        r#""d/""#,
        r#""ok""#,
        r#""\xff\n/./x""#,
    ] {
        assert!(text.contains(named), "{named} in {text}");
    }
}

#[test]
fn of_many_bad_names_each_is_told_and_an_error_holds_the_first() {
    let listed = Arc::new(Mutex::new(Vec::new()));
    let callback = listed.clone();
    let mut many = listing(&[], &[]);
    many.on_rejected(move |path, why| {
        callback.lock().push((String::from_utf8_lossy(path).into_owned(), why.to_owned()));
    });
    (0..10_000).for_each(|i| many.file(file(&format!("{i}/."), 5)));
    let error = finish(many).expect_err("bad").to_string();
    assert!(error.contains(r#""999/.": a part is '.' or '..'; "1000/.""#), "{error}");
    let more = error.rsplit_once("; and ").expect("more").1;
    let told_at_once = error.matches("a part is").count();
    assert_eq!(more, format!("{} more: `bdnfs ls` prints all of them", 10_000 - told_at_once));
    assert!((60 << 10..70 << 10).contains(&error.len()), "{}", error.len());
    let listed = listed.lock();
    assert_eq!((listed.len(), &listed[9_999].0[..]), (10_000, "9999/."));
}

#[test]
fn more_than_fits_into_memory_is_in_order_all_the_same() {
    let paths = |spilled: bool| {
        let mut listing = listing(&[], &[]);
        listing.escape();
        if spilled {
            listing.limit_memory(2_000);
        }
        // Every path of three directories each, and each directory also as a file; far apart from each other.
        for i in 0..3_000u32 {
            let at = i * 1_571 % 3_000;
            listing.file(file(&format!("{}/{}/f{at}", at % 7, at % 11), u64::from(at % 3)));
            listing.check_spill().expect("room");
        }
        for i in 0..77 {
            listing.file(file(&format!("{}/{}", i % 7, i % 11), 1));
        }
        let manifest = finish(listing).expect("good");
        let paths: Vec<_> = walk(&manifest).expect("good").into_keys().collect();
        (manifest.digest(), paths)
    };
    let (all, spilled) = (paths(false), paths(true));
    assert_eq!(all.1.len(), 3_000 + 77 + 77 + 7);
    assert!(all.1.contains(&b"3/%35".to_vec()), "a file beside the directory 3/5");
    assert_eq!(all, spilled);
}

#[test]
#[ignore = "takes minutes and 4 GB of disk"]
fn ten_million_files_take_little_memory() {
    let mut listing = listing(&[], &[]);
    for i in 0..10_000_000u64 {
        // Each thousand in a directory of its own, and those in no order.
        let shard = i / 1000 * 7_919 % 10_000;
        let (path, version) = (format!("train/shard-{shard:05}/image-{i:08}.jpg"), format!("\"{i:032x}\""));
        listing.file(ListedFile { version: version.as_bytes(), ..file(&path, i) });
    }
    let mut out = tempfile::tempfile().expect("a file");
    listing.finish(&mut std::io::BufWriter::new(&mut out)).expect("good");
    let kib = |what| {
        let status = std::fs::read_to_string("/proc/self/status").expect("status");
        let kib = status.lines().find_map(|line| line.strip_prefix(what)).expect("a line of it");
        kib.trim().trim_end_matches(" kB").parse::<u64>().expect("kB")
    };
    let peak = kib("VmHWM:");
    assert!(peak < 128 << 10, "{peak} KiB");
    let (heap, begun) = (kib("RssAnon:"), std::time::Instant::now());
    let manifest = Manifest::open(&out).expect("good");
    let took = begun.elapsed();
    assert_eq!((manifest.entries(), manifest.files()), (10_010_002, 10_000_000));
    let last = manifest.entries() - 1;
    assert_eq!(manifest.path(last).expect("good"), b"train/shard-09999/image-02321999.jpg");
    let (grown, len) = (kib("RssAnon:").saturating_sub(heap), out.metadata().expect("its size").len());
    println!(
        "a manifest of {len} bytes was opened in {took:?}; the heap grew by {grown} KiB, its peak was {peak} KiB"
    );
    assert!(grown < 1 << 10, "opening takes {grown} KiB of heap");
}

#[test]
fn what_fits_nowhere_is_an_error() {
    let mut listing = Listing::new(ORIGIN, Patterns::default(), Path::new("/proc/no-such-directory"));
    listing.limit_memory(100);
    (0..9).for_each(|i| listing.file(file(&format!("f{i}"), 5)));
    let error = listing.check_spill().and_then(|()| finish(listing).map(drop)).expect_err("no room");
    assert_eq!(error.kind(), Kind::Disk);
    let text = "the listing is too long for memory, and can't be kept in /proc/no-such-directory: ";
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn only_what_is_selected_is_taken() {
    let mut some = listing(&["*.json", "typo/"], &["a/x.json", "b/y.bin", "bad//name"]);
    some.directory(b"a", (50, 0));
    some.directory(b"b", (0, 0));
    some.directory(b"bad//name", (0, 0));
    some.symlink(b"c/l.json", b"../a", (60, 0));
    assert_eq!(some.unmatched(), ["typo/"]);
    let manifest = finish(some).expect("good");
    let paths: Vec<_> = walk(&manifest).expect("good").into_keys().collect();
    assert_eq!(paths, [&b"a"[..], b"a/x.json", b"c", b"c/l.json"]);
    // A directory that was listed has its own time, others that of the newest entry below them.
    let times: Vec<_> = (0..3).map(|i| manifest.entry(i).expect("good").mtime.0).collect();
    assert_eq!(times, [60, 50, 60]);

    let mut empty = listing(&[], &[]);
    empty.directory(b"d", (0, 0));
    assert_eq!(finish(empty).expect_err("empty").to_string(), "s3://bucket/models holds no file");
    let error = finish(listing(&["*.x", "y/"], &["a", "b"])).expect_err("nothing");
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains(r#"none of the 2 files"#), "{error}");
    assert!(error.to_string().contains(r#"(allow "*.x", "y/")"#), "{error}");
}

#[test]
fn each_lie_is_found() {
    let mut bytes = Vec::new();
    listing(&[], &["a/x", "b/y"]).finish(&mut bytes).expect("good");
    // Entries 1 to 4 are a, b, a/x, b/y; after them come the two blobs, and the strings from 400 on.
    let (entry, blob, name) = (|i: usize| 64 + 48 * i, |i: usize| 304 + 48 * i, 400 + ORIGIN.len());
    type Look = fn(&Manifest) -> Result<()>;
    let see: Look = |m| m.entry(3).map(drop);
    let lies: [(&str, usize, &[u8], Look); 16] = [
        ("a directory before itself", entry(1) + 16, &[0], |m| m.entry(1).map(drop)),
        ("a directory past the end", entry(1) + 24, &[9], |m| m.entry(1).map(drop)),
        ("a child of two, walked", entry(1) + 24, &[2], |m| walk(m).map(drop)),
        ("a name out of order", name, b"c", |m| walk(m).map(drop)),
        ("a child of two, looked up", entry(1) + 24, &[2], |m| m.lookup(1, b"y").map(drop)),
        ("a root that is a file", entry(0) + 14, &[2], |m| m.entry(0).map(drop)),
        ("another's child", entry(3) + 8, &[2], see),
        ("no kind", entry(3) + 14, &[9], see),
        ("an end past the blob", entry(3) + 24, &[6], see),
        ("an overflowing end", entry(3) + 16, &[255; 8], see),
        ("too many nanoseconds", entry(3) + 36, &1_000_000_000u32.to_le_bytes(), see),
        ("no name", entry(3) + 12, &[0], see),
        ("a name of two parts", name + 2, b"/", see),
        ("a blob without end", blob(0) + 7, &[128], |m| m.blob_size(0).map(drop)),
        ("another's blob", blob(0) + 32, &[4], |m| m.blob(0).map(drop)),
        ("a nameless blob", blob(0) + 32, &[255; 4], |m| m.blob(0).map(drop)),
    ];
    for (what, at, lie, look) in lies {
        let mut bytes = bytes.clone();
        look(&Manifest::from_bytes(bytes.clone()).expect("good")).expect(what);
        bytes[at..at + lie.len()].copy_from_slice(lie);
        let error = look(&Manifest::from_bytes(bytes).expect("a right header")).expect_err(what);
        assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
    }
}

#[test]
fn what_cannot_be_a_name_is_escaped_if_asked() {
    let mut listing = Listing::new(ORIGIN, Patterns::default(), &std::env::temp_dir());
    listing.escape();
    let long = "x".repeat(300);
    for path in ["a", "a/b", "a//b", "../x", "n\0", "100%", &long] {
        listing.file(file(path, 5));
    }
    listing.directory(b"a", (1, 2));
    let manifest = finish(listing).expect("all of them");
    let paths: BTreeSet<_> = (1..manifest.entries())
        .filter(|i| matches!(manifest.entry(*i).expect("entry").node, Node::File(_)))
        .map(|i| String::from_utf8(manifest.path(i).expect("path")).expect("UTF-8"))
        .collect();
    let long = format!("{}%/{}", "x".repeat(254), "x".repeat(46));
    let expected = ["%61", "a/b", "a/%2Fb", "%2E%2E/x", "n%00", "100%25", &long].map(str::to_owned);
    assert_eq!(paths, expected.into());
}
