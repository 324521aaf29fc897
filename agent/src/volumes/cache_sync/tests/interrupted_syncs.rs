//! Pulls and saves that did not get to their end, and what others did before the next.

use std::time::UNIX_EPOCH;

use super::*;

impl HomeNode {
    fn state(&self) -> SyncState {
        self.home.sync_state().unwrap()
    }

    /// The snapshot that it was last equal to.
    fn snapshot(&self) -> SavedSnapshot {
        let SyncState { manifest, mirror, generation, .. } = self.state();
        SavedSnapshot { manifest: manifest.unwrap().parse().unwrap(), mirror: mirror.unwrap(), generation }
    }

    /// Has the last save be interrupted when its snapshot was published: `before` was the state.
    fn interrupt_save(&self, before: SyncState) {
        let next = PublishingSnapshot { snapshot: self.snapshot(), since: self.state().since };
        self.home.write_sync_state(&before).unwrap();
        self.home.begin_publishing(next).unwrap();
    }

    /// Has a pull of `snapshot` be interrupted, of which what lies there has come.
    fn interrupt_pull(&self, snapshot: SavedSnapshot) {
        let pulling = Some(snapshot);
        self.home.write_sync_state(&SyncState { pulling, ..self.state() }).unwrap();
    }

    /// Puts a file in the place of another one; what is in it was written long ago.
    fn replace_by_old(&self, path: &str, content: &str) {
        let draft = self.tree().join("draft");
        fs::write(&draft, content).unwrap();
        fs::File::options().append(true).open(&draft).unwrap().set_modified(UNIX_EPOCH).unwrap();
        fs::rename(draft, self.tree().join(path)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn save_that_was_published_and_not_noted_is_known_to_the_next() {
    let (_mirror, one, other) = nodes();
    one.write("weights", "first");
    one.save().await;
    one.write("weights", "second");
    one.write("new", "second");
    let before = one.state();
    one.save().await;
    one.interrupt_save(before);
    one.replace_by_old("weights", "third");
    fs::remove_file(one.tree().join("new")).unwrap();
    let pulled = one.pull().await;
    assert_eq!((pulled.taken, one.read("weights").as_deref(), one.read("new")), (0, Some("third"), None));
    let state = one.state();
    assert!(state.publishing.is_none() && !state.is_saved(), "{state:?}");
    one.save().await.published.expect("published");
    other.pull().await;
    assert_eq!(other.found(), one.found());
}

#[tokio::test(flavor = "multi_thread")]
async fn save_that_was_published_and_not_noted_is_known_after_another_node_saved() {
    let (_mirror, one, other) = nodes();
    one.write("weights", "first");
    one.save().await;
    one.write("weights", "second");
    let before = one.state();
    one.save().await;
    one.interrupt_save(before);
    one.replace_by_old("weights", "third");
    other.pull().await;
    other.write("other", "second");
    other.save().await;
    assert_eq!(one.pull().await.taken, 1);
    assert_eq!(
        (one.read("weights").as_deref(), one.read("other").as_deref()),
        (Some("third"), Some("second"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn save_that_another_node_was_faster_than_is_not_taken_for_published() {
    let (_mirror, one, other) = nodes();
    one.write("weights", "first");
    one.save().await;
    other.pull().await;
    let before = one.snapshot();
    one.write("weights", "second");
    let snapshot = SavedSnapshot { manifest: Digest([7; 32]), generation: before.generation + 1, ..before };
    one.home.begin_publishing(PublishingSnapshot { snapshot, since: i64::MAX }).unwrap();
    other.write("other", "second");
    other.save().await;
    one.save().await.published.expect("published");
    other.pull().await;
    assert_eq!(other.read("weights").as_deref(), Some("second"));
    assert_eq!(other.found(), one.found());
}

#[tokio::test(flavor = "multi_thread")]
async fn pull_that_was_interrupted_counts_nothing_of_it_as_changed_here() {
    let (_mirror, one, other) = nodes();
    one.write("weights", "first");
    one.save().await;
    other.pull().await;
    for path in ["weights", "new"] {
        one.write(path, "second");
    }
    one.save().await;
    // The other has both files by now, and nothing noted.
    let next = one.snapshot();
    for path in ["weights", "new"] {
        let (from, to) = (one.tree().join(path), other.tree().join(path));
        fs::copy(&from, &to).unwrap();
        let modified = fs::metadata(from).unwrap().modified().unwrap();
        fs::File::options().append(true).open(to).unwrap().set_modified(modified).unwrap();
    }
    other.interrupt_pull(next);
    fs::remove_file(one.tree().join("new")).unwrap();
    one.replace_by_old("weights", "third");
    one.save().await;
    other.pull().await;
    assert_eq!((other.read("weights").as_deref(), other.read("new")), (Some("third"), None));
    assert!(other.state().pulling.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn save_to_a_mirror_whose_disk_has_gone_is_not_taken_for_saved() {
    let (mirror, one, other) = nodes();
    one.write("weights", "first");
    one.save().await;
    one.write("weights", "second");
    let format = mirror.path().join("format.json");
    let content = fs::read(&format).unwrap();
    fs::remove_file(&format).unwrap();
    let before = one.state();
    let saved = one.sync().await.save(CONFIG, &MirrorProgress::default()).await;
    assert!(saved.unwrap_err().to_string().contains("is gone, which was there before"));
    assert_eq!(SyncState { publishing: None, ..one.state() }, before);
    // It is tried again, and there is nothing new.
    assert!(one.sync().await.save(CONFIG, &MirrorProgress::default()).await.is_err());
    assert_eq!(SyncState { publishing: None, ..one.state() }, before);
    fs::write(format, content).unwrap();
    one.save().await;
    other.pull().await;
    assert_eq!(other.read("weights").as_deref(), Some("second"));
}

#[tokio::test(flavor = "multi_thread")]
async fn save_that_was_published_before_the_node_was_cut_off_is_known_in_its_next_boot() {
    let (_mirror, one, other) = nodes();
    other.write("weights", "first");
    other.save().await;
    one.sync().await.pull_for_use(&DownloadProgress::default()).await.unwrap();
    one.write("new", "second");
    let before = one.state();
    assert!(before.begun_in.is_some(), "it has not waited for the disk");
    one.save().await;
    one.interrupt_save(SyncState { begun_in: Some("another boot".into()), ..before });
    fs::remove_file(one.tree().join("weights")).unwrap();
    assert_eq!(one.pull().await.taken, 0);
    assert_eq!((one.read("weights"), one.read("new").as_deref()), (None, Some("second")));
}

#[tokio::test(flavor = "multi_thread")]
async fn pull_goes_on_where_what_an_interrupted_one_began_cannot_be_had() {
    let (mirror, one, other) = nodes();
    one.write("weights", "first");
    one.save().await;
    other.pull().await;
    // Of numbers that take as much room where it is compressed.
    let second: String = (0..1u32 << 18).map(|n| n.wrapping_mul(2_654_435_761).to_string()).collect();
    one.write("weights", &second);
    one.save().await;
    let next = one.snapshot();
    one.write("weights", "third");
    one.save().await;
    other.interrupt_pull(next);
    let mut large: Vec<_> = walk(mirror.path());
    large.retain(|path| fs::metadata(path).unwrap().len() > 10_000);
    assert!(!large.is_empty());
    large.iter().for_each(|path| fs::remove_file(path).unwrap());
    other.pull().await;
    assert_eq!(other.read("weights").as_deref(), Some("third"));
}

/// All files below a directory.
fn walk(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
