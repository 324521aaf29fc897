//! Homes that began with what is saved without waiting for the disk.

use super::*;

/// Two nodes, of which the first has saved files, and the second has begun with them without waiting for the disk.
async fn begun_nodes() -> (TempDir, HomeNode, HomeNode) {
    let (mirror, one, other) = nodes();
    for number in 0..50 {
        one.write(&format!("d{}/{number}", number % 5), &number.to_string().repeat(900));
    }
    symlink("d0/0", one.tree().join("link")).unwrap();
    one.save().await;
    other.sync().await.pull_for_use(&DownloadProgress::default()).await.unwrap();
    assert_eq!(other.found(), one.found());
    assert!(other.home.sync_state().unwrap().begun_in.is_some());
    (mirror, one, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn home_whose_directory_is_lost_begins_with_what_is_saved_and_removes_nothing() {
    let (_mirror, one, other) = nodes();
    one.write("kept", "kept");
    one.save().await;
    fs::remove_dir_all(one.tree()).unwrap();
    assert_eq!(one.pull().await.taken, 1);
    one.write("new", "new");
    one.save().await;
    other.pull().await;
    assert_eq!(["kept", "new"].map(|name| other.read(name).unwrap()), ["kept", "new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_that_began_before_a_power_cut_is_as_saved_but_for_what_a_job_wrote() {
    let (_mirror, one, other) = begun_nodes().await;
    // What a disk makes of files that it did not get: empty ones, zeros, and none.
    let time = fs::metadata(one.tree().join("d1/1")).unwrap().modified().unwrap();
    for (path, content) in [("d0/0", ""), ("d1/1", &"\0".repeat(900)), ("d3/3", "")] {
        other.write(path, content);
        fs::File::options().write(true).open(other.tree().join(path)).unwrap().set_modified(time).unwrap();
    }
    fs::remove_file(other.tree().join("d2/2")).unwrap();
    fs::remove_file(other.tree().join("link")).unwrap();
    symlink("d0", other.tree().join("link")).unwrap();
    let (since, before) = (other.home.time().unwrap(), Some("another".to_owned()));
    let state = other.home.sync_state().unwrap();
    let state = SyncState { since, boot: before.clone(), begun_in: before, ..state };
    other.home.write_sync_state(&state).unwrap();
    other.write("d0/new", "job");
    other.write("d1/6", "job");
    fs::remove_file(one.tree().join("d3/3")).unwrap();
    one.save().await;

    assert_eq!(other.pull().await.conflicts, [b"d1/6"]);
    let mut expected = one.found();
    let own = ["d0/new", "d1/6"].map(PathBuf::from);
    let found = other.found();
    expected.extend(own.into_iter().map(|path| (path.clone(), found[&path].clone())));
    assert_eq!(found, expected);
    assert_eq!((other.read("d0/new").as_deref(), other.read("d1/6").as_deref()), (Some("job"), Some("job")));
    let state = other.home.sync_state().unwrap();
    assert!(state.begun_in.is_none() && state.boot.is_some(), "it is torn as before: {state:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_that_did_not_begin_to_the_end_keeps_nothing_but_what_comes_later() {
    let (_mirror, one, other) = begun_nodes().await;
    let state = SyncState { manifest: None, since: 0, ..other.home.sync_state().unwrap() };
    for is_pulled in [false, true] {
        // As an agent that is killed leaves it.
        other.home.write_sync_state(&state).unwrap();
        other.write("d0/0", "half");
        fs::remove_dir_all(other.tree().join("d1")).unwrap();
        if is_pulled {
            other.sync().await.pull_for_use(&DownloadProgress::default()).await.unwrap();
            assert_eq!(other.found(), one.found());
            continue;
        }
        // Without the mirror.
        assert!(other.home.begin_use(None).unwrap());
        assert_eq!(other.found(), HomeContent::new());
        other.write("mine", "job");
        other.pull().await;
        assert_eq!(other.read("mine").as_deref(), Some("job"));
        assert_eq!(other.found().len(), one.found().len() + 1);
        fs::remove_file(other.tree().join("mine")).unwrap();
    }
    // What a save or the end of its use has made durable stays, whatever the boot.
    other.home.end_use().unwrap();
    assert!(other.home.sync_state().unwrap().begun_in.is_none());
    assert!(other.save().await.published.is_none(), "nothing was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_that_began_before_a_power_cut_is_recovered_also_where_its_use_only_ends() {
    let (_mirror, one, other) = begun_nodes().await;
    let time = fs::metadata(other.tree().join("d0/0")).and_then(|found| found.modified()).unwrap();
    other.write("d0/0", "");
    fs::File::open(other.tree().join("d0/0")).and_then(|file| file.set_modified(time)).unwrap();
    let (since, begun_in) = (other.home.time().unwrap(), Some("another".to_owned()));
    let state = SyncState { since, begun_in, ..other.home.sync_state().unwrap() };
    other.home.write_sync_state(&state).unwrap();
    other.home.end_use().unwrap();
    other.pull().await;
    assert_eq!(other.found(), one.found());
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_update_takes_nothing_that_one_of_other_files_has_left() {
    let (_mirror, one, other) = nodes();
    one.write("d/file", "1");
    let saved = one.save().await.published.expect("published").latest_ref.manifest.to_string();
    // As a run leaves it that took all of the snapshot, of which a job has removed some since.
    let left = other.home.path().join(format!("incoming.{}.partial", &saved[..16]));
    fs::create_dir_all(left.join("d")).unwrap();
    fs::set_permissions(&left, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(left.join("d/left"), "2").unwrap();
    other.pull().await;
    assert_eq!(other.found(), one.found());
    assert!(!left.exists());
}
