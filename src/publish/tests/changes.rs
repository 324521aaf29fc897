//! Sources that changed, or change while they are published.

use super::*;

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
        let progress = PublishProgress::default();
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
