//! Homes with paths that are as long as can be, and homes without any file.

use bdnfs::volume::{Scan, SkipReason};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, symlinkat};

use super::*;

/// The longest path that Linux takes.
const MAX_PATH_BYTES: usize = 4095;

impl HomeNode {
    fn scan(&self) -> Scan {
        VolumeDirectory::open(&self.tree()).and_then(|tree| tree.walk()).unwrap()
    }
}

/// Tests a tree deeper than paths can be, which processes make that change their directory.
#[tokio::test(flavor = "multi_thread")]
async fn cache_home_with_the_longest_paths_is_pulled_below_a_directory_with_a_long_path() {
    let mirror = tempfile::tempdir().unwrap();
    let one = HomeNode::new(mirror.path());
    let volumes: PathBuf = (0..5).map(|_| "v".repeat(200)).collect();
    let other = HomeNode::with_volumes(mirror.path(), &volumes);
    one.write("file", "first");
    let open = |above: std::os::fd::OwnedFd, name: &str| {
        mkdirat(&above, name, Mode::RWXU).unwrap();
        openat(&above, name, OFlags::DIRECTORY, Mode::empty()).unwrap()
    };
    let mut above = openat(CWD, one.tree(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut len = 0;
    while len + 201 < MAX_PATH_BYTES {
        (above, len) = (open(above, &"d".repeat(200)), len + 201);
    }
    for size in [1, 3 << 20] {
        let name = format!("{size:f>width$}", width = MAX_PATH_BYTES - len);
        let file = openat(&above, name, OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
        rustix::fs::ftruncate(&file, size).unwrap();
    }
    for (name, is_saved) in [("l", true), ("m", false)] {
        let width = MAX_PATH_BYTES - len + usize::from(!is_saved);
        symlinkat("target", &above, name.repeat(width)).unwrap();
    }
    let deeper = open(above, &"d".repeat(200));
    drop(open(deeper, "deeper"));

    let saved = one.save().await;
    assert_eq!(saved.published.expect("published").latest_ref.files, 3);
    assert!(
        saved.unreadable.len() == 2 && saved.unreadable.iter().all(|(_, why)| *why == SkipReason::LongPath)
    );
    let pulled = other.pull().await;
    let (found, expected) = (other.scan(), one.scan());
    assert_eq!(pulled.taken, expected.files.len() + expected.directories.len() + expected.links.len());
    let sizes =
        |scan: &Scan| -> Vec<_> { scan.files.iter().map(|(path, file)| (path.clone(), file.size)).collect() };
    assert_eq!((sizes(&found), found.links.len()), (sizes(&expected), 1));
    assert!(found.directories.keys().eq(expected.directories.keys()));
    assert!(other.save().await.published.is_none(), "nothing was changed");
    // It goes as it came.
    fs::remove_dir_all(other.tree().join("d".repeat(200))).unwrap();
    other.save().await.published.expect("published");
    assert_eq!(one.pull().await.removed, pulled.taken - 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_that_was_emptied_is_empty_on_every_node() {
    let (mirror, one, other) = nodes();
    assert!(one.save().await.published.is_none(), "it was never anything else");
    one.write("d/file", "first");
    one.save().await;
    other.pull().await;
    fs::remove_dir_all(one.tree().join("d")).unwrap();
    let saved = one.save().await.published.expect("published");
    assert_eq!((saved.latest_ref.files, one.found()), (0, HomeContent::new()));
    assert!(one.home.sync_state().unwrap().is_saved());
    assert!(one.save().await.published.is_none(), "nothing was changed");
    other.pull().await;
    let new = HomeNode::new(mirror.path());
    new.sync().await.pull_for_use(&DownloadProgress::default()).await.unwrap();
    assert_eq!((other.found(), new.found()), (HomeContent::new(), HomeContent::new()));
    new.write("new", "second");
    assert!(new.save().await.published.is_some());
    one.pull().await;
    assert_eq!(one.read("new").as_deref(), Some("second"));
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_whose_directory_was_lost_is_not_saved_as_empty() {
    let (_mirror, one, other) = nodes();
    one.write("file", "first");
    one.save().await;
    fs::remove_dir_all(one.tree()).unwrap();
    assert!(one.save().await.published.is_none());
    other.pull().await;
    assert_eq!(other.read("file").as_deref(), Some("first"));
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_in_use_that_is_emptied_is_saved_as_empty_at_its_end_only() {
    let (_mirror, one, other) = nodes();
    one.write("file", "first");
    one.save().await;
    fs::remove_file(one.tree().join("file")).unwrap();
    assert!(one.save_in_use().await.expect("nobody else saves").published.is_none());
    assert!(one.home.sync_state().unwrap().unsaved_since.is_some());
    assert!(one.save().await.published.is_some());
    other.pull().await;
    assert_eq!(other.read("file"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_whose_directories_alone_were_touched_is_as_it_was_saved() {
    let (_mirror, one, _) = nodes();
    one.write("d/file", "first");
    one.save().await;
    // As who prepares it for containers, and who makes and removes a lock there.
    fs::write(one.tree().join("d/lock"), "").unwrap();
    fs::remove_file(one.tree().join("d/lock")).unwrap();
    fs::set_permissions(one.tree(), fs::Permissions::from_mode(0o777)).unwrap();
    let is_touched = || one.scan().is_touched_since(one.home.sync_state().unwrap().since);
    assert!(is_touched());
    assert!(one.save().await.published.is_none());
    assert!(!is_touched() && one.home.sync_state().unwrap().is_saved(), "it may be evicted");
}
