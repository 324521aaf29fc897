//! A steady mount as the lower layer of an overlay. Needs `/dev/fuse` and root.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod kit;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use bdnfs_fs::{Options, mounts};
use kit::{LARGE_FILE_BYTES, MemoryOrigin, Mounted, noise};
use memmap2::Mmap;
use rustix::io::Errno;
use rustix::mount::MountFlags;

/// The number of threads that open files at the same time.
const READERS: u64 = 8;
/// The number of files that each of them keeps open.
const OPEN_FILES: usize = 5;
/// The files beside a large one, and how many bytes each has.
const FILES: usize = 40;
const FILE_BYTES: usize = 2 << 20;

/// An overlay over a steady mount, which goes first.
struct Overlay {
    at: PathBuf,
    tree: Mounted,
}

impl Drop for Overlay {
    fn drop(&mut self) {
        mounts::detach(&self.at).unwrap();
    }
}

impl Overlay {
    /// An overlay over a steady mount of a large file and smaller ones, of which each fetch takes `delay`.
    fn new(delay: Duration) -> Self {
        let mut origin = MemoryOrigin::new(&[(b"large", &content(0)), (b"dir/run.sh", b"#!/bin/sh")]);
        origin.delay = delay;
        for number in 1..=FILES {
            origin.files.insert(name(number).into_bytes(), content(number).into());
        }
        let tree = Mounted::new(Arc::new(origin), Options { steady: true, ..Options::default() });
        let at = tree.dir.path().join("overlay");
        for directory in ["overlay", "upper", "work"] {
            fs::create_dir(tree.dir.path().join(directory)).unwrap();
        }
        let layer = |name: &str| tree.dir.path().join(name).display().to_string();
        let layers =
            format!("lowerdir={},upperdir={},workdir={}", layer("mnt"), layer("upper"), layer("work"));
        let layers = std::ffi::CString::new(layers).unwrap();
        rustix::mount::mount("overlay", &at, "overlay", MountFlags::empty(), layers.as_c_str()).unwrap();
        Self { at, tree }
    }

    /// The file `number`, through the overlay.
    fn path(&self, number: usize) -> PathBuf {
        self.at.join(name(number))
    }
}

fn name(number: usize) -> String {
    if number == 0 { "large".into() } else { format!("dir/{number}") }
}

fn content(number: usize) -> Vec<u8> {
    let mut content = noise(if number == 0 { LARGE_FILE_BYTES } else { FILE_BYTES });
    content[..8].copy_from_slice(&(number as u64).to_le_bytes());
    content
}

/// Whether `file` has what it should have at `offset`.
fn is_right(file: &File, content: &[u8], offset: usize) -> std::io::Result<bool> {
    let mut part = [0; 4096];
    file.read_exact_at(&mut part, offset as u64)?;
    Ok(part == content[offset..][..4096])
}

/// Opens, reads and maps files at random, and keeps some of them open, until `ended`. Returns how many it opened.
fn open_at_random(overlay: &Overlay, contents: &[Vec<u8>], seed: u64, ended: &AtomicBool) -> u64 {
    let (mut random, mut opened, mut open) = (seed, 0, Vec::new());
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    while !ended.load(SeqCst) {
        let number = next(FILES + 1);
        let (content, path) = (&contents[number], overlay.path(number));
        let file =
            File::open(&path).unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()));
        let offset = next(content.len() - 4096);
        assert!(is_right(&file, content, offset).unwrap(), "file {number} at {offset}");
        // SAFETY: nobody changes what is read here.
        let map = (next(3) == 0).then(|| unsafe { Mmap::map(&file) }.unwrap());
        open.push((number, file, map));
        if open.len() > OPEN_FILES {
            let (number, file, map) = open.swap_remove(next(OPEN_FILES));
            let offset = next(contents[number].len() - 4096);
            assert!(is_right(&file, &contents[number], offset).unwrap(), "open file {number} at {offset}");
            assert!(map.is_none_or(|map| map[offset..][..4096] == contents[number][offset..][..4096]));
        }
        opened += 1;
    }
    opened
}

