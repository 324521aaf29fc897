//! A real mount over a real engine, whose origin is in memory. Needs `/dev/fuse`, and root or `fusermount3`.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod kit;

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use bdnfs::digest::Digest;
use bdnfs::error::Kind;
use bdnfs_fs::{Mount, Options, mounts};
use kit::{LARGE_FILE_BYTES, MemoryOrigin, Mounted, noise};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// A mount of `files`, paths and contents.
fn mounted(files: &[(&[u8], &[u8])]) -> Mounted {
    let options = Options { control: Some("/run/control".into()), ..Options::default() };
    Mounted::new(Arc::new(MemoryOrigin::new(files)), options)
}

fn names(path: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(path).expect("a directory");
    let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name().as_bytes().to_vec()).collect();
    names.sort();
    names
}

fn xattr(path: &Path, name: &str) -> std::result::Result<String, Errno> {
    let mut value = vec![0; 256];
    let len = rustix::fs::getxattr(path, name, &mut value[..])?;
    Ok(String::from_utf8_lossy(&value[..len]).into_owned())
}

#[test]
fn mount_shows_the_tree_of_its_source() {
    let odd: &[u8] = b"new\nline \xff";
    let tree = mounted(&[(b"a", b"alpha"), (b"sub/run.sh", b"#!"), (odd, b""), (b"sub/deep/b", b"beta")]);
    assert_eq!(names(&tree.path(b"")), [&b"a"[..], b"hollow", odd, b"sub"]);
    assert_eq!(names(&tree.path(b"sub")), [&b"deep"[..], b"link", b"run.sh"]);
    assert!(names(&tree.path(b"hollow")).is_empty());
    assert_eq!(fs::read(tree.path(b"a")).expect("read"), b"alpha");
    assert_eq!(fs::read(tree.path(b"sub/link")).expect("read through the link"), b"alpha");
    assert_eq!(fs::read(tree.path(odd)).expect("read"), b"");
    let (a, run) = (tree.path(b"a").metadata().expect("a"), tree.path(b"sub/run.sh").metadata().expect("b"));
    assert_eq!(
        (a.len(), a.mode(), a.nlink(), a.mtime(), a.mtime_nsec()),
        (5, 0o100_444, 1, 1_700_000_000, 5)
    );
    assert_eq!(run.mode(), 0o100_555);
    assert_eq!(fs::metadata(tree.path(b"none")).expect_err("missing").kind(), ErrorKind::NotFound);
    assert!(!tree.mount.passthrough());
}

#[test]
fn mount_every_change_is_erofs() {
    let tree = mounted(&[(b"a", b"alpha"), (b"d/b", b"beta")]);
    let (a, new) = (tree.path(b"a"), tree.path(b"new"));
    let refused =
        |done: std::io::Result<()>| done.expect_err("read-only").kind() == ErrorKind::ReadOnlyFilesystem;
    assert!(refused(File::options().write(true).open(&a).map(|_| ())));
    assert!(refused(File::create(&new).map(|_| ())));
    assert!(refused(fs::create_dir(&new)));
    assert!(refused(fs::rename(&a, &new)));
    assert!(refused(fs::remove_file(&a)));
    assert!(refused(fs::set_permissions(&a, a.metadata().expect("a").permissions())));
    assert_eq!(rustix::fs::setxattr(&a, "user.x", b"1", XattrFlags::empty()), Err(Errno::ROFS));
}

#[test]
fn xattr_shows_digest_source_and_local_bytes() {
    let tree = mounted(&[(b"a", b"alpha"), (b"d/b", b"beta")]);
    let (root, b) = (tree.path(b""), tree.path(b"d/b"));
    assert_eq!(xattr(&root, "user.bdnfs.digest"), Ok(tree.snapshot.id().to_string()));
    assert_eq!(xattr(&root, "user.bdnfs.control").as_deref(), Ok("/run/control"));
    assert_eq!(xattr(&root, "user.bdnfs.source").as_deref(), Ok("memory:///test, 1"));
    assert_eq!(xattr(&b, "user.bdnfs.source").as_deref(), Ok("memory:///test, 1/d/b"));
    assert_eq!(xattr(&b, "user.bdnfs.local").as_deref(), Ok("0/4"));
    assert_eq!(xattr(&b, "user.bdnfs.control"), Err(Errno::NODATA));
    tree.runtime.block_on(tree.snapshot.stage().done()).expect("staged");
    assert_eq!(xattr(&root, "user.bdnfs.local").as_deref(), Ok("9/9"));
    assert_eq!(xattr(&b, "user.bdnfs.digest"), Ok(Digest::of(b"beta").to_string()));
    let mut names = vec![0; 256];
    let len = rustix::fs::listxattr(&b, &mut names[..]).expect("names");
    assert_eq!(&names[..len], b"user.bdnfs.digest\0user.bdnfs.source\0user.bdnfs.local\0");
    assert_eq!(rustix::fs::getxattr(&b, "user.bdnfs.local", &mut names[..2]), Err(Errno::RANGE));
}

#[test]
fn readdir_large_directory_lists_all_in_parts() {
    let paths: Vec<_> = (0..5000).map(|i| format!("d/{i:0200}").into_bytes()).collect();
    let files: Vec<(&[u8], &[u8])> = paths.iter().map(|path| (&path[..], &b"x"[..])).collect();
    let tree = mounted(&files);
    let found = names(&tree.path(b"d"));
    assert!(found.iter().map(|name| [b"d/", &name[..]].concat()).eq(paths));
}

