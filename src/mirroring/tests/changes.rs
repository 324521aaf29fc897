//! Sources that changed, or change while they are published.

use sha2::{Digest as _, Sha256};

use super::*;
use crate::manifest::ListedFile;

/// Counts what is sent of each path.
#[derive(Debug)]
struct CountingOrigin(Arc<MemoryTier>, Mutex<BTreeMap<Vec<u8>, u64>>);

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
async fn publish_again_reads_only_changed_files() {
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
async fn publish_of_known_content_stores_it_once_per_tenant() {
    let store = Arc::new(InMemory::new());
    let written = async |tenant: &str, name: &str, files: &FileTree| {
        let mirror =
            Mirror::new(MirrorStore::service(store.clone(), ""), "memory://m", tenant, std::env::temp_dir());
        let progress = MirrorProgress::default();
        add_as(name, &mirror.expect("a tenant"), origin(files), &progress).await.expect("added");
        progress.written.load(Relaxed)
    };
    let many: FileTree = (0..600).map(|i| (format!("d/{i:03}").into_bytes(), noise(90_000, i))).collect();
    let all = written("tenant", "memory://one", &many).await;
    assert_eq!(all, 54_000_000);
    assert_eq!(written("tenant", "memory://other", &many).await, 0);
    assert_eq!(written("another", "memory://one", &many).await, all);
    // A file more is a pack more.
    let more = many.into_iter().chain([(b"d/500x".to_vec(), noise(90_000, 1000))]).collect();
    let again = written("tenant", "memory://one", &more).await;
    assert!(again > 90_000 && again < all / 4, "{again}");
}

/// An origin whose files keep their versions, as a web server's of one size and time do; it may publish their SHA-256.
#[derive(Debug)]
struct OneVersionOrigin(Arc<MemoryTier>, FileTree, bool);

impl Tier for OneVersionOrigin {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }
    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: std::ops::Range<u64>,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            let held = self.0.blob(&blob.path).ok_or_else(|| Error::new(Kind::NotFound, "no such file"))?;
            self.0.fetch(&held, range, urgency).await
        }
        .boxed()
    }
}

impl Origin for OneVersionOrigin {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        for (path, content) in &self.1 {
            let sha256 = self.2.then(|| Sha256::digest(content).into());
            let size = content.len() as u64;
            let (mtime, executable, version) = ((0, 0), false, &b"1"[..]);
            listing.file(ListedFile { path, size, mtime, executable, version, sha256 });
        }
        async { Ok(()) }.boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_again_takes_no_old_content_that_lacks_the_published_sha256() {
    let small =
        |seed| FileTree::from_iter((0..4).map(|i| (vec![b'a' + i], noise(5_000, u64::from(i) + seed))));
    let (old, new) = (small(0), small(100));
    // Once the hashes are published from the first time on; once the wrong bytes were stored before they were.
    for published_before in [true, false] {
        let mirror = mirror(Arc::new(InMemory::new()));
        let before = OneVersionOrigin(origin(&old), old.clone(), published_before);
        add(&mirror, Arc::new(before)).await.expect("added");
        let mut mixed = new.clone();
        mixed.insert(b"a".to_vec(), old[&b"a"[..]].clone());
        let after = OneVersionOrigin(origin(&mixed), mixed.clone(), true);
        let again = add(&mirror, Arc::new(after)).await.expect("added again");
        assert_eq!((again.new, again.read), (true, 15_000), "what has the SHA-256 is reused");
        let snapshot = mount(&node(), &mirror, None).await.expect("mounted");
        assert!(read(&snapshot).await.expect("read") == mixed, "{published_before}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_after_the_published_sha256_changed_reads_the_new_content() {
    let of = |seed| {
        FileTree::from([(b"large".to_vec(), noise(3 * BLOCK, seed)), (b"small".to_vec(), noise(9, seed))])
    };
    let node = node();
    for files in [of(1), of(2), of(1)] {
        let origin = OneVersionOrigin(origin(&files), files.clone(), true);
        let snapshot = node.engine.snapshot(Arc::new(origin), Patterns::default()).await.expect("listed");
        snapshot.stage().done().await.expect("staged");
        assert!(
            self::read(&snapshot).await.expect("read") == files,
            "the cache has another state of this version"
        );
    }
}

/// An origin that changes when it has been listed so many times.
#[derive(Debug)]
struct ChangingOrigin(Arc<MemoryTier>, AtomicU64);

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
async fn publish_of_changing_source_takes_one_state_or_fails() {
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
async fn publish_of_same_content_under_another_name_uploads_none_of_it() {
    let mirror = mirror(Arc::new(InMemory::new()));
    mirror.init().await.expect("founded");
    let frozen = noise(20 * BLOCK, 5);
    let publish_as = async |name: &str, path: &[u8], content: Bytes, hash_first: bool| {
        let held = origin(&FileTree::from([(path.to_vec(), content)]));
        let source = MirrorSource { hash_first, ..source_of(name, held) };
        mirror_source(&mirror, &source, CONFIG, &MirrorProgress::default()).await.expect("published")
    };
    let first = publish_as("one", b"model-1.bin", frozen.clone(), true).await;
    assert_eq!((first.read, first.written), (20 * BLOCK, 20 * BLOCK), "read once, where nothing is like it");
    let again = publish_as("two", b"other/model-7.bin", frozen.clone(), true).await;
    assert_eq!((again.written, again.latest_ref.stored), (0, 20 * BLOCK));
    // The recipe of the other name is known from then on.
    assert_eq!(publish_as("two", b"other/model-7.bin", frozen.clone(), true).await.read, 0);

    let mut changed = frozen.to_vec();
    changed[19 * BLOCK as usize] ^= 1;
    let changed = publish_as("three", b"model-1.bin", changed.into(), true).await;
    assert_eq!(changed.written, 20 * BLOCK, "it begins the same, and goes on differently");
    let shorter = publish_as("four", b"model-1.bin", frozen.slice(..18 << 20), true).await;
    assert_eq!(shorter.written, 18 * BLOCK);
    let far = publish_as("five", b"x", frozen, false).await;
    assert_eq!(far.written, 20 * BLOCK, "an origin that is dear to read is read once");
    assert_eq!(faults(&mirror, true).await, [""; 0]);
}
