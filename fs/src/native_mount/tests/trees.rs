//! Comparison of native mounts of any tree with FUSE mounts of the same, and the size of their images.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bdnfs::native::image::ImageOptions;
use bdnfs::tier::memory::MemoryTier;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use rustix::fs::{lgetxattr, llistxattr};

use super::NativeFixture;
use crate::{Mount, Options};

/// The number of trees that are compared at night, where `CAMPAIGN_ROUNDS` says nothing: more take half an hour.
const NIGHTLY_TREES: u32 = 250;

/// Returns all that a program can see of a tree, but for what depends on the kind of file system.
fn seen(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut seen, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = left.pop() {
        let stat = fs::symlink_metadata(&path).expect("there");
        let mut text = format!(
            "{:o} {}:{} {}.{:09} {}.{:09} {}.{:09}",
            stat.mode(),
            stat.uid(),
            stat.gid(),
            stat.mtime(),
            stat.mtime_nsec(),
            stat.atime(),
            stat.atime_nsec(),
            stat.ctime(),
            stat.ctime_nsec()
        );
        if stat.is_dir() {
            left.extend(fs::read_dir(&path).expect("read").map(|entry| entry.expect("an entry").path()));
        } else if stat.is_symlink() {
            text += &format!(" -> {:?}", fs::read_link(&path).expect("a link"));
        } else {
            let bytes = fs::read(&path).expect("read");
            assert_eq!(bytes.len() as u64, stat.len());
            text += &format!(" {} {} {}", stat.len(), stat.nlink(), blake3_of(&bytes));
        }
        let mut names = vec![0; 4096];
        let len = llistxattr(&path, &mut names[..]).expect("listed");
        for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; 65536];
            let len = lgetxattr(&path, name, &mut value[..]).expect("there");
            text += &format!(" {}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(&value[..len]));
        }
        seen.insert(path.strip_prefix(root).expect("below").to_owned(), text);
    }
    seen
}

fn blake3_of(bytes: &[u8]) -> String {
    bdnfs::digest::Digest::of(bytes).to_string()
}

#[derive(Debug, Clone)]
enum ModelEntry {
    File { size: usize, executable: bool },
    Link(String),
    Directory,
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[!-.0-~]{1,12}".prop_filter("a name", |name| name != "." && name != ".."),
        select(vec!["x".repeat(255), "-".into(), "...".into(), "é ".into()]),
    ]
}

fn entry() -> impl Strategy<Value = (Vec<String>, ModelEntry)> {
    let sizes = prop_oneof![
        4 => 0usize..3000,
        1 => select(vec![0usize, 1, 511, 512, 513, 4095, 4096, 4097]),
        1 => select(vec![1usize << 20, (1 << 20) + 1, (2 << 20) + 777]),
    ];
    let what = prop_oneof![
        6 => (sizes, any::<bool>()).prop_map(|(size, executable)| ModelEntry::File { size, executable }),
        1 => "[a-z/.]{1,40}".prop_map(ModelEntry::Link),
        1 => Just(ModelEntry::Link("y".repeat(900))),
        1 => Just(ModelEntry::Directory),
    ];
    (prop::collection::vec(name(), 1..4), what)
}

