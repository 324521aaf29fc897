//! Checkpoints published, indexed, listed, verified, removed and collected.

use super::*;
use crate::checkpoint::{CheckpointId, CheckpointSelector, SavedCheckpoint};
use crate::mirror::index::{ChosenCheckpoint, checkpoint_key};

fn id(project: &str, job: &str, name: &str, rank: u32) -> CheckpointId {
    CheckpointId::new(project, job, name, rank).expect("an id")
}

/// Publishes `files` as the checkpoint `id`, and enters it into the index.
async fn save(mirror: &Mirror, id: CheckpointId, files: &FileTree) -> SavedCheckpoint {
    mirror.init().await.expect("founded");
    let source = MirrorSource::checkpoint(&id, origin(files));
    let found = mirror_source(mirror, &source, CONFIG, &MirrorProgress::default())
        .await
        .expect("published")
        .latest_ref;
    let saved = SavedCheckpoint {
        manifest: found.manifest,
        generation: 1,
        complete: true,
        files: found.files,
        bytes: found.bytes,
        written: found.listed,
        saved: found.listed,
        seconds: found.took,
        previous_complete: None,
        id,
    };
    mirror.put_checkpoint(&saved).await.expect("entered");
    saved
}

async fn listed(mirror: &Mirror, project: Option<&str>, job: Option<&str>) -> Vec<CheckpointId> {
    let found = mirror.checkpoints(project, job).await.expect("listed");
    found.into_iter().map(|(_, saved)| saved.expect("whole").id).collect()
}

async fn index_faults(mirror: &Mirror) -> Vec<String> {
    let mut faults = Vec::new();
    mirror.verify_checkpoints(|fault| faults.push(fault.to_string())).await.expect("verified");
    faults
}

