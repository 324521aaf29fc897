//! A home that can't be saved while it is used is tried again at the interval of the configuration.

use std::path::Path;
use std::time::SystemTime;

use bdnfs::source::{Access, Secret};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::home_saving::LONGEST_RETRY_INTERVAL;
use super::*;
use crate::volumes::VolumeConfig;
use crate::volumes::cache_home::CacheScope;
use crate::volumes::cache_sync::SyncState;
use crate::volumes::tests::node_cache;

/// The interval at which homes are saved in these tests.
const SAVE_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The user of one home, which is due whenever its mirror was asked for.
#[derive(Clone)]
struct HomeOwner {
    volumes: Arc<Volumes>,
    home: CacheHome,
    mirror: Option<MirrorRequest>,
    /// Whether it is not to be saved; else it lacks the secret of a mirror that it doesn't know here.
    is_unsaved: bool,
    opened: Arc<Mutex<u32>>,
    notes: Arc<Mutex<Vec<String>>>,
}

impl HomeOwner {
    fn new(directory: &Path, has_mirror: bool) -> Self {
        let config = VolumeConfig {
            dir: directory.join("volumes"),
            save_interval: SAVE_INTERVAL,
            ..VolumeConfig::default()
        };
        let volumes = Volumes::new(config, &node_cache(&directory.join("cache"))).unwrap();
        let home = volumes.cache_home("t", CacheScope::Project, "p");
        let url = Secret::new(format!("file://{}", directory.join("mirror").display()));
        let mirror = MirrorRequest { url, tenant: "t".into(), access: Access::default() };
        let (volumes, mirror) = (Arc::new(volumes), has_mirror.then_some(mirror));
        let owner =
            Self { volumes, home, mirror, is_unsaved: false, opened: Arc::default(), notes: Arc::default() };
        owner.home.try_sync_lock().unwrap().unwrap();
        owner.make_due();
        owner
    }

    fn make_due(&self) {
        let lock = File::open(self.home.path().join("sync.lock")).unwrap();
        lock.set_modified(SystemTime::now() - SAVE_INTERVAL * 2).unwrap();
    }

    /// Lets its home be saved for two and a half intervals of a clock that waits for nobody.
    async fn use_for_three_intervals(&self) {
        let homes = [self.home.clone()];
        let _ = timeout(SAVE_INTERVAL * 5 / 2, save_regularly(self, &homes)).await;
    }
}

impl HomeUser for HomeOwner {
    fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    fn is_first(&self) -> bool {
        true
    }

    fn mirror(&self) -> Result<Option<MirrorRequest>> {
        *self.opened.lock() += 1;
        self.make_due();
        if self.is_unsaved {
            return Ok(None);
        }
        let missing = || Error::new(Kind::Refused, "no secret");
        self.mirror.clone().map(Some).ok_or_else(missing)
    }

    fn note(&self, text: String) {
        self.notes.lock().push(text);
    }
}

#[tokio::test(start_paused = true)]
async fn torn_home_is_not_saved_and_its_mirror_not_asked() {
    let directory = tempfile::tempdir().unwrap();
    let owner = HomeOwner::new(directory.path(), true);
    let _used = owner.home.create().unwrap();
    assert!(owner.home.begin_use(Some("another boot".into())).unwrap());
    owner.use_for_three_intervals().await;
    assert_eq!(*owner.opened.lock(), 0);
    assert!(!directory.path().join("mirror/format.json").exists(), "nothing is saved or reported");
}

