//! Changes of a home that a look at names, sizes and times does not show, or shows as others.

use std::os::unix::fs::{FileExt, MetadataExt, chown};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn change_that_looks_like_none_outlasts_a_pull_and_is_saved() {
    let (mirror, one, other) = nodes();
    one.write("wheel", "first");
    one.save().await;
    other.pull().await;
    rewrite_unseen(&other, "wheel", "other");
    one.write("more", "more");
    one.save().await;
    assert_eq!(other.pull().await.taken, 1);
    // What was pulled is not taken for a change of this node's.
    fs::remove_file(one.tree().join("more")).unwrap();
    one.save().await;
    assert_eq!(other.pull().await.removed, 1);
    assert!(other.save().await.published.is_some());
    let new = HomeNode::new(mirror.path());
    new.pull().await;
    one.pull().await;
    for node in [&new, &one] {
        assert_eq!(node.read("wheel").as_deref(), Some("other"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_saved_with_the_size_and_time_of_the_former_replaces_it_on_other_nodes() {
    let (_mirror, one, other) = nodes();
    let large = "x".repeat(4 << 20);
    for (name, content) in [("wheel", "first"), ("kept", "kept"), ("large", &large)] {
        one.write(name, content);
    }
    one.save().await;
    other.pull().await;
    rewrite_unseen(&one, "wheel", "other");
    // Something was done to this one, too, but not to its content.
    rewrite_unseen(&one, "large", &large);
    one.save().await;
    let pulled = other.pull().await;
    assert!(pulled.taken == 1 && pulled.conflicts.is_empty(), "{pulled:?}");
    assert_eq!(other.read("wheel").as_deref(), Some("other"));
    assert_eq!((other.pull().await.taken, other.found()), (0, one.found()));
}

#[tokio::test(flavor = "multi_thread")]
async fn content_saved_unseen_is_taken_over_unseen_changes_only_which_are_reported() {
    let (_mirror, one, other) = nodes();
    for name in ["both", "removed", "older", "touched"] {
        one.write(name, "first");
    }
    one.save().await;
    other.pull().await;
    rewrite_unseen(&one, "both", "mine!");
    for name in ["removed", "older", "touched"] {
        rewrite_unseen(&one, name, "first");
    }
    one.write("new", "new");
    one.save().await;
    rewrite_unseen(&other, "both", "yours");
    fs::remove_file(other.tree().join("removed")).unwrap();
    other.write("older", "changed here");
    let past = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::open(other.tree().join("older")).and_then(|file| file.set_modified(past)).unwrap();
    let pulled = other.pull().await;
    assert_eq!(pulled.conflicts, [b"both".to_vec()]);
    let found = ["both", "removed", "older", "touched", "new"].map(|name| other.read(name));
    let expected = [Some("mine!"), None, Some("changed here"), Some("first"), Some("new")];
    assert_eq!(found, expected.map(|content| content.map(str::to_owned)));
}

/// Writes another content to a file of a node, which shows neither in its size nor in its time.
fn rewrite_unseen(node: &HomeNode, name: &str, content: &str) {
    let modified = fs::metadata(node.tree().join(name)).and_then(|found| found.modified()).unwrap();
    node.write(name, content);
    fs::File::open(node.tree().join(name)).and_then(|file| file.set_modified(modified)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn file_that_became_a_hard_link_of_another_user_is_removed_on_no_node() {
    let (mirror, one, other) = nodes();
    let names = ["d/empty", "d/linked"];
    one.write("other", "first");
    one.write(names[0], "");
    one.write(names[1], "first");
    one.save().await;
    other.pull().await;
    for name in names {
        let theirs = one.home.path().join("theirs");
        fs::write(&theirs, "theirs").unwrap();
        chown(&theirs, Some(12345), None).unwrap();
        fs::remove_file(one.tree().join(name)).unwrap();
        fs::rename(&theirs, one.home.path().join(name.replace('/', "-"))).unwrap();
        fs::hard_link(one.home.path().join(name.replace('/', "-")), one.tree().join(name)).unwrap();
    }
    let unreadable = |saved: &SavedCache| {
        let paths = saved.unreadable.iter().map(|(path, _)| String::from_utf8(path.clone()).unwrap());
        paths.collect::<Vec<_>>()
    };
    let saved = one.save().await;
    assert!(saved.published.is_none() && unreadable(&saved) == names, "{saved:?}");
    one.write("other", "second");
    let saved = one.save().await;
    assert!(saved.published.is_some() && unreadable(&saved) == names, "{saved:?}");
    assert_eq!(other.pull().await.removed, 0);
    let new = HomeNode::new(mirror.path());
    new.pull().await;
    for node in [&other, &new] {
        let found = ["other", names[0], names[1]].map(|name| node.read(name));
        assert_eq!(found, ["second", "", "first"].map(|content| Some(content.to_owned())));
    }
    // Its user may replace it at any time.
    for name in names {
        fs::remove_file(one.tree().join(name)).unwrap();
    }
    one.write(names[1], "third");
    assert!(one.save().await.unreadable.is_empty());
    other.pull().await;
    assert_eq!((other.read(names[0]), other.read(names[1]).as_deref()), (None, Some("third")));
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_of_a_sparse_file_are_holes_on_other_nodes() {
    let (_mirror, one, other) = nodes();
    fs::create_dir_all(one.tree()).unwrap();
    // In one block, in several, and with nothing but a hole.
    let files = [
        ("small", 700_001, &[650_000][..]),
        ("large", (8 << 20) + 5, &[0, 5 << 20]),
        ("empty", 3 << 20, &[]),
    ];
    for (name, size, written) in files {
        let file = fs::File::create(one.tree().join(name)).unwrap();
        file.set_len(size).unwrap();
        written.iter().for_each(|at| file.write_all_at(b"data", *at).unwrap());
    }
    one.save().await;
    other.pull().await;
    assert_eq!(other.found(), one.found());
    for (name, size, written) in files {
        let occupied = fs::metadata(other.tree().join(name)).unwrap().blocks() * 512;
        let data = (written.len() as u64 + 1) * (128 << 10);
        assert!(occupied <= data, "{name} of {size} bytes occupies {occupied}");
    }
}