#[tokio::test(flavor = "multi_thread")]
async fn index_lists_what_was_saved_by_project_and_job() {
    let directory = tempfile::tempdir().expect("directory");
    for mirror in [mirror(Arc::new(InMemory::new())), directory_mirror(directory.path())] {
        let files = FileTree::from([(b"model.safetensors".to_vec(), noise(BLOCK, 3))]);
        let hostile = id("../../x", "a1", "out/é %2F\u{202e}", 7);
        let saved = [
            id("llama", "a1", "checkpoint-5", 0),
            id("llama", "a1", "checkpoint-5", 1),
            id("llama", "b2", "out/checkpoint-5", 0),
            id("llama", "b2", ".", 0),
            id("llama-2", "a1", "checkpoint-5", 0),
        ];
        let mut all = Vec::new();
        for id in saved.iter().chain([&hostile]) {
            all.push(save(&mirror, id.clone(), &files).await);
        }
        all.sort_by(|a, b| a.id.cmp(&b.id));
        let found = mirror.checkpoints(None, None).await.expect("listed");
        assert_eq!(found.into_iter().map(|(_, saved)| saved.expect("whole")).collect::<Vec<_>>(), all);
        assert_eq!(listed(&mirror, Some("llama"), Some("a1")).await, saved[..2]);
        assert_eq!(listed(&mirror, Some("llama"), None).await.len(), 4, "llama-2 is another project");
        assert_eq!(listed(&mirror, Some("../../x"), None).await, std::slice::from_ref(&hostile));
        assert_eq!(listed(&mirror, Some(".."), None).await, []);
        assert_eq!(index_faults(&mirror).await, [""; 0]);

        // The other tenant's are its own.
        let uri = Uri::File(directory.path().to_owned());
        let other =
            Mirror::open(&uri, &Access::default(), "other", std::env::temp_dir()).expect("a directory");
        assert_eq!(listed(&other, None, None).await, []);

        assert!(mirror.remove_checkpoint(&hostile).await.expect("removed"));
        assert!(!mirror.remove_checkpoint(&hostile).await.expect("gone already"));
        assert_eq!(mirror.checkpoint(&hostile).await.expect("looked"), None);
        assert_eq!(listed(&mirror, None, None).await.len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn index_entry_of_a_removed_checkpoint_is_reported_and_collected() {
    let store = Arc::new(InMemory::new());
    let mirror = mirror(store.clone());
    let files = FileTree::from([(b"a".to_vec(), noise(9, 1))]);
    let (kept, gone) = (id("p", "j", "kept", 0), id("p", "j", "gone", 0));
    save(&mirror, kept.clone(), &files).await;
    save(&mirror, gone.clone(), &files).await;
    mirror.remove(&checkpoint_key(&gone)).await.expect("as `mirror rm` does");
    let faults = index_faults(&mirror).await;
    assert!(faults.len() == 1 && faults[0].contains("bt://p@j/gone is in the index"), "{faults:?}");
    mirror.collect(Duration::from_secs(86_400), false).await.expect("collected");
    assert_eq!(listed(&mirror, None, None).await.len(), 2, "the grace is not over");
    mirror.collect(NO_GRACE, false).await.expect("collected");
    assert_eq!(listed(&mirror, None, None).await, [kept]);
    assert_eq!(index_faults(&mirror).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn index_entry_that_is_damaged_or_of_another_checkpoint_is_refused() {
    let store = Arc::new(InMemory::new());
    let mirror = mirror(store.clone());
    let files = FileTree::from([(b"a".to_vec(), noise(9, 1))]);
    for name in ["one", "two"] {
        save(&mirror, id("p", "j", name, 0), &files).await;
    }
    let key = |name: &str| Path::from(format!("tenants/tenant/checkpoints/p/j/{name}/0"));
    let good = store.get(&key("one")).await.expect("there").bytes().await.expect("read");
    store.put(&key("two"), good.clone().into()).await.expect("exchanged");
    let mut flipped = good.to_vec();
    let at = good.windows(4).position(|word| word == b"true").expect("it is complete");
    flipped.splice(at..at + 4, *b"null");
    store.put(&key("one"), flipped.into()).await.expect("flipped");
    let faults = index_faults(&mirror).await;
    assert!(faults[0].contains("/p/j/one/0 is damaged (checksum mismatch)"), "{faults:?}");
    assert!(faults[1].contains("/p/j/two/0 is damaged (it is that of bt://p@j/one)"), "{faults:?}");
    // What can't be read can be removed.
    assert!(mirror.remove_checkpoint(&id("p", "j", "one", 0)).await.expect("removed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_saved_after_the_clock_was_set_back_replaces_the_last() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let id = id("p", "j", "last", 0);
    let files = |size| FileTree::from([(b"model".to_vec(), noise(size, 3))]);
    save(&mirror, id.clone(), &files(1)).await;
    let first = mirror.find(&checkpoint_key(&id)).await.expect("looked").expect("there");
    save(&mirror, id.clone(), &files(2)).await;
    let listed = first.listed + Duration::from_secs(86_400);
    let ahead = mirror.commit_ref(&Ref { listed, ..first }, None).await.expect("published");
    let saved = save(&mirror, id.clone(), &files(3)).await;
    let found = mirror.find(&checkpoint_key(&id)).await.expect("looked").expect("there");
    assert_ne!(saved.manifest, ahead.manifest);
    assert_eq!(found.manifest, saved.manifest);
    assert!(found.listed > ahead.listed);
}

async fn chosen(mirror: &Mirror, selector: &str) -> ChosenCheckpoint {
    let selector: CheckpointSelector = selector.parse().expect("a selector");
    mirror.choose_checkpoint(&selector).await.expect("chosen")
}

/// Lists the reasons why the snapshot `manifest` of the checkpoint `id` is not whole.
async fn snapshot_faults(mirror: &Mirror, id: &CheckpointId, manifest: Digest) -> Vec<String> {
    let mut faults = Vec::new();
    let found = mirror.find(&checkpoint_key(id)).await.expect("looked").expect("there");
    let told = |fault: Error| faults.push(fault.to_string());
    let refs = vec![Ok(Ref { manifest, ..found })];
    mirror.verify(refs, true, &VerifyProgress::default(), told).await.expect("a store in order");
    faults
}

/// The complete snapshots that no ref names.
async fn complete_elsewhere(mirror: &Mirror) -> Vec<Digest> {
    let refs = mirror.last_complete_refs().await.expect("listed");
    refs.into_iter().map(|found| found.expect("whole").manifest).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_that_is_rewritten_stays_the_latest_as_it_was_last_complete() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let id = id("p", "j", "last", 0);
    let files = |size| FileTree::from([(b"model".to_vec(), noise(size, 3))]);
    let first = save(&mirror, id.clone(), &files(1)).await;
    // As after a crash between its ref and its entry.
    let source = MirrorSource::checkpoint(&id, origin(&files(2)));
    let published = mirror_source(&mirror, &source, CONFIG, &MirrorProgress::default()).await;
    let second = published.expect("published").latest_ref.manifest;
    mirror.collect(NO_GRACE, false).await.expect("collected");
    let latest = chosen(&mirror, "bt://p").await;
    assert_eq!((latest.manifest, latest.note("mounted")), (first.manifest, None));
    assert_eq!(complete_elsewhere(&mirror).await, [first.manifest]);
    let named = chosen(&mirror, "bt://p@j/last").await;
    assert_eq!(named.manifest, second);
    assert!(named.note("mounted").is_some_and(|note| note.ends_with("it may not be complete")));

    let next = SavedCheckpoint { manifest: second, complete: false, ..first.clone() }.succeed(Some(&first));
    mirror.put_checkpoint(&next).await.expect("entered");
    assert_eq!(mirror.checkpoint(&id).await.expect("read"), Some(next.clone()));
    mirror.collect(NO_GRACE, false).await.expect("collected");
    let latest = chosen(&mirror, "bt://p@j").await;
    assert_eq!((latest.manifest, &latest.saved), (first.manifest, &first));
    assert!(latest.note("mounted").is_some_and(|note| note.contains("last complete, generation 1 of ")));
    assert_eq!(chosen(&mirror, "bt://p/last").await.manifest, second);
    for manifest in [first.manifest, second] {
        assert_eq!(snapshot_faults(&mirror, &id, manifest).await, [""; 0]);
    }
    assert_eq!(complete_elsewhere(&mirror).await, [first.manifest]);

    let complete = SavedCheckpoint { complete: true, ..next.clone() }.succeed(Some(&next));
    // Its ref was replaced longer ago than the grace.
    let grace = Duration::from_millis(500);
    tokio::time::sleep(2 * grace).await;
    mirror.put_checkpoint(&complete).await.expect("entered");
    mirror.collect(grace, false).await.expect("collected");
    assert_eq!(snapshot_faults(&mirror, &id, first.manifest).await, [""; 0], "a job may have it mounted");
    mirror.collect(NO_GRACE, false).await.expect("collected");
    let latest = chosen(&mirror, "bt://p").await;
    assert_eq!((latest.manifest, latest.saved.generation), (second, 2));
    assert_eq!(complete_elsewhere(&mirror).await, []);
    assert_eq!(snapshot_faults(&mirror, &id, first.manifest).await.len(), 1, "nobody needs it any more");
}

/// A time of writing, in seconds.
fn at(saved: SavedCheckpoint, seconds: i64) -> SavedCheckpoint {
    SavedCheckpoint { written: DateTime::from_timestamp(seconds, 0).expect("a time"), ..saved }
}

#[tokio::test(flavor = "multi_thread")]
async fn latest_of_ranks_that_all_completed_another_state_stays_that_of_one_time() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let files = |size| FileTree::from([(b"model".to_vec(), noise(size, 3))]);
    let mut first = Vec::new();
    for rank in 0..2 {
        let saved = save(&mirror, id("p", "j", "last", rank), &files(10 + u64::from(rank))).await;
        first.push(at(saved, 100 + i64::from(rank)));
        mirror.put_checkpoint(&first[rank as usize]).await.expect("entered");
    }
    let done = save(&mirror, first[0].id.clone(), &files(7)).await;
    mirror.put_checkpoint(&first[0]).await.expect("as it was");
    let done = mirror.enter_checkpoint(at(done, 300)).await.expect("entered");
    assert!(done.complete && done.previous_complete.is_some());
    mirror.collect(NO_GRACE, false).await.expect("collected");
    let latest = chosen(&mirror, "bt://p").await;
    assert_eq!(latest.group.ranks(), first);
    assert!(latest.note("mounted").is_some_and(|note| note.contains("last complete, generation 1 of ")));
    let named = chosen(&mirror, "bt://p@j/last").await;
    assert!(named.note("mounted").is_some_and(|note| note.ends_with("it may not be complete")));
    assert_eq!(complete_elsewhere(&mirror).await, [first[0].manifest]);
    assert_eq!(snapshot_faults(&mirror, &first[0].id, first[0].manifest).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_entered_by_several_savers_at_once_loses_no_generation() {
    const SAVERS: u8 = 8;
    let directory = tempfile::tempdir().expect("directory");
    for mirror in [mirror(Arc::new(InMemory::new())), directory_mirror(directory.path())] {
        let saved =
            save(&mirror, id("p", "j", "last", 0), &FileTree::from([(b"a".to_vec(), noise(9, 1))])).await;
        let enter = |number| {
            // As another process, which shares nothing but the store.
            let (mirror, manifest) = (mirror.clone(), Digest([number; 32]));
            let saved = SavedCheckpoint { manifest, complete: false, ..saved.clone() };
            tokio::spawn(async move { mirror.enter_checkpoint(saved).await.expect("entered") })
        };
        let mut entered = Vec::new();
        for task in (1..=SAVERS).map(enter).collect::<Vec<_>>() {
            entered.push(task.await.expect("no panic"));
        }
        entered.sort_by_key(|saved| saved.generation);
        let generations: Vec<_> = entered.iter().map(|saved| saved.generation).collect();
        assert_eq!(generations, (2..=u64::from(SAVERS) + 1).collect::<Vec<_>>());
        let last = mirror.checkpoint(&saved.id).await.expect("read").expect("entered");
        assert_eq!(Some(&last), entered.last());
        assert_eq!(last.previous_complete.map(|complete| complete.manifest), Some(saved.manifest));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_published_by_several_savers_at_once_is_published_by_each() {
    const SAVERS: u64 = 8;
    let directory = tempfile::tempdir().expect("directory");
    for mirror in [mirror(Arc::new(InMemory::new())), directory_mirror(directory.path())] {
        mirror.init().await.expect("founded");
        let id = id("p", "j", "last", 0);
        let publish = |number| {
            let files = FileTree::from([(b"a".to_vec(), noise(number, 1))]);
            let (mirror, source) = (&mirror, MirrorSource::checkpoint(&id, origin(&files)));
            async move {
                let published = mirror_source(mirror, &source, CONFIG, &MirrorProgress::default()).await;
                published.expect("published").latest_ref
            }
        };
        let published = futures_util::future::join_all((1..=SAVERS).map(publish)).await;
        let bytes = published.iter().map(|found| found.bytes);
        assert!(bytes.eq(1..=SAVERS), "each has its own: {published:?}");
        let latest = mirror.find(&checkpoint_key(&id)).await.expect("read").expect("there");
        assert_eq!(published.iter().max_by_key(|found| found.listed), Some(&latest));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_that_is_saved_again_is_not_removed_as_what_it_was() {
    let directory = tempfile::tempdir().expect("directory");
    for mirror in [mirror(Arc::new(InMemory::new())), directory_mirror(directory.path())] {
        let (id, files) = (id("p", "j", "last", 0), |size| FileTree::from([(b"a".to_vec(), noise(size, 3))]));
        let is_there = async || mirror.checkpoint_ref(&id).await.is_ok();
        let listed = save(&mirror, id.clone(), &files(1)).await;
        // Another saver has published it, and then entered it.
        let source = MirrorSource::checkpoint(&id, origin(&files(2)));
        let published = mirror_source(&mirror, &source, CONFIG, &MirrorProgress::default()).await;
        let manifest = published.expect("published").latest_ref.manifest;
        assert!(!mirror.remove_unchanged(&listed).await.expect("looked") && is_there().await);
        assert_eq!(mirror.checkpoint(&id).await.expect("read"), Some(listed.clone()));
        let next = SavedCheckpoint { manifest, ..listed.clone() };
        let entered = mirror.enter_checkpoint(next).await.expect("entered");
        assert!(!mirror.remove_unchanged(&listed).await.expect("looked") && is_there().await);
        assert_eq!(mirror.checkpoint(&id).await.expect("read"), Some(entered.clone()));
        assert!(mirror.remove_unchanged(&entered).await.expect("removed") && !is_there().await);
        assert!(!mirror.remove_unchanged(&entered).await.expect("it is gone"));
        assert_eq!(mirror.checkpoint(&id).await.expect("read"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn collect_of_a_mirror_whose_last_complete_generation_is_damaged_deletes_nothing() {
    let store = Arc::new(InMemory::new());
    let mirror = mirror(store.clone());
    let id = id("p", "j", "last", 0);
    let files = |size| FileTree::from([(b"model".to_vec(), noise(size, 3))]);
    let first = save(&mirror, id.clone(), &files(1)).await;
    let next = save(&mirror, id.clone(), &files(2)).await;
    mirror.put_checkpoint(&first).await.expect("as it was");
    mirror.enter_checkpoint(SavedCheckpoint { complete: false, ..next }).await.expect("entered");
    let key = Path::from(format!("tenants/tenant/manifests/{}", first.manifest));
    store.head(&key).await.expect("it is there");
    store.put(&key, b"damaged".to_vec().into()).await.expect("damaged");
    let before = objects(&*store, "blobs").await.len();
    let error = mirror.collect(NO_GRACE, false).await.expect_err("nobody knows what it reaches");
    assert_eq!((error.kind(), objects(&*store, "blobs").await.len()), (Kind::Corrupt, before), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn last_complete_generation_that_is_gone_is_neither_chosen_nor_kept() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let files = |size| FileTree::from([(b"model".to_vec(), noise(size, 3))]);
    let step = at(save(&mirror, id("p", "j", "step-1", 0), &files(1)).await, 50);
    mirror.put_checkpoint(&step).await.expect("entered");
    let id = id("p", "j", "last", 0);
    let now = at(save(&mirror, id.clone(), &files(2)).await, 300);
    // As after `checkpoint rm` that died between ref and entry, and gc.
    let gone = SavedCheckpoint { manifest: Digest([7; 32]), ..at(now.clone(), 100) };
    let incomplete = SavedCheckpoint { complete: false, ..now };
    mirror.put_checkpoint(&incomplete.clone().succeed(Some(&gone))).await.expect("entered");
    let latest = chosen(&mirror, "bt://p").await;
    assert_eq!((latest.manifest, latest.note("mounted")), (step.manifest, None));
    mirror.put_checkpoint(&gone).await.expect("entered");
    let entered = mirror.enter_checkpoint(incomplete.clone()).await.expect("entered");
    assert_eq!((entered.generation, entered.previous_complete), (2, None));
    assert_eq!(chosen(&mirror, "bt://p@j/last").await.manifest, incomplete.manifest);
}

#[tokio::test(flavor = "multi_thread")]
async fn latest_whose_complete_generation_an_earlier_version_collected_does_not_stop_the_collection() {
    let store = Arc::new(InMemory::new());
    let mirror = mirror(store.clone());
    let id = id("p", "j", "last", 0);
    let saved = save(&mirror, id.clone(), &FileTree::from([(b"a".to_vec(), noise(9, 1))])).await;
    let gone = SavedCheckpoint { manifest: Digest([7; 32]), ..saved.clone() };
    let next = SavedCheckpoint { complete: false, ..saved }.succeed(Some(&gone));
    mirror.put_checkpoint(&next).await.expect("entered");
    mirror.collect(NO_GRACE, false).await.expect("collected");
    assert_eq!(chosen(&mirror, "bt://p@j/last").await.manifest, next.manifest);
}