#[test]
fn open_file_became_whole_is_passthrough() {
    let content = noise(LARGE_FILE_BYTES);
    let tree = mounted(&[(b"model", &content), (b"small", b"s")]);
    assert!(tree.mount.passthrough(), "it takes root, and Linux 6.9");
    let model = tree.path(b"model");
    let old = File::open(&model).expect("open");
    let mut part = vec![0; 100_000];
    old.read_exact_at(&mut part, 5_000_000).expect("read");
    assert_eq!(part, content[5_000_000..5_100_000]);

    tree.runtime.block_on(tree.snapshot.stage().done()).expect("staged");
    // The name leads to another node as soon as the kernel has been told.
    let link = format!("/proc/self/fd/{}", old.as_raw_fd());
    while !fs::read_link(&link).expect("a link").as_os_str().as_bytes().ends_with(b" (deleted)") {
        std::thread::yield_now();
    }
    let mut new = File::open(&model).expect("open");
    let served = tree.snapshot.traffic().cache;
    let mut all = Vec::new();
    new.read_to_end(&mut all).expect("read");
    assert!(all == content);
    assert_eq!(tree.snapshot.traffic().cache, served, "the agent was asked for a whole file");
    old.read_exact_at(&mut part, 9_000_000).expect("read by the old handle");
    assert_eq!(part, content[9_000_000..9_100_000]);
    let (old, new) = (old.metadata().expect("old"), new.metadata().expect("new"));
    assert_eq!(old.ino(), new.ino());
}

#[test]
fn resume_open_files_read_on() {
    let content = noise(LARGE_FILE_BYTES);
    let mut tree = mounted(&[(b"model", &content), (b"small", b"s"), (b"sub/a", b"a"), (b"sub/b", b"b")]);
    let model = tree.path(b"model");
    let old = File::open(&model).expect("open");
    let mut listing = fs::read_dir(tree.path(b"sub")).expect("a directory");
    listing.next().expect("a first entry").expect("readable");
    let right = |file: &File, at: usize| {
        let mut part = vec![0; 70_000];
        file.read_exact_at(&mut part, at as u64).expect("read");
        assert_eq!(part, content[at..][..part.len()], "at {at}");
    };
    right(&old, 1 << 20);
    tree.take_over();
    right(&old, 3 << 20);
    // The other file, and the link that every tree here has.
    assert_eq!(listing.count(), 2);
    // The next one is opened beside what another process opened, in whatever mode that was.
    right(&File::open(&model).expect("open"), 5 << 20);
    tree.runtime.block_on(tree.snapshot.stage().done()).expect("staged");
    let link = format!("/proc/self/fd/{}", old.as_raw_fd());
    while tree.mount.passthrough()
        && !fs::read_link(&link).expect("a link").as_os_str().as_bytes().ends_with(b" (deleted)")
    {
        std::thread::yield_now();
    }
    let whole = File::open(&model).expect("open");
    for _ in 0..2 {
        tree.take_over();
        let served = tree.settled_traffic();
        right(&whole, 7 << 20);
        right(&File::open(&model).expect("open with the same backing file"), 8 << 20);
        if tree.mount.passthrough() {
            assert_eq!(tree.snapshot.traffic().cache, served, "the agent was asked for a whole file");
        }
        right(&old, 9 << 20);
        // By its node, whatever its name leads to.
        right(&File::open(&link).expect("open once more"), 10 << 20);
    }
    drop(whole);
    right(&File::open(&model).expect("open"), 11 << 20);
    drop(old);
    right(&File::open(&model).expect("open"), 12 << 20);
    tree.mount.unmount().expect("nothing holds it");
}

#[test]
fn resume_stateless_mount_reads_on() {
    let mut tree = mounted(&[(b"a", b"alpha"), (b"b", b"beta")]);
    let mut open = File::open(tree.path(b"a")).expect("open");
    tree.take_over();
    let mut content = Vec::new();
    open.read_to_end(&mut content).expect("read");
    assert_eq!(content, b"alpha");
    assert_eq!(fs::read(tree.path(b"b")).expect("read"), b"beta");
}

#[test]
fn unmount_in_use_is_busy() {
    let tree = mounted(&[(b"a", b"alpha")]);
    let again = Mount::new(
        tree.snapshot.clone(),
        tree.runtime.handle().clone(),
        tree.mount.mountpoint(),
        &Options::default(),
    );
    assert_eq!(again.expect_err("taken").kind(), Kind::Busy);
    let open = File::open(tree.path(b"a")).expect("open");
    assert_eq!(tree.mount.unmount().expect_err("in use").kind(), Kind::Busy);
    let mounted = mounts::at(tree.mount.mountpoint()).expect("a table").expect("mounted");
    assert_eq!(mounted.source, "memory:///test, 1");
    assert!(mounts::users(&mounted).iter().any(|holder| holder.pid == std::process::id()));
    drop(open);
    tree.mount.unmount().expect("unmounted");
    tree.runtime.block_on(tree.mount.await_end());
    tree.mount.unmount().expect("no error the second time");
    assert_eq!(mounts::at(tree.mount.mountpoint()).expect("a table"), None);
}

#[test]
fn mount_dropped_with_open_files_detaches_and_serves_them() {
    let tree = mounted(&[(b"a", b"alpha")]);
    let mut open = File::open(tree.path(b"a")).expect("open");
    let Mounted { mount, snapshot: _snapshot, runtime: _runtime, dir, .. } = tree;
    drop(mount);
    assert!(names(&dir.path().join("mnt")).is_empty());
    let mut content = Vec::new();
    open.read_to_end(&mut content).expect("read");
    assert_eq!(content, b"alpha");
}