#[tokio::test(start_paused = true)]
async fn home_that_cannot_be_saved_is_tried_again_after_the_save_interval() {
    let directory = tempfile::tempdir().unwrap();
    let owner = HomeOwner::new(directory.path(), false);
    let _used = owner.home.create().unwrap();
    owner.use_for_three_intervals().await;
    assert_eq!((*owner.opened.lock(), owner.notes.lock().len()), (3, 3));
    assert!(owner.notes.lock()[0].contains("tries again after save_interval: no secret"));
    // Nor can the lock be taken.
    std::fs::remove_file(owner.home.path().join("sync.lock")).unwrap();
    std::fs::create_dir(owner.home.path().join("sync.lock")).unwrap();
    owner.make_due();
    owner.use_for_three_intervals().await;
    assert_eq!(owner.notes.lock().len(), 6, "{:?}", owner.notes.lock());
}

#[tokio::test(start_paused = true)]
async fn home_last_saved_in_the_future_of_a_clock_that_was_set_back_is_due() {
    let directory = tempfile::tempdir().unwrap();
    let owner = HomeOwner::new(directory.path(), false);
    let _used = owner.home.create().unwrap();
    let lock = File::open(owner.home.path().join("sync.lock")).unwrap();
    lock.set_modified(SystemTime::now() + SAVE_INTERVAL * 24).unwrap();
    owner.use_for_three_intervals().await;
    assert_eq!(*owner.opened.lock(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn home_that_a_killed_job_leaves_is_not_in_use_and_not_torn_by_the_next_boot() {
    let directory = tempfile::tempdir().unwrap();
    let owner = HomeOwner::new(directory.path(), true);
    let used = owner.home.create().unwrap();
    assert!(owner.home.begin_use(Some(boot::id_line().unwrap())).unwrap());
    leave_unsaved(&owner, &owner.home).await;
    assert!(owner.home.sync_state().unwrap().boot.is_some(), "another job uses it");
    drop(used);
    leave_unsaved(&owner, &owner.home).await;
    let state = owner.home.sync_state().unwrap();
    assert!(state.boot.is_none() && state.unsaved_since.is_some(), "{state:?}");
    let report = owner.home.report(false).unwrap();
    let mirror = mirror::open(&owner.mirror.clone().unwrap(), directory.path().to_owned()).unwrap();
    let reported = mirror.home_reports(&owner.home.key()).await.unwrap();
    assert_eq!(
        (reported.len(), reported[0].in_use, reported[0].unsaved_since),
        (1, false, report.unsaved_since)
    );
}

#[tokio::test(start_paused = true)]
async fn home_that_could_not_be_saved_at_the_end_of_its_use_is_saved_when_the_mirror_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let owner = HomeOwner::new(directory.path(), true);
    let used = owner.home.create().unwrap();
    assert!(owner.home.begin_use(Some(boot::id_line().unwrap())).unwrap());
    std::fs::write(owner.home.tree().join("file"), "content").unwrap();
    drop(used);
    // In its place lies something else.
    std::fs::write(directory.path().join("mirror"), "").unwrap();
    for _ in 0..2 {
        save(&owner, &owner.home).await;
    }
    let is_warned = |note: &String| note.contains("which stays on this node");
    assert_eq!(owner.notes.lock().iter().filter(|note| is_warned(note)).count(), 2);
    sleep(Duration::from_secs(60)).await;
    assert!(!owner.home.sync_state().unwrap().is_saved());
    std::fs::remove_file(directory.path().join("mirror")).unwrap();
    let saves = || owner.notes.lock().iter().filter(|note| note.starts_with("saved the cache")).count();
    for _ in 0..1000 {
        if saves() > 0 {
            break;
        }
        // The disk has a clock of its own.
        std::thread::sleep(Duration::from_millis(5));
        sleep(Duration::from_secs(10)).await;
    }
    sleep(LONGEST_RETRY_INTERVAL * 2).await;
    assert_eq!(saves(), 1, "{:?}", owner.notes.lock());
    assert!(owner.home.sync_state().unwrap().is_saved() && !owner.home.is_save_pending());
}

#[tokio::test(flavor = "multi_thread")]
async fn home_that_is_left_to_a_user_without_a_mirror_is_saved_where_the_first_one_saves() {
    let directory = tempfile::tempdir().unwrap();
    for is_mirror_known in [true, false] {
        let first = HomeOwner::new(directory.path(), true);
        let last = HomeOwner { is_unsaved: true, ..first.clone() };
        let home = first.home.clone();
        let used = [begin(&first, &home, false).await.unwrap(), begin(&last, &home, false).await.unwrap()];
        std::fs::write(home.tree().join(is_mirror_known.to_string()), "content").unwrap();
        let [used, last_used] = used;
        drop(used);
        save(&first, &home).await;
        assert!(home.is_save_pending() && !home.sync_state().unwrap().is_saved(), "{:?}", first.notes.lock());
        drop(last_used);
        if is_mirror_known {
            save(&last, &home).await;
            assert!(home.sync_state().unwrap().is_saved(), "{:?}", first.notes.lock());
            continue;
        }
        drop((first, last));
        // As the next agent does.
        let later = HomeOwner { is_unsaved: true, ..HomeOwner::new(directory.path(), false) };
        save(&later, &home).await;
        assert!(later.notes.lock()[0].ends_with("save it with `bdnfs project save`"));
        assert!(home.is_save_pending() && !home.sync_state().unwrap().is_saved());
    }
}

#[tokio::test(start_paused = true)]
async fn home_whose_pull_goes_on_when_its_job_is_stopped_is_left_alone_until_that_ends() {
    let directory = tempfile::tempdir().unwrap();
    let owner = HomeOwner::new(directory.path(), false);
    let home = &owner.home;
    drop(home.create().unwrap());
    std::fs::write(home.tree().join("pulled"), "half").unwrap();
    let begun = SyncState { begun_in: Some(boot::id_line().unwrap()), ..SyncState::default() };
    std::fs::write(home.path().join("sync.json"), serde_json::to_vec(&begun).unwrap()).unwrap();
    let pulling = home.try_sync_lock().unwrap().unwrap();
    leave_unsaved(&owner, home).await;
    abandon(&owner, home).await;
    assert_eq!(home.sync_state().unwrap(), begun);
    assert_eq!(std::fs::read(home.tree().join("pulled")).unwrap(), b"half");
    drop(pulling);
    // What was left to be done is done then.
    for _ in 0..1000 {
        if home.sync_state().unwrap() != begun {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        sleep(LOCK_POLL_INTERVAL).await;
    }
    assert_eq!(home.sync_state().unwrap(), SyncState::default());
    assert!(!home.tree().join("pulled").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn home_whose_begin_is_given_up_at_any_time_is_written_by_nobody_afterwards() {
    for millis in 0..40 {
        let directory = tempfile::tempdir().unwrap();
        let owner = HomeOwner::new(directory.path(), false);
        let begun = timeout(Duration::from_millis(millis), begin(&owner, &owner.home, false)).await;
        drop(begun);
        leave_unsaved(&owner, &owner.home).await;
        let left = owner.home.sync_state().unwrap();
        assert!(left.boot.is_none(), "{left:?} after {millis} ms");
        sleep(Duration::from_millis(20)).await;
        assert_eq!(owner.home.sync_state().unwrap(), left, "after {millis} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn home_that_is_noted_as_begun_after_its_job_was_stopped_is_saved() {
    let directory = tempfile::tempdir().unwrap();
    let owner = HomeOwner::new(directory.path(), true);
    drop(owner.home.create().unwrap());
    std::fs::write(owner.home.tree().join("file"), "content").unwrap();
    let beginning = owner.home.try_sync_lock().unwrap().unwrap();
    let abandoned = tokio::spawn({
        let owner = owner.clone();
        async move { abandon(&owner, &owner.home).await }
    });
    sleep(Duration::from_millis(50)).await;
    assert!(owner.home.begin_use(Some(boot::id_line().unwrap())).unwrap());
    drop(beginning);
    abandoned.await.unwrap();
    assert!(owner.home.sync_state().unwrap().is_saved(), "{:?}", owner.notes.lock());
}
