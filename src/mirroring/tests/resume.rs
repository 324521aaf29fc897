//! Runs that broke off in the middle of a large file.

use super::*;
use crate::block::Check;
use crate::mirror::gc_report::GcReport;

const MIB: u64 = 1 << 20;

/// An origin that refuses what lies beyond so many bytes of a file, and counts what it sends.
#[derive(Debug)]
struct TruncatedOrigin {
    origin: Arc<MemoryTier>,
    limit: u64,
    sent: AtomicU64,
}

impl TruncatedOrigin {
    fn new(origin: &Arc<MemoryTier>, limit: u64) -> Arc<Self> {
        Arc::new(Self { origin: origin.clone(), limit, sent: AtomicU64::new(0) })
    }

    fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

impl Tier for TruncatedOrigin {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }
    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: std::ops::Range<u64>,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        if range.end > self.limit {
            return std::future::ready(Err(Error::new(Kind::Refused, "no more"))).boxed();
        }
        self.sent.fetch_add(range.end - range.start, Relaxed);
        self.origin.fetch(blob, range, urgency)
    }
}

impl Origin for TruncatedOrigin {
    fn name(&self) -> &str {
        self.origin.name()
    }
    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        self.origin.list(listing)
    }
}

/// Bytes of which half can be saved.
fn half(len: u64) -> Bytes {
    let mut bytes = noise(len, 6).to_vec();
    bytes.chunks_mut(1 << 12).for_each(|piece| {
        let middle = piece.len() / 2;
        piece[middle..].fill(0);
    });
    bytes.into()
}

