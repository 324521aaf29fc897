//! Sources published, read back, damaged, repaired and collected.

mod changes;
mod checkpoints;
mod collection;
mod crash;
mod golden;
mod repair;
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
use crate::mirror::catalog::source_key;
use crate::mirror::multipart::MirrorStore;
use crate::snapshot::Snapshot;
use crate::source::{Access, Uri};
use crate::tier::lazy_origin::OriginOpener;
use crate::tier::memory::MemoryTier;
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

const NO_GRACE: Duration = Duration::ZERO;
/// So little memory that a file of 2 MiB and more is streamed.
const CONFIG: MirrorConfig = MirrorConfig { memory: 8 << 20 };

type FileTree = BTreeMap<Vec<u8>, Bytes>;

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
fn files() -> FileTree {
    static FILES: LazyLock<FileTree> = LazyLock::new(make_files);
    FILES.clone()
}

fn make_files() -> FileTree {
    let mut files = FileTree::from([
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

fn origin(files: &FileTree) -> Arc<MemoryTier> {
    let origin = Arc::new(MemoryTier::new("memory://origin"));
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

async fn add(mirror: &Mirror, origin: Arc<dyn Origin>) -> Result<MirrorOutcome> {
    add_as("memory://origin", mirror, origin, &MirrorProgress::default()).await
}

/// Adds it as the source that is called `name`.
async fn add_as(
    name: &str,
    mirror: &Mirror,
    origin: Arc<dyn Origin>,
    progress: &MirrorProgress,
) -> Result<MirrorOutcome> {
    mirror.init().await?;
    mirror_source(mirror, &source_of(name, origin), CONFIG, progress).await
}

fn source_of(name: &str, origin: Arc<dyn Origin>) -> MirrorSource {
    let patterns = Patterns::default();
    MirrorSource {
        name: name.into(),
        identity: name.into(),
        executable: Vec::new(),
        patterns,
        origin,
        hash_first: false,
        previous: Default::default(),
    }
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

async fn read(snapshot: &Snapshot) -> Result<FileTree> {
    let mut files = FileTree::new();
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
async fn publish_every_kind_of_file_reads_back_from_the_mirror_alone() {
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
        assert_eq!(stored as u64, published.latest_ref.stored);
        assert!(!add(&mirror, origin(&files())).await.expect("added again").new);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_blob_read_with_plain_tools_is_its_content() {
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

#[tokio::test(flavor = "multi_thread")]
async fn stage_of_many_small_files_takes_few_requests() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let many: FileTree = (0..2000).map(|i| (format!("{i:04}").into_bytes(), noise(4096, i))).collect();
    let published = add(&mirror, origin(&many)).await.expect("added");
    assert_eq!(published.latest_ref.blobs, 2, "8 MiB, and a pack has 4 to 16");
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
