//! Publications killed at any request to the store.

use std::fmt;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::multipart::PartId;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};

use super::*;

/// A store that fails for good after so many operations, as a process that is killed sees it.
#[derive(Debug)]
struct CrashingStore {
    store: Arc<InMemory>,
    left: AtomicU64,
}

impl CrashingStore {
    fn live(&self) -> StoreResult<()> {
        let lived = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        lived.map(drop).map_err(|_| object_store::Error::Generic { store: "mortal", source: "dead".into() })
    }
}

impl fmt::Display for CrashingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mortal")
    }
}

#[derive(Debug)]
struct CrashingStoreHandle(Arc<CrashingStore>);

impl fmt::Display for CrashingStoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for CrashingStoreHandle {
    async fn put_opts(&self, at: &Path, payload: PutPayload, opts: PutOptions) -> StoreResult<PutResult> {
        self.0.live()?;
        self.0.store.put_opts(at, payload, opts).await
    }
    async fn put_multipart_opts(
        &self,
        at: &Path,
        opts: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.0.store.put_multipart_opts(at, opts).await
    }
    async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.0.live()?;
        self.0.store.get_opts(at, options).await
    }
    fn delete_stream(
        &self,
        at: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        let mortal = self.0.clone();
        let alive = at.map(move |path| mortal.live().and(path)).boxed();
        self.0.store.delete_stream(alive)
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        match self.0.live() {
            Ok(()) => self.0.store.list(prefix),
            Err(e) => futures_util::stream::iter([Err(e)]).boxed(),
        }
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.0.live()?;
        self.0.store.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.0.live()?;
        self.0.store.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for CrashingStoreHandle {
    async fn create_multipart(&self, path: &Path) -> StoreResult<MultipartId> {
        self.0.live()?;
        self.0.store.create_multipart(path).await
    }
    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        index: usize,
        data: PutPayload,
    ) -> StoreResult<PartId> {
        self.0.live()?;
        self.0.store.put_part(path, id, index, data).await
    }
    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> StoreResult<PutResult> {
        self.0.live()?;
        self.0.store.complete_multipart(path, id, parts).await
    }
    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> StoreResult<()> {
        self.0.live()?;
        self.0.store.abort_multipart(path, id).await
    }
}

fn crashing(store: &Arc<InMemory>, left: u64) -> Mirror {
    mirror(Arc::new(CrashingStoreHandle(Arc::new(CrashingStore { store: store.clone(), left: left.into() }))))
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_killed_at_any_request_keeps_the_old_state_and_resumes() {
    let base = InMemory::new();
    let old = files();
    add(&mirror(Arc::new(base.fork())), origin(&old)).await.expect("added");
    let first = Arc::new(base);
    add(&mirror(first.clone()), origin(&old)).await.expect("added");
    let held = origin(&old);
    let mut new = old.clone();
    for (path, content) in
        [("large.txt", text(2 * BLOCK + 9, 50)), ("dir/07", noise(7, 51)), ("new", noise(BLOCK, 52))]
    {
        new.insert(path.into(), content.clone());
        held.put(path.as_bytes(), content);
    }
    for left in 0.. {
        let store = Arc::new(first.fork());
        let outcome = add(&crashing(&store, left), held.clone()).await;
        let whole = mirror(store.clone());
        assert_eq!(faults(&whole, true).await, [""; 0], "after {left} operations");
        if left % 16 == 0 || outcome.is_ok() {
            let seen = read(&mount(&node(), &whole, None).await.expect("mounted")).await.expect("read");
            assert!(seen == old || seen == new, "a mixture after {left} operations");
        }
        add(&whole, held.clone()).await.expect("completed");
        assert_eq!(faults(&whole, true).await, [""; 0], "completed after {left} operations");
        let found = whole.find(&source_key("memory://origin", &Patterns::default())).await.expect("read");
        assert_eq!(found.expect("there").files, new.len() as u64);
        if outcome.is_ok() {
            assert!(left > 40, "{left} operations are too few to be all");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_phase_tells_errors_of_the_listing_from_those_of_the_mirror() {
    let held = origin(&FileTree::from([(b"a".to_vec(), noise(9, 1))]));
    let first = Arc::new(InMemory::new());
    add(&mirror(first.clone()), held.clone()).await.expect("added");
    for left in 0.. {
        let progress = MirrorProgress::default();
        let crashing = crashing(&Arc::new(first.fork()), left);
        if add_as("memory://origin", &crashing, held.clone(), &progress).await.is_ok() {
            assert!(left > 4, "{left} operations are too few to be all");
            break;
        }
        assert_ne!(progress.state(), MirrorPhase::Listing, "after {left} operations of the mirror");
    }
    let progress = MirrorProgress::default();
    held.put(b"a/../b", noise(9, 1));
    let refused = add_as("memory://origin", &mirror(first), held, &progress).await.expect_err("a bad name");
    assert_eq!((refused.kind(), progress.state()), (Kind::Invalid, MirrorPhase::Listing), "{refused}");
}