#[test]
fn overlay_over_steady_mount_that_fills_opens_every_file_without_error() {
    let overlay = Overlay::new(Duration::from_millis(20));
    let contents: Vec<_> = (0..=FILES).map(content).collect();
    let (ended, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    let tree = &overlay.tree;
    std::thread::scope(|scope| {
        let (overlay, contents, ended, opened) = (&overlay, &contents, &ended, &opened);
        for seed in 0..READERS {
            let read = move || opened.fetch_add(open_at_random(overlay, contents, seed, ended), SeqCst);
            scope.spawn(read);
        }
        tree.runtime.block_on(tree.snapshot.stage().done()).unwrap();
        // What became whole while it was open is opened still.
        std::thread::sleep(Duration::from_secs(1));
        ended.store(true, SeqCst);
    });
    assert!(opened.load(SeqCst) > READERS * FILES as u64);
    // The kernel is done with the last ones.
    let served = tree.settled_traffic();
    for (number, content) in contents.iter().enumerate() {
        assert!(fs::read(overlay.path(number)).unwrap() == *content, "file {number}");
    }
    if tree.mount.passthrough() {
        assert_eq!(
            tree.settled_traffic(),
            served,
            "whole files that were closed are read by the kernel itself"
        );
    }
}

#[test]
fn overlay_over_steady_mount_goes_on_with_the_next_server() {
    let mut overlay = Overlay::new(Duration::ZERO);
    let right = |file: &File, number: usize| {
        for offset in [0, FILE_BYTES - 4096] {
            assert!(is_right(file, &content(number), offset).unwrap(), "file {number} at {offset}");
        }
    };
    let partial = File::open(overlay.path(0)).unwrap();
    assert!(is_right(&partial, &content(0), 4096).unwrap());
    overlay.tree.take_over();
    right(&partial, 0);
    overlay.tree.runtime.block_on(overlay.tree.snapshot.stage().done()).unwrap();
    let whole = File::open(overlay.path(1)).unwrap();
    for _ in 0..2 {
        overlay.tree.take_over();
        for (file, number) in [(&partial, 0), (&whole, 1)] {
            right(file, number);
            right(&File::open(overlay.path(number)).unwrap(), number);
        }
        right(&File::open(overlay.path(2)).unwrap(), 2);
    }
}

#[test]
fn file_of_steady_mount_written_through_an_overlay_is_copied_without_attributes_of_bdnfs() {
    let overlay = Overlay::new(Duration::ZERO);
    let (file, directory) = (overlay.path(1), overlay.at.join("dir"));
    let mode = |path: &Path| path.metadata().unwrap().mode();
    assert_eq!((mode(&file), mode(&directory)), (0o100_644, 0o040_755));
    assert_eq!(mode(&directory.join("run.sh")), 0o100_755);
    let (old, inode) = (File::open(&file).unwrap(), file.metadata().unwrap().ino());
    // SAFETY: the mapping is of the lower file, which nobody changes.
    let map = unsafe { Mmap::map(&old) }.unwrap();
    let new = File::options().read(true).write(true).open(&file).unwrap();
    new.write_all_at(b"written", 8).unwrap();
    let expected = [&content(1)[..8], b"written", &content(1)[15..]].concat();
    assert!(fs::read(&file).unwrap() == expected);
    assert_eq!(file.metadata().unwrap().ino(), inode);
    assert!(is_right(&old, &expected, 0).unwrap(), "what was opened before reads what was written");
    assert!(map[..] == content(1)[..], "what was mapped before stays as it was");
    let copy = overlay.tree.dir.path().join("upper").join(name(1));
    assert!(fs::read(&copy).unwrap() == expected);
    let mut names = [0; 256];
    for place in [&copy, &overlay.tree.path(name(2).as_bytes())] {
        match rustix::fs::listxattr(place, &mut names[..]) {
            Ok(length) => assert!(!String::from_utf8_lossy(&names[..length]).contains("user.bdnfs")),
            Err(error) => assert_eq!(error, Errno::NOTSUP),
        }
    }
    fs::remove_file(overlay.path(2)).unwrap();
    fs::set_permissions(overlay.path(3), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), FILES);
    assert!(fs::read(overlay.path(3)).unwrap() == content(3));
}
