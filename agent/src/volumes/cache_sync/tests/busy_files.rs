//! Files that are being written while a home is saved.

use std::time::{Instant, SystemTime};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_with_files_being_written_is_saved_without_them() {
    let (_mirror, one, other) = nodes();
    one.write("log", "first");
    one.write("other", "first");
    // Those have no version of their own in the mirror.
    let large = "y".repeat(3 << 20);
    one.write("large", &large);
    one.write("copy", &large);
    one.write("empty", "");
    one.save().await;
    let append = |path: &str| {
        let mut file = fs::File::options().append(true).open(one.tree().join(path)).unwrap();
        std::io::Write::write_all(&mut file, b" and half").unwrap();
        file
    };
    let log = append("log");
    let others = ["copy", "empty", "large"].map(append);
    let new = fs::File::create(one.tree().join("new")).unwrap();
    one.write("other", "second");
    let saved = one.save().await;
    assert_eq!(saved.left_out.busy, [&b"copy"[..], b"empty", b"large", b"log", b"new"]);
    other.pull().await;
    let is_former = |path| other.read(path).is_some_and(|content| content == large);
    assert!(is_former("copy") && is_former("large") && other.read("empty").as_deref() == Some(""));
    let read = |path| other.read(path);
    assert_eq!(
        (read("log").as_deref(), read("other").as_deref(), read("new")),
        (Some("first"), Some("second"), None)
    );
    drop((log, others, new));
    one.save().await;
    other.pull().await;
    assert_eq!(other.read("log").as_deref(), Some("first and half"));
    assert_eq!(other.found(), one.found());
}

#[tokio::test(flavor = "multi_thread")]
async fn file_being_written_that_was_saved_alone_stays_as_it_was_beside_new_ones() {
    let (_mirror, one, other) = nodes();
    one.write("log", "first");
    one.save().await;
    let _log = fs::File::options().append(true).open(one.tree().join("log")).unwrap();
    one.write("log", "second");
    one.write("new", "new");
    assert_eq!(one.save().await.left_out.busy, [b"log"]);
    other.pull().await;
    assert_eq!((other.read("log").as_deref(), other.read("new").as_deref()), (Some("first"), Some("new")));
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_in_use_that_is_rearranged_is_not_saved_without_what_is_on_its_way() {
    let (_mirror, one, other) = loop {
        let (mirror, one, other) = nodes();
        one.write("data/weights", "first");
        // A directory that is kept has the time of its newest file, which is to be no change.
        for path in ["data/weights", "data"] {
            fs::File::open(one.tree().join(path)).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        one.write("other", "first");
        one.save().await;
        let begin = Instant::now();
        one.write("new", "first");
        // A walk that comes by now may find it at neither place; this one finds it at one where it may still be written.
        fs::rename(one.tree().join("data"), one.tree().join("renamed")).unwrap();
        fs::remove_dir_all(one.tree().join("renamed")).unwrap();
        let saved = one.save_in_use().await.expect("nobody else saves");
        // What is away for longer is gone, and a busy machine may take that long.
        if begin.elapsed() < SEAL_QUIET_PERIOD {
            assert!(saved.published.is_none(), "{saved:?}");
            break (mirror, one, other);
        }
    };
    other.pull().await;
    assert_eq!(other.read("data/weights").as_deref(), Some("first"));
    // When nobody uses it, what is not there is gone.
    one.save().await.published.expect("published");
    other.pull().await;
    assert_eq!((other.read("data/weights"), other.read("new").as_deref()), (None, Some("first")));
}
