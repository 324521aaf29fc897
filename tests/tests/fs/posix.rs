//! What programs expect of a read-only file system.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt, symlink};

use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{is_local, xattr};
use bdnfs_tests::test_env::machine_with_tree;
use bdnfs_tests::tree::{Rng, assert_same_tree, regular_files, total_bytes, write_file, write_odd_tree};
use rustix::fs::{RawDir, SeekFrom, Timestamps, XattrFlags, seek, utimensat};
use rustix::io::Errno;

fn raw_errno<T: std::fmt::Debug>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn write_calls_on_mount_fail_with_erofs() {
    let (machine, source) = machine_with_tree();
    let point = machine.mount(&source, "mnt");
    let (old, new, dir) = (point.join("config.json"), point.join("new"), point.join("names"));
    let now =
        Timestamps { last_access: rustix::fs::Timespec::default(), last_modification: Default::default() };
    let flags = rustix::fs::AtFlags::empty();
    let attempts: Vec<(&str, Option<Errno>)> = vec![
        ("create", raw_errno(File::create(&new))),
        ("open to write", raw_errno(OpenOptions::new().write(true).open(&old))),
        ("open to append", raw_errno(OpenOptions::new().append(true).open(&old))),
        (
            "truncate",
            rustix::fs::open(&old, rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::TRUNC, 0.into()).err(),
        ),
        ("rename", raw_errno(fs::rename(&old, &new))),
        ("unlink", raw_errno(fs::remove_file(&old))),
        ("mkdir", raw_errno(fs::create_dir(&new))),
        ("rmdir", raw_errno(fs::remove_dir(&dir))),
        ("chmod", raw_errno(fs::set_permissions(&old, Permissions::from_mode(0o777)))),
        ("chown", raw_errno(std::os::unix::fs::chown(&old, Some(1), Some(1)))),
        ("symlink", raw_errno(symlink("to", &new))),
        ("link", raw_errno(fs::hard_link(&old, &new))),
        ("utimes", utimensat(rustix::fs::CWD, &old, &now, flags).err()),
        ("setxattr", rustix::fs::setxattr(&old, "user.mine", b"x", XattrFlags::empty()).err()),
        ("removexattr", rustix::fs::removexattr(&old, "user.bdnfs.source").err()),
    ];
    for (what, errno) in attempts {
        assert_eq!(errno, Some(Errno::ROFS), "{what}");
    }
    assert_same_tree(&source, &point);
}

#[test]
fn missing_path_fails_as_on_ext4() {
    let (machine, source) = machine_with_tree();
    let point = machine.mount(&source, "mnt");
    assert_eq!(raw_errno(File::open(point.join("nobody"))), Some(Errno::NOENT));
    assert_eq!(raw_errno(File::open(point.join("config.json/below"))), Some(Errno::NOTDIR));
    assert_eq!(raw_errno(File::open(point.join("n".repeat(256)))), Some(Errno::NAMETOOLONG));
    assert_eq!(raw_errno(fs::read_link(point.join("config.json"))), Some(Errno::INVAL));
    assert_eq!(raw_errno(fs::read(point.join("names"))), Some(Errno::ISDIR));
}

#[test]
fn names_links_and_modes_equal_the_original() {
    let (machine, source) = machine_with_tree();
    write_odd_tree(&source);
    let point = machine.mount(&source, "mnt");
    assert_same_tree(&source, &point);
    for (name, mode) in [("config.json", 0o444), ("run", 0o555), ("names", 0o555)] {
        let (original, meta) =
            (fs::metadata(source.join(name)).unwrap(), fs::metadata(point.join(name)).unwrap());
        assert_eq!(meta.mode() & 0o7777, mode, "{name}");
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (original.mtime(), original.mtime_nsec()), "{name}");
    }
    let meta = fs::metadata(point.join("sizes/blocks")).unwrap();
    assert!(meta.blocks() * 512 >= meta.len(), "du would say {} for {}", meta.blocks() * 512, meta.len());
}

