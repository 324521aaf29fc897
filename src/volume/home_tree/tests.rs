//! Directories compared with snapshots, merged, and sealed while they are written to.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::tree_merge::merge;
use crate::volume::ignore_lease_signal;

fn open(path: &Path) -> Arc<VolumeDirectory> {
    Arc::new(VolumeDirectory::open(path).expect("a directory"))
}

fn tree(directory: &VolumeDirectory) -> MergeTree {
    directory.walk().expect("a walk").tree(i64::MAX)
}

#[test]
fn apply_merge_makes_one_directory_like_another_and_follows_no_link() {
    let home = tempfile::tempdir().expect("a directory");
    let (ours, incoming, outside) =
        (home.path().join("ours"), home.path().join("in"), home.path().join("out"));
    for path in [
        &ours,
        &incoming,
        &outside,
        &ours.join("old"),
        &ours.join("was"),
        &incoming.join("new"),
        &incoming.join("link"),
    ] {
        fs::create_dir(path).expect("a directory");
    }
    for (path, content) in [
        (ours.join("old/a"), "1"),
        (ours.join("file"), "1"),
        (incoming.join("new/b"), "2"),
        (incoming.join("file"), "2"),
        (incoming.join("was"), "2"),
    ] {
        fs::write(path, content).expect("a file");
    }
    symlink("new/b", incoming.join("to")).expect("a link");
    let (ours, incoming) = (open(&ours), open(&incoming));
    let (base, theirs) = (tree(&ours), tree(&incoming));
    let plan = merge(&base, &base, &theirs);
    apply_merge(&ours, &incoming, &theirs, &plan, MergeDurability::Now).expect("applied");
    assert_eq!(tree(&ours).keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    assert_eq!(fs::read_to_string(home.path().join("ours/to")).expect("a file"), "2");
    // A job may have put a link where a directory was.
    fs::remove_dir(home.path().join("ours/link")).expect("removed");
    symlink(&outside, home.path().join("ours/link")).expect("a link");
    fs::create_dir_all(home.path().join("in/link")).expect("a directory");
    fs::write(home.path().join("in/link/escaped"), "3").expect("a file");
    let theirs = tree(&incoming);
    let plan = MergePlan { take: [b"link/escaped".to_vec()].into(), ..MergePlan::default() };
    apply_merge(&ours, &incoming, &theirs, &plan, MergeDurability::Now).expect_err("a link is in the way");
    assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 0);
}

#[test]
fn apply_merge_makes_content_durable_before_it_is_renamed_and_names_afterwards() {
    let home = tempfile::tempdir().expect("a directory");
    let [ours, incoming] = ["ours", "in"].map(|name| home.path().join(name));
    for path in [&ours, &incoming] {
        fs::create_dir(path).expect("a directory");
    }
    fs::write(incoming.join("file"), "1").expect("a file");
    let (directory, source) = (open(&ours), open(&incoming));
    let (base, theirs) = (tree(&directory), tree(&source));
    let synced = std::cell::RefCell::new(Vec::new());
    let apply = |plan: &MergePlan| {
        let sync = |synced_directory: &VolumeDirectory| {
            let name = synced_directory.path().file_name().map(std::ffi::OsStr::to_owned);
            synced.borrow_mut().push((name.expect("a name"), ours.join("file").exists()));
            Ok(())
        };
        apply_merge_with(&directory, &source, &theirs, plan, sync).expect("applied");
        synced.take()
    };
    assert_eq!(apply(&merge(&base, &base, &theirs)), [("in".into(), false), ("ours".into(), true)]);
    assert_eq!(apply(&MergePlan::default()), [("ours".into(), true)], "nothing came");
}