/// Makes `entries` below `root`; what has no place there is left out.
fn make(root: &Path, entries: &[(Vec<String>, ModelEntry)]) {
    for (number, (path, what)) in entries.iter().enumerate() {
        let path = path.iter().fold(root.to_owned(), |at, name| at.join(name));
        let Some(parent) = path.parent() else { continue };
        if fs::create_dir_all(parent).is_err() || path.symlink_metadata().is_ok() {
            continue;
        }
        match what {
            ModelEntry::Directory => fs::create_dir(&path).expect("made"),
            ModelEntry::Link(target) => symlink(target, &path).expect("linked"),
            ModelEntry::File { size, executable } => {
                let bytes: Vec<u8> = (0..*size).map(|at| (at * 31 + number * 7 + at / 251) as u8).collect();
                fs::write(&path, bytes).expect("written");
                let mode = if *executable { 0o755 } else { 0o644 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
            }
        }
    }
}

fn compare_trees(cases: u32) {
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 20,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let tree = (prop::collection::vec(entry(), 1..60), any::<bool>());
    let compared = TestRunner::new(config).run(&tree, |(entries, allow_other)| {
        let fixture = NativeFixture::new();
        make(&fixture.path("source"), &entries);
        fs::write(fixture.path("source/one"), "file").expect("written");
        let snapshot = fixture.staged();
        let control = Some(PathBuf::from("/run/bdnfs.sock"));
        let options =
            Options { uid: Some(70_000), gid: Some(7), allow_other: true, control, ..Options::default() };
        let fuse =
            Mount::new(snapshot.clone(), fixture.runtime.handle().clone(), &fixture.path("fuse"), &options)
                .expect("mounted");
        let native = fixture.native(&snapshot);
        let mounted = fixture.mount(&native, &Options { allow_other, ..options });
        let (mut expected, got) = (seen(&fixture.path("fuse")), seen(&fixture.path("native")));
        if !allow_other {
            for text in expected.values_mut().filter(|text| !text.starts_with("12")) {
                let mode = u32::from_str_radix(text.split(' ').next().expect("a mode"), 8).expect("octal");
                *text = text.replacen(&format!("{mode:o}"), &format!("{:o}", mode & !0o077), 1);
            }
        }
        prop_assert_eq!(expected, got);
        drop((fuse, mounted));
        Ok(())
    });
    compared.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn native_mount_of_any_tree_is_like_a_fuse_mount() {
    compare_trees(12);
}

#[test]
#[ignore = "takes minutes; for a change of images: CAMPAIGN_ROUNDS=1000 cargo nextest run -p bdnfs-fs --run-ignored all many_trees"]
fn native_mount_of_many_trees_is_like_a_fuse_mount() {
    let trees = std::env::var("CAMPAIGN_ROUNDS");
    compare_trees(trees.map_or(NIGHTLY_TREES, |trees| trees.parse().expect("a number")));
}

/// Holds the size of the image of `files` small files against what it may take for each beside names and extended attributes. They
/// come from a mirror, whose packs are staged in seconds; each for itself, a million takes as long as so many flushes of the disk.
fn measure_image(files: usize) {
    let fixture = NativeFixture::new();
    let (source, mut names) = (MemoryTier::new("memory://source"), 0);
    for number in 0..files {
        let path = format!("{:03}/{}-{number:07}", number / 1000, "n".repeat(number % 40));
        names += path.len() - 4;
        source.put(path.as_bytes(), number.to_string());
    }
    let native = fixture.native(&fixture.staged_mirrored(Arc::new(source)));
    let mut image = Vec::new();
    let options = ImageOptions { uid: 0, gid: 0, allow_other: true, control: None };
    let began = std::time::Instant::now();
    native.write_image(&options, &mut image).expect("written");
    println!("{files} files: {} bytes, {:?}", image.len(), began.elapsed());
    let mounted = fixture.mount(&native, &Options::default());
    let mut xattrs = 0;
    for entry in fs::read_dir(fixture.path("native/000")).expect("read") {
        let (path, mut list) = (entry.expect("an entry").path(), vec![0; 4096]);
        let len = llistxattr(&path, &mut list[..]).expect("listed");
        for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            xattrs += name.len() + lgetxattr(&path, name, &mut [0_u8; 4096][..]).expect("there");
        }
    }
    let beside = image.len() - names - xattrs * files / files.min(1000);
    assert!(beside < 256 * files, "{} bytes a file", beside / files);
    drop(mounted);
}

#[test]
fn image_of_small_files_takes_less_than_256_bytes_for_each() {
    measure_image(3000);
}

#[test]
#[ignore = "a million files take minutes; for a change of images: cargo nextest run -p bdnfs-fs --run-ignored all native"]
fn image_of_a_million_files_takes_less_than_256_bytes_for_each() {
    measure_image(1_000_000);
}