#[test]
fn readdir_entries_agree_with_stat() {
    let (machine, source) = machine_with_tree();
    write_odd_tree(&source);
    let point = machine.mount(&source, "mnt");
    for directory in [point.clone(), point.join("names"), point.join("sizes")] {
        for entry in fs::read_dir(&directory).unwrap() {
            let (entry, what) = (entry.as_ref().unwrap(), format!("{entry:?}"));
            let meta = fs::symlink_metadata(entry.path()).unwrap();
            assert_eq!(entry.ino(), meta.ino(), "{what}");
            assert_eq!(entry.file_type().unwrap(), meta.file_type(), "{what}");
        }
        let above = fs::metadata(directory.join("..")).unwrap().ino();
        assert_eq!(
            above,
            fs::metadata(directory.parent().unwrap()).unwrap().ino(),
            "{}/..",
            directory.display()
        );
    }
}

/// All names of `directory`, each with the position behind it.
fn entries(directory: &File) -> Vec<(Vec<u8>, u64)> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let (mut entries, mut found) = (RawDir::new(directory, &mut buffer), Vec::new());
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        found.push((entry.file_name().to_bytes().to_vec(), entry.next_entry_cookie()));
    }
    found
}

#[test]
fn readdir_of_large_directory_from_any_position_is_whole() {
    const FILES: usize = 20_000;
    let machine = Machine::new();
    let source = machine.directory("source");
    for number in 0..FILES {
        fs::write(source.join(format!("file number {number}")), []).unwrap();
    }
    let point = machine.mount(&source, "mnt");
    let directory = File::open(&point).unwrap();
    let all = entries(&directory);
    let mut names: Vec<_> = all.iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    let mut expected: Vec<_> =
        (0..FILES).map(|number| format!("file number {number}").into_bytes()).collect();
    expected.extend([b".".to_vec(), b"..".to_vec()]);
    expected.sort();
    assert!(names == expected, "{} names of {}", names.len(), expected.len());

    let mut rng = Rng(20_000);
    for _ in 0..20 {
        let at = rng.below(all.len() as u64) as usize;
        seek(&directory, SeekFrom::Start(all[at].1)).unwrap();
        assert!(entries(&directory) == all[at + 1..], "from behind entry {at}");
    }
    seek(&directory, SeekFrom::Start(0)).unwrap();
    assert!(entries(&directory) == all, "again from the start");
}

#[test]
fn xattrs_of_file_have_digest_source_and_local_bytes() {
    let machine = Machine::new();
    let source = machine.directory("source");
    let bytes = write_file(&source, "file", (3 << 20) + 17);
    let point = machine.mount_with(&source, "mnt", &["--wait"]);
    let path = point.join("file");
    assert!(xattr(&path, "user.bdnfs.digest").contains(&blake3::hash(&bytes).to_hex()[..]));
    assert!(xattr(&path, "user.bdnfs.source").contains(source.to_str().unwrap()));
    assert!(is_local(&path), "{}", xattr(&path, "user.bdnfs.local"));
    assert_eq!(rustix::fs::getxattr(&path, "user.nobody's", &mut [0_u8; 64][..]), Err(Errno::NODATA));
    let mut list = vec![0; 4096];
    let len = rustix::fs::listxattr(&path, &mut list[..]).unwrap();
    let names: Vec<&[u8]> = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    for name in ["user.bdnfs.digest", "user.bdnfs.source", "user.bdnfs.local"] {
        assert!(names.contains(&name.as_bytes()), "{name}");
    }
}

#[test]
fn statfs_of_mount_has_the_size_of_the_tree() {
    let (machine, source) = machine_with_tree();
    let point = machine.mount(&source, "mnt");
    let stat = rustix::fs::statvfs(&point).unwrap();
    assert!(
        stat.f_blocks * stat.f_frsize >= total_bytes(&source),
        "{} blocks of {}",
        stat.f_blocks,
        stat.f_frsize
    );
    assert!(stat.f_files >= regular_files(&source).len() as u64);
    assert_eq!((stat.f_bavail, stat.f_namemax), (0, 255));
}

#[test]
fn mount_with_owner_and_access_options_applies_them() {
    let (machine, source) = machine_with_tree();
    let point = machine.mount_with(&source, "mnt", &["--uid", "12", "--gid", "34", "--allow-other"]);
    let meta = fs::metadata(point.join("config.json")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (12, 34));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(point.to_str().unwrap())).unwrap();
    for word in [" ro,", "allow_other", "bdnfs"] {
        assert!(line.contains(word), "`{word}` is not in {line}");
    }
}
