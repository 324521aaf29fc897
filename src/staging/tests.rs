//! Stages of which something is damaged or removed while they are under way.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::SystemTime;

use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;
use crate::cache::Limits;
use crate::engine::{Config, Engine};
use crate::origin;
use crate::source::{Access, Patterns};

/// The hook that runs when the time is asked for.
static ON_NOW: Mutex<Option<Box<dyn FnMut() + Send>>> = Mutex::new(None);

fn now() -> SystemTime {
    // Nobody holds the lock while this thread waits for anything.
    let hook = ON_NOW.lock().take();
    if let Some(mut hook) = hook {
        hook();
    }
    SystemTime::now()
}

struct StagingFixture {
    home: TempDir,
    runtime: Runtime,
    _engine: Engine,
    snapshot: Arc<Snapshot>,
}

impl StagingFixture {
    /// A snapshot of one file, which is staged.
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let source = home.path().join("source");
        fs::create_dir(&source).expect("made");
        fs::write(source.join("file"), [7; 70_000]).expect("written");
        let runtime = Runtime::new().expect("a runtime");
        let config = Config {
            cache: home.path().join("cache"),
            tenant: "default".into(),
            limits: Limits { capacity: None, reserve: 0 },
            quotas: BTreeMap::new(),
            memory: 64 << 20,
            now,
        };
        let engine = Engine::open(&config, runtime.handle().clone()).expect("a cache");
        let uri = format!("file://{}", source.display()).parse().expect("a source");
        let snapshot = runtime.block_on(async {
            let origin = origin::open(&uri, &Access::default()).await.expect("a directory");
            let snapshot = engine.snapshot(origin, Patterns::default()).await.expect("listed");
            snapshot.stage().done().await.expect("staged");
            snapshot
        });
        Self { home, runtime, _engine: engine, snapshot }
    }

    fn blob(&self) -> PathBuf {
        let blobs = fs::read_dir(self.home.path().join("cache/tenants/default/blobs")).expect("a cache");
        let mut blobs =
            blobs.flat_map(|shard| fs::read_dir(shard.expect("a shard").path()).expect("a shard"));
        blobs.next().expect("a blob").expect("a blob").path()
    }
}

#[test]
fn stage_of_which_a_blob_is_removed_while_it_verifies_ends_when_all_is_whole() {
    let fixture = StagingFixture::new();
    let (blob, snapshot) = (fixture.blob(), fixture.snapshot.clone());
    File::open(&blob).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("set");
    let key = snapshot.manifest().key(0).expect("a blob");
    let remove: Box<dyn FnMut() + Send> = Box::new(move || {
        let cache = &snapshot.resources().cache;
        let removal = cache.mark_removal(&key);
        fs::remove_file(&blob).expect("removed");
        // The thread that has committed it may have it open still.
        cache.notify_removed(&removal, None);
        snapshot.stage_again();
    });
    // Its beginning asks for the time, and then its verification.
    *ON_NOW.lock() = Some(first_then(remove));
    fixture.runtime.block_on(fixture.snapshot.stage_verified().done()).expect("staged");
    assert!(ON_NOW.lock().is_none(), "it was removed");
    assert!(fixture.snapshot.is_whole().expect("a manifest"));
}

/// A hook that does nothing, and is followed by `next`.
fn first_then(next: Box<dyn FnMut() + Send>) -> Box<dyn FnMut() + Send> {
    let mut next = Some(next);
    Box::new(move || *ON_NOW.lock() = next.take())
}

#[test]
fn stage_verified_with_rot_verified_in_the_future_fetches_it_again() {
    let fixture = StagingFixture::new();
    let blob = File::options().read(true).write(true).open(fixture.blob()).expect("open");
    blob.write_all_at(&[8], 5).expect("written");
    verification_time::mark(&blob, SystemTime::now() + Duration::from_secs(3600));
    fixture.runtime.block_on(fixture.snapshot.stage_verified().done()).expect("staged");
    assert_eq!(fs::read(fixture.blob()).expect("whole"), [7; 70_000]);
}

#[test]
fn stage_of_which_something_was_removed_does_not_finish() {
    let fixture = StagingFixture::new();
    let stage = Stage::start(&fixture.snapshot, false, None);
    fixture.runtime.block_on(stage.done()).expect("staged");
    assert!(stage.finish() && !stage.plan_again());
    assert!(!stage.finish());
}
