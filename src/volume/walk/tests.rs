use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

#[test]
fn walk_of_a_hostile_tree_finds_files_and_says_what_it_left_out() {
    let home = tempfile::tempdir().expect("a directory");
    let root = home.path().join("root");
    fs::create_dir_all(root.join("a/b")).expect("directories");
    fs::write(root.join("a/b/file"), "x").expect("a file");
    fs::write(home.path().join("secret"), "secret").expect("a file");
    symlink("../secret", root.join("link")).expect("a link");
    symlink("..", root.join("up")).expect("a link");
    rustix::fs::mkfifoat(CWD, root.join("fifo"), Mode::RWXU).expect("a fifo");
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).expect("a socket");
    let directory = VolumeDirectory::open(&root).expect("a directory");
    let scan = directory.walk().expect("a walk");
    assert_eq!(scan.files.keys().collect::<Vec<_>>(), [b"a/b/file"]);
    assert_eq!(scan.links.keys().collect::<Vec<_>>(), [&b"link"[..], b"up"]);
    let skipped: Vec<_> = scan.skipped.iter().map(|(path, why)| (&path[..], *why)).collect();
    assert_eq!(skipped, [(&b"fifo"[..], SkipReason::Fifo), (b"socket", SkipReason::Socket)]);
    for path in [&b"link"[..], b"up/secret", b"fifo", b"socket", b"a", b"gone", b"../secret"] {
        assert!(!matches!(directory.open_file(path), Ok(Some(_))), "{}", path.escape_ascii());
    }
    assert!(directory.open_file(b"a/b/file").expect("opened").is_some());
}

#[test]
fn walk_leaves_out_what_has_a_path_that_cannot_be_opened() {
    let home = tempfile::tempdir().expect("a directory");
    let directory = VolumeDirectory::open(home.path()).expect("a directory");
    let mut above = directory.at(b"", OFlags::DIRECTORY).expect("opened");
    for _ in 0..16 {
        let name = "d".repeat(253);
        rustix::fs::mkdirat(&above, &name, Mode::RWXU).expect("a directory");
        above = rustix::fs::openat(&above, &name, OFlags::DIRECTORY, Mode::empty()).expect("opened");
    }
    // It lies at 16 times 253 bytes and a slash.
    let left = MAX_PATH_BYTES - 16 * 254;
    for len in [left, left + 1] {
        let flags = OFlags::WRONLY | OFlags::CREATE;
        rustix::fs::openat(&above, "f".repeat(len), flags, Mode::RWXU).expect("a file");
    }
    rustix::fs::mkdirat(&above, "e".repeat(left + 1), Mode::RWXU).expect("a directory");
    rustix::fs::symlinkat("to", &above, "g".repeat(left + 1)).expect("a link");
    let scan = directory.walk().expect("a walk");
    let is_open = |path| directory.open_file(path).is_ok_and(|file| file.is_some());
    assert!(scan.files.len() == 1 && scan.files.keys().all(|path| is_open(path)), "all can be opened");
    assert!(scan.skipped.len() == 3 && scan.skipped.values().all(|why| *why == SkipReason::LongPath));
}

#[test]
fn walk_above_its_limits_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    for name in ["one", "two", "six"] {
        rustix::fs::mkfifoat(CWD, home.path().join(name), Mode::RWXU).expect("a fifo");
    }
    symlink("target", home.path().join("out")).expect("a link");
    let directory = VolumeDirectory::open(home.path()).expect("a directory");
    for (entries, path_bytes, fits) in [(4, 18, true), (3, 18, false), (4, 17, false)] {
        let walked = directory.walk_within(entries, path_bytes);
        assert_eq!(
            walked.map_err(|error| error.kind()).map(|scan| (scan.skipped.len(), scan.links.len())),
            if fits { Ok((3, 1)) } else { Err(Kind::Invalid) }
        );
    }
}

#[test]
fn walk_leaves_out_a_hard_link_to_a_file_of_another_user() {
    let home = tempfile::tempdir().expect("a directory");
    let root = home.path().join("root");
    fs::create_dir(&root).expect("a directory");
    fs::write(home.path().join("theirs"), "theirs").expect("a file");
    std::os::unix::fs::chown(home.path().join("theirs"), Some(12345), None).expect("given away");
    fs::hard_link(home.path().join("theirs"), root.join("link")).expect("a link");
    let scan = VolumeDirectory::open(&root).and_then(|root| root.walk()).expect("a walk");
    assert!(scan.files.is_empty() && scan.skipped.len() == 1, "{scan:?}");
    assert!(scan.skipped.values().all(|why| why.has_content()));
}

#[test]
fn walk_finds_hard_links_of_other_users_at_the_top_of_a_directory_for_all() {
    let home = tempfile::tempdir().expect("a directory");
    fs::create_dir(home.path().join("step")).expect("a directory");
    fs::write(home.path().join("step/model"), "x").expect("a file");
    std::os::unix::fs::chown(home.path().join("step/model"), Some(1000), None).expect("given away");
    std::os::unix::fs::chown(home.path().join("step"), Some(1000), None).expect("given away");
    fs::hard_link(home.path().join("step/model"), home.path().join("last.ckpt")).expect("a link");
    for (mode, files) in [(0o755, 1), (0o777, 2)] {
        fs::set_permissions(home.path(), fs::Permissions::from_mode(mode)).expect("permissions");
        let scan = VolumeDirectory::open(home.path()).and_then(|root| root.walk()).expect("a walk");
        assert_eq!((scan.files.len(), scan.skipped.len()), (files, 2 - files), "{scan:?}");
    }
}