#[test]
fn tree_has_all_in_a_renamed_directory_as_touched() {
    let home = tempfile::tempdir().expect("a directory");
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for name in ["data", "data.new", "other"] {
        fs::create_dir_all(home.path().join(name).join("in")).expect("directories");
        let file = fs::File::create(home.path().join(name).join("in/file")).expect("a file");
        file.set_modified(time).expect("a time");
    }
    let directory = open(home.path());
    let before = directory.walk().expect("a walk");
    // Times are those of a clock that ticks every few milliseconds.
    std::thread::sleep(Duration::from_millis(50));
    let since = std::time::SystemTime::now().duration_since(time).expect("later")
        + Duration::from_secs(1_000_000_000);
    let since = since.as_nanos() as i64;
    std::thread::sleep(Duration::from_millis(50));
    let touched = |scan: &Scan| {
        let tree = scan.tree(since).into_iter();
        let files = tree.filter(|(_, entry)| matches!(entry, MergeEntry::File { touched: true, .. }));
        files.map(|(path, _)| String::from_utf8(path).expect("text")).collect::<Vec<_>>()
    };
    assert_eq!(touched(&before), [""; 0]);
    assert!(!before.is_touched_since(since));
    for (from, to) in [("data", "data.old"), ("data.new", "data")] {
        fs::rename(home.path().join(from), home.path().join(to)).expect("renamed");
    }
    let after = directory.walk().expect("a walk");
    assert_eq!(touched(&after), ["data.old/in/file", "data/in/file"]);
    assert!(after.is_touched_since(since));
}

#[test]
fn tree_with_a_new_link_alone_counts_as_touched() {
    let home = tempfile::tempdir().expect("a directory");
    fs::write(home.path().join("file"), "1").expect("a file");
    let directory = open(home.path());
    std::thread::sleep(Duration::from_millis(50));
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("later");
    let since = since.as_nanos() as i64;
    std::thread::sleep(Duration::from_millis(50));
    assert!(!directory.walk().expect("a walk").is_touched_since(since));
    std::os::unix::fs::symlink("file", home.path().join("link")).expect("a link");
    assert!(directory.walk().expect("a walk").is_touched_since(since));
}

#[test]
fn tree_without_a_file_that_lay_at_its_top_counts_as_touched() {
    let home = tempfile::tempdir().expect("a directory");
    for name in ["file", "gone"] {
        fs::write(home.path().join(name), "1").expect("a file");
    }
    let directory = open(home.path());
    std::thread::sleep(std::time::Duration::from_millis(50));
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("later");
    let since = since.as_nanos() as i64;
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!directory.walk().expect("a walk").is_touched_since(since));
    fs::remove_file(home.path().join("gone")).expect("removed");
    assert!(directory.walk().expect("a walk").is_touched_since(since));
}

#[test]
fn quiet_tree_leaves_out_what_is_being_written() {
    ignore_lease_signal();
    let home = tempfile::tempdir().expect("a directory");
    fs::write(home.path().join("closed"), "1").expect("a file");
    fs::write(home.path().join("former"), "1").expect("a file");
    let _writers = ["open", "former"].map(|name| {
        fs::File::options().append(true).create(true).open(home.path().join(name)).expect("a file")
    });
    let directory = open(home.path());
    let scan = directory.walk().expect("a walk");
    let (tree, version) = (scan.tree(0), Bytes::from_static(b"before"));
    let former = FormerFile { size: 9, mtime: (1, 0), executable: false, version };
    let former = FormerFiles::from([(b"former".to_vec(), former.clone()), (b"gone".to_vec(), former)]);
    let seal = |writing_at| {
        let former = (&MergeTree::new(), former.clone());
        scan.clone()
            .into_quiet_tree(&directory, &tree, former, writing_at, &mut UnwrittenContent::default())
            .expect("sealed")
    };
    let quiet = seal(None);
    assert_eq!(quiet.left_out.busy, [&b"former"[..], b"open"]);
    let touched = scan.files[&b"former"[..]].touched().expect("a time") as i64;
    assert!(quiet.left_out.since.is_some_and(|since| since <= touched));
    // What was closed just now may be opened again at once by those who write.
    let closed = scan.files[&b"closed"[..]].touched().expect("a time") as i64;
    let is_busy = |quiet: QuietTree| quiet.left_out.busy.contains(&b"closed".to_vec());
    assert!(is_busy(seal(Some(closed + 1_000_000_000))) && !is_busy(seal(Some(closed + 2_000_000_000))));
    assert_eq!(quiet.former.keys().collect::<Vec<_>>(), [b"former"]);
    assert_eq!(quiet.unit.seal.files.keys().collect::<Vec<_>>(), [&EncodedPath(b"closed".to_vec())]);
    let base = MergeTree::from([(b"former".to_vec(), tree[&b"former"[..]].clone())]);
    let unknown = scan.clone().into_quiet_tree(
        &directory,
        &tree,
        (&base, FormerFiles::new()),
        None,
        &mut UnwrittenContent::default(),
    );
    let error = unknown.expect_err("other nodes would remove it").to_string();
    assert!(error.contains("former can't stay as it was saved, and is being written"), "{error}");
}
