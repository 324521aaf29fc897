//! Sources published, read back, damaged, repaired and collected.

mod crash;
mod golden;
mod resume;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::*;
use crate::blob::{Blob, Key};
use crate::block::BLOCK;
use crate::cache::Limits;
use crate::engine::{self, Engine};
use crate::manifest::{Listing, Node};
use crate::mirror::multipart::MirrorStore;
use crate::snapshot::Snapshot;
use crate::source::{Access, Uri};
use crate::tier::lazy_origin::OriginOpener;
use crate::tier::memory::Memory;
use crate::tier::{Body, Tier, TierKind, Urgency};

const NO_GRACE: Duration = Duration::ZERO;
/// So little memory that a file of 2 MiB and more is streamed.
const CONFIG: PublishConfig = PublishConfig { memory: 8 << 20 };

type Files = BTreeMap<Vec<u8>, Bytes>;

/// Bytes that nothing can be saved on, the same for the same seed.
fn noise(len: u64, seed: u64) -> Bytes {
    let mut bytes = vec![0; len as usize];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes.into()
}

fn text(len: u64, seed: u64) -> Bytes {
    let mut text = String::new();
    let mut lines = 0..;
    while text.len() < len as usize
        && let Some(i) = lines.next()
    {
        text += &format!("{seed} and line {i} of a text that is easily made smaller\n");
    }
    Bytes::from(text).slice(..len as usize)
}

/// A source with every kind of file. Making it takes long enough to be done once.
fn files() -> Files {
    static FILES_IN_FLIGHT: LazyLock<Files> = LazyLock::new(make_files);
    FILES_IN_FLIGHT.clone()
}

fn make_files() -> Files {
    let mut files = Files::from([
        (b"large.bin".to_vec(), noise(3 * BLOCK + 77, 1)),
        (b"large.txt".to_vec(), text(3 * BLOCK + 77, 2)),
        (b"middle.txt".to_vec(), text(BLOCK + 5, 3)),
        (b"middle.bin".to_vec(), noise(BLOCK, 4)),
        (b"copy/middle.bin".to_vec(), noise(BLOCK, 4)),
        (b"empty".to_vec(), Bytes::new()),
        (b"\xff odd".to_vec(), noise(9, 5)),
    ]);
    files.extend((0..40).map(|i| (format!("dir/{i:02}").into_bytes(), noise(40_000 + i, i))));
    files
}

fn origin(files: &Files) -> Arc<Memory> {
    let origin = Arc::new(Memory::new("memory://origin"));
    files.iter().for_each(|(path, content)| origin.put(path, content.clone()));
    origin
}

fn mirror<S: ObjectStore + MultipartStore>(store: Arc<S>) -> Mirror {
    Mirror::new(MirrorStore::service(store, ""), "memory://mirror", "tenant", std::env::temp_dir())
        .expect("a name")
}

/// A mirror in a local directory.
fn directory_mirror(directory: &std::path::Path) -> Mirror {
    let uri = Uri::File(directory.to_owned());
    Mirror::open(&uri, &Access::default(), "tenant", std::env::temp_dir()).expect("a directory")
}

async fn add(mirror: &Mirror, origin: Arc<dyn Origin>) -> Result<Published> {
    add_as("memory://origin", mirror, origin, &PublishProgress::default()).await
}

/// Adds it as the source that is called `name`.
async fn add_as(
    name: &str,
    mirror: &Mirror,
    origin: Arc<dyn Origin>,
    progress: &PublishProgress,
) -> Result<Published> {
    let source =
        PublishSource { name: name.into(), identity: name.into(), patterns: Patterns::default(), origin };
    publish(mirror, &source, CONFIG, progress).await
}

async fn faults(mirror: &Mirror, deep: bool) -> Vec<String> {
    let mut faults = Vec::new();
    let refs = mirror.refs().await.expect("listed");
    let told = |fault: Error| faults.push(fault.to_string());
    mirror.verify(refs, deep, &VerifyProgress::default(), told).await.expect("a store in order");
    faults
}

/// A node with an empty cache.
struct TestNode {
    engine: Engine,
    _directory: tempfile::TempDir,
}

fn node() -> TestNode {
    let directory = tempfile::tempdir().expect("directory");
    let config = engine::Config {
        cache: directory.path().to_owned(),
        tenant: "tenant".into(),
        limits: Limits { capacity: None, reserve: 0 },
        quotas: Default::default(),
        memory: 64 << 20,
        now: std::time::SystemTime::now,
    };
    TestNode { engine: Engine::open(&config, Handle::current()).expect("cache"), _directory: directory }
}