/// A file, and that of it which a run had read, which broke off at 48 MiB, is noted.
fn subjects() -> [(Bytes, u64); 2] {
    // Three parts of what is kept as it is. Compressed, one part ends in the block 32.
    [(noise(57 * MIB + 9, 7), 48 * MIB), (half(57 * MIB + 9), 32 * MIB)]
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_publish_reads_only_the_rest_of_a_large_file() {
    for (local, (content, noted)) in [false, true].into_iter().zip(subjects()) {
        let directory = tempfile::tempdir().expect("directory");
        let mirror = match local {
            false => mirror(Arc::new(InMemory::new())),
            true => directory_mirror(directory.path()),
        };
        let files = FileTree::from([(b"large".to_vec(), content.clone())]);
        let held = origin(&files);
        let short = TruncatedOrigin::new(&held, 48 * MIB);
        let error = add(&mirror, short.clone()).await.expect_err("it broke off");
        assert!(error.kind() == Kind::Refused && short.sent() == 48 * MIB, "{error}");
        let whole = TruncatedOrigin::new(&held, u64::MAX);
        add(&mirror, whole.clone()).await.expect("completed");
        let again = content.len() as u64 - noted;
        assert!(whole.sent() <= again && whole.sent() > again - 2 * MIB, "{} of {again}", whole.sent());
        assert_eq!(faults(&mirror, true).await, [""; 0]);
        let snapshot = mount(&node(), &mirror, None).await.expect("mounted");
        assert!(read(&snapshot).await.expect("read") == files);
        let left = mirror.collect(NO_GRACE, true).await.expect("counted");
        assert_eq!(left, GcReport::default(), "nothing is left over");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_publish_of_a_large_file_is_found_again_under_another_name() {
    // More than fits into memory, as only such files have drafts that are resumed.
    let mirror = mirror(Arc::new(InMemory::new()));
    mirror.init().await.expect("founded");
    let content = noise(57 * MIB + 9, 7);
    let publish_as = async |name: &str, path: &[u8], limit| {
        let held = TruncatedOrigin::new(&origin(&FileTree::from([(path.to_vec(), content.clone())])), limit);
        let source = MirrorSource { hash_first: true, ..source_of(name, held) };
        mirror_source(&mirror, &source, CONFIG, &MirrorProgress::default()).await
    };
    publish_as("one", b"large", 48 * MIB).await.expect_err("it broke off");
    publish_as("one", b"large", u64::MAX).await.expect("resumed");
    let again = publish_as("two", b"other", u64::MAX).await.expect("published");
    assert_eq!(again.written, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn collect_of_abandoned_draft_deletes_its_upload() {
    let directory = tempfile::tempdir().expect("directory");
    let mirror = directory_mirror(directory.path());
    let files = FileTree::from([(b"large".to_vec(), noise(57 * MIB, 7))]);
    let held = origin(&files);
    add(&mirror, TruncatedOrigin::new(&held, 48 * MIB)).await.expect_err("it broke off");
    let day = Duration::from_secs(86_400);
    let kept = mirror.collect(day, false).await.expect("collected");
    assert!(kept.objects == 0 && kept.kept_bytes > 48 * MIB, "{kept:?}");
    let gone = mirror.collect(NO_GRACE, false).await.expect("collected");
    assert!(gone.bytes > 48 * MIB && gone.kept == 0, "{gone:?}");
    let store = LocalFileSystem::new_with_prefix(directory.path()).expect("a directory");
    assert_eq!(objects(&store, "").await, []);
    let unfinished =
        std::fs::read_dir(directory.path().join("tenants/tenant/uploads")).expect("read").count();
    assert_eq!(unfinished, 0);
    let whole = TruncatedOrigin::new(&held, u64::MAX);
    add(&mirror, whole.clone()).await.expect("added anew");
    assert_eq!(whole.sent(), 57 * MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_of_upload_lost_by_the_store_begins_anew() {
    let directory = tempfile::tempdir().expect("directory");
    let mirror = directory_mirror(directory.path());
    let files = FileTree::from([(b"large".to_vec(), noise(57 * MIB, 7))]);
    let held = origin(&files);
    add(&mirror, TruncatedOrigin::new(&held, 48 * MIB)).await.expect_err("it broke off");
    for left in std::fs::read_dir(directory.path().join("tenants/tenant/uploads")).expect("read") {
        std::fs::remove_file(left.expect("an entry").path()).expect("removed");
    }
    add(&mirror, held).await.expect("added");
    assert_eq!(faults(&mirror, true).await, [""; 0]);
    assert_eq!(mirror.collect(NO_GRACE, true).await.expect("counted"), GcReport::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_of_draft_whose_holder_is_gone_succeeds_once() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let (recipe, other, size) = (Digest::of(b"recipe"), Digest::of(b"other"), 40 * MIB);
    let lease = async || mirror.add_lease().await.expect("leased");
    let holder = lease().await;
    let mut draft = mirror.begin_draft(&recipe, size, false, &holder).await.expect("begun");
    let block = noise(BLOCK, 1);
    for index in 0..36 {
        draft.push(Check::of(size, index, &block), block.clone(), None).await.expect("written");
    }
    draft.suspend().await;
    let next = lease().await;
    let resume =
        async |recipe, size, lease| mirror.resume_draft(recipe, size, lease).await.expect("looked for");
    assert!(resume(&recipe, size, &next).await.is_none(), "its holder is at work");
    holder.release().await;
    assert!(resume(&other, size, &next).await.is_none());
    assert!(resume(&recipe, size + 1, &next).await.is_none());
    let (mut draft, _) = resume(&recipe, size, &next).await.expect("it is left");
    assert_eq!(draft.blocks(), 32);
    assert!(resume(&recipe, size, &lease().await).await.is_none(), "somebody has taken it over");
    for index in 32..40 {
        draft.push(Check::of(size, index, &block), block.clone(), None).await.expect("written");
    }
    let since = next.began();
    let (record, new) = mirror.put_draft(&recipe, &mut draft, None, since).await.expect("shelved");
    draft.close().await;
    assert!(new && record.digest == Digest::of(&block.repeat(40)));
    assert!(mirror.has_blob(&record).await.expect("looked at"));
}