async fn mount(node: &TestNode, mirror: &Mirror, origin: Option<Arc<dyn Origin>>) -> Result<Arc<Snapshot>> {
    let key = source_key("memory://origin", &Patterns::default());
    let open: OriginOpener = Box::new(move || {
        let gone = || Error::new(Kind::Refused, "the origin is gone");
        std::future::ready(origin.clone().ok_or_else(gone)).boxed()
    });
    let found = mirror.find(&key).await?.expect("mirrored");
    node.engine.mirrored(mirror, &found, open).await
}

async fn read(snapshot: &Snapshot) -> Result<Files> {
    let mut files = Files::new();
    for index in 0..snapshot.manifest().entries() {
        if let Node::File(slice) = snapshot.manifest().entry(index)?.node {
            let pieces = snapshot.open(slice)?.read_at(0, slice.len as usize).await?;
            files.insert(snapshot.manifest().path(index)?, pieces.concat().into());
        }
    }
    Ok(files)
}

async fn objects(store: &dyn ObjectStore, below: &str) -> Vec<(Path, Bytes)> {
    let prefix = Path::from(format!("tenants/tenant/{below}"));
    let mut objects = Vec::new();
    for meta in store.list(Some(&prefix)).try_collect::<Vec<_>>().await.expect("listed") {
        match store.get(&meta.location).await {
            Ok(found) => objects.push((meta.location, found.bytes().await.expect("read"))),
            // A lease that is given back goes at any moment.
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => panic!("{}: {error}", meta.location),
        }
    }
    objects
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_added_is_read_back_from_the_mirror_alone() {
    for local in [false, true] {
        let directory = tempfile::tempdir().expect("directory");
        let (store, mirror): (Arc<dyn ObjectStore>, _) = match local {
            false => {
                let store = Arc::new(InMemory::new());
                (store.clone(), mirror(store))
            }
            true => {
                let store = LocalFileSystem::new_with_prefix(directory.path()).expect("a directory");
                (Arc::new(store), directory_mirror(directory.path()))
            }
        };
        let published = add(&mirror, origin(&files())).await.expect("added");
        assert!(published.new && faults(&mirror, true).await.is_empty());
        // Two of the files are the same, and the small ones share a pack.
        assert_eq!(objects(&*store, "blobs").await.len(), 5);
        let node = node();
        let snapshot = mount(&node, &mirror, None).await.expect("mounted");
        assert!(read(&snapshot).await.expect("read") == files());
        snapshot.stage().done().await.expect("staged");
        let stored: usize = objects(&*store, "blobs").await.iter().map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(stored as u64, published.found.stored);
        assert!(!add(&mirror, origin(&files())).await.expect("added again").new);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn anybody_can_check_and_restore_what_is_stored() {
    let store = Arc::new(InMemory::new());
    add(&mirror(store.clone()), origin(&files())).await.expect("added");
    let blobs: BTreeMap<_, _> = objects(&*store, "blobs").await.into_iter().collect();
    for (path, compressed) in
        [("large.bin", false), ("large.txt", true), ("middle.txt", true), ("middle.bin", false)]
    {
        let content = &files()[path.as_bytes()];
        let digest = Digest::of(content).to_string();
        let stored = &blobs[&Path::from(format!("tenants/tenant/blobs/{}/{digest}", &digest[..2]))];
        let restored = match compressed {
            true => zstd::stream::decode_all(&stored[..]).expect("zstd").into(),
            false => stored.clone(),
        };
        assert!(restored == *content && (stored.len() * 2 < content.len()) == compressed, "{path}");
    }
}

/// Counts what is sent of each path.
#[derive(Debug)]
struct CountingOrigin(Arc<Memory>, Mutex<BTreeMap<Vec<u8>, u64>>);

impl Tier for CountingOrigin {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }
    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: std::ops::Range<u64>,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        *self.1.lock().entry(blob.path.to_vec()).or_default() += range.end - range.start;
        self.0.fetch(blob, range, urgency)
    }
}

impl Origin for CountingOrigin {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        self.0.list(listing)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn adding_again_reads_what_changed() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let held = origin(&files());
    let sent = async || {
        let counted = Arc::new(CountingOrigin(held.clone(), Mutex::default()));
        let published = add(&mirror, counted.clone()).await.expect("added");
        (std::mem::take(&mut *counted.1.lock()), published.new)
    };
    let (first, _) = sent().await;
    assert!(first.values().sum::<u64>() == files().values().map(|f| f.len() as u64).sum::<u64>());
    assert_eq!(sent().await, (BTreeMap::new(), false));
    held.put(b"large.bin", noise(3 * BLOCK, 99));
    held.put(b"dir/07", noise(777, 98));
    held.remove(b"middle.txt");
    let (again, new) = sent().await;
    let paths: Vec<_> = again.keys().map(|p| String::from_utf8_lossy(p).into_owned()).collect();
    assert!(new && again[&b"large.bin"[..]] == 3 * BLOCK, "{paths:?}");
    assert_eq!(paths, ["dir/07", "large.bin"]);
    assert!(faults(&mirror, true).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_source_has_too_is_stored_once_and_once_more_for_another_tenant() {
    let store = Arc::new(InMemory::new());
    let written = async |tenant: &str, name: &str, files: &Files| {
        let mirror =
            Mirror::new(MirrorStore::service(store.clone(), ""), "memory://m", tenant, std::env::temp_dir());
        let progress = PublishProgress::default();
        add_as(name, &mirror.expect("a tenant"), origin(files), &progress).await.expect("added");
        progress.written.load(Relaxed)
    };
    let many: Files = (0..600).map(|i| (format!("d/{i:03}").into_bytes(), noise(90_000, i))).collect();
    let all = written("tenant", "memory://one", &many).await;
    assert_eq!(all, 54_000_000);
    assert_eq!(written("tenant", "memory://other", &many).await, 0);
    assert_eq!(written("another", "memory://one", &many).await, all);
    // A file more is a pack more.
    let more = many.into_iter().chain([(b"d/500x".to_vec(), noise(90_000, 1000))]).collect();
    let again = written("tenant", "memory://one", &more).await;
    assert!(again > 90_000 && again < all / 4, "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_named_never_read_and_repaired() {
    let clean = InMemory::new();
    let clean = {
        let store = Arc::new(clean);
        add(&mirror(store.clone()), origin(&files())).await.expect("added");
        store
    };
    let blobs = objects(&*clean, "blobs").await;
    let manifest = objects(&*clean, "manifests").await;
    let other = |at: usize| blobs[(at + 1) % blobs.len()].1.clone();
    for (at, (path, bytes)) in blobs.iter().chain(&manifest).enumerate() {
        let mut flipped = bytes.to_vec();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        for (how, damage) in [
            ("flipped", Some(Bytes::from(flipped))),
            ("cut", Some(bytes.slice(..bytes.len() - 1))),
            ("swapped", Some(other(at))),
            ("gone", None),
        ] {
            let what = format!("{path} {how}");
            let store = Arc::new(clean.fork());
            match damage {
                Some(bytes) => drop(store.put(path, bytes.into()).await.expect("put")),
                None => store.delete(path).await.expect("deleted"),
            }
            let mirror = mirror(store);
            let name = path.filename().expect("a name");
            let error = match mount(&node(), &mirror, None).await {
                Ok(snapshot) => read(&snapshot).await.expect_err(&what),
                Err(error) => error,
            };
            assert!(error.kind() == Kind::Corrupt && error.to_string().contains(name), "{what}: {error}");
            if path.as_ref().contains("blobs") {
                let snapshot = mount(&node(), &mirror, Some(origin(&files()))).await.expect("mounted");
                assert!(read(&snapshot).await.expect(&what) == files(), "{what}");
            }
            let told = faults(&mirror, true).await;
            assert!(told.len() == 1 && told[0].contains(name), "{what}: {told:?}");
            add(&mirror, origin(&files())).await.expect(&what);
            assert_eq!(faults(&mirror, true).await, [""; 0], "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_at_once_and_a_collector_beside_them() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let collecting = AtomicU64::new(1);
    let collector = async {
        while collecting.load(Relaxed) == 1 {
            mirror.collect(NO_GRACE, false).await.expect("collected");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let adders = async {
        let other: Files = files().into_iter().filter(|(path, _)| path.starts_with(b"dir")).collect();
        for _ in 0..2 {
            let (one, two) = tokio::join!(add(&mirror, origin(&files())), add(&mirror, origin(&files())));
            assert_eq!(one.expect("one").found.manifest, two.expect("two").found.manifest);
            add(&mirror, origin(&other)).await.expect("fewer");
        }
        collecting.store(0, Relaxed);
    };
    tokio::join!(collector, adders);
    assert_eq!(faults(&mirror, true).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_nothing_reaches_is_collected() {
    let store = Arc::new(InMemory::new());
    let mirror = mirror(store.clone());
    let held = origin(&files());
    let first = add(&mirror, held.clone()).await.expect("added").found;
    let node = node();
    let serving = mount(&node, &mirror, None).await.expect("mounted");
    held.put(b"large.bin", noise(BLOCK * 2, 70));
    add(&mirror, held.clone()).await.expect("added");
    let count = async || objects(&*store, "blobs").await.len();
    let day = Duration::from_secs(86_400);
    let spared = mirror.collect(day, false).await.expect("collected");
    assert_eq!((spared.objects, count().await), (0, 6), "the grace is not over");
    let spared = mirror.collect(NO_GRACE, false).await.expect("collected");
    assert_eq!(count().await, 6, "{spared:?}: it is being served");
    assert!(read(&serving).await.expect("read") == files());
    drop(serving);
    while !objects(&*store, "leases").await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let adding = mirror.lease(Purpose::Add).await.expect("leased");
    let dry = mirror.collect(NO_GRACE, true).await.expect("counted");
    assert_eq!((mirror.collect(NO_GRACE, false).await.expect("collected"), count().await), (dry, 5));
    assert!(dry.objects >= 4 && dry.bytes > 3 * BLOCK, "blob, record, recipe and manifest: {dry:?}");
    adding.release().await;
    assert_eq!(faults(&mirror, true).await, [""; 0]);
    mirror.remove(&first.key()).await.expect("removed");
    assert!(mirror.refs().await.expect("listed").is_empty());
    mirror.collect(NO_GRACE, false).await.expect("collected");
    mirror.collect(NO_GRACE, false).await.expect("collected");
    assert_eq!(objects(&*store, "").await, []);
    add(&mirror, held).await.expect("added anew");
    assert_eq!(faults(&mirror, true).await, [""; 0]);
}

/// An origin that changes when it has been listed so many times.
#[derive(Debug)]
struct ChangingOrigin(Arc<Memory>, AtomicU64);

impl Tier for ChangingOrigin {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }
    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: std::ops::Range<u64>,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        self.0.fetch(blob, range, urgency)
    }
}

impl Origin for ChangingOrigin {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        async move {
            self.0.list(listing).await?;
            let left = self.1.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
            if let Ok(left) = left {
                self.0.put(b"large.bin", noise(3 * BLOCK, left));
            }
            Ok(())
        }
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changes_is_taken_in_one_state_or_not_at_all() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let error = add(&mirror, Arc::new(ChangingOrigin(origin(&files()), 2.into()))).await.expect_err("twice");
    assert_eq!(error.kind(), Kind::Changed, "{error}");
    assert!(mirror.refs().await.expect("listed").is_empty());
    add(&mirror, Arc::new(ChangingOrigin(origin(&files()), 1.into()))).await.expect("once");
    let mut expected = files();
    expected.insert(b"large.bin".to_vec(), noise(3 * BLOCK, 1));
    let snapshot = mount(&node(), &mirror, None).await.expect("mounted");
    assert!(read(&snapshot).await.expect("read") == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_of_many_small_files_takes_few_requests() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let many: Files = (0..2000).map(|i| (format!("{i:04}").into_bytes(), noise(4096, i))).collect();
    let published = add(&mirror, origin(&many)).await.expect("added");
    assert_eq!(published.found.blobs, 2, "8 MiB, and a pack has 4 to 16");
    let node = node();
    let snapshot = mount(&node, &mirror, None).await.expect("mounted");
    snapshot.stage().done().await.expect("staged");
    assert!(snapshot.traffic().requests <= 4, "{:?}", snapshot.traffic());
    assert!(read(&snapshot).await.expect("read") == many);
    let file = snapshot.manifest().entry(1).expect("a file").node;
    let Node::File(slice) = file else { panic!("{file:?}") };
    assert_eq!(snapshot.digest(slice).expect("good"), None, "a pack's digest is not its files'");
    assert!(matches!(snapshot.manifest().blob(0).expect("good").key, Key::Content(_)));
}
