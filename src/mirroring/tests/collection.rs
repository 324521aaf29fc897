//! Collection beside those who publish and serve.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn publish_beside_publisher_and_collector_loses_nothing() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let collecting = AtomicU64::new(1);
    let collector = async {
        while collecting.load(Relaxed) == 1 {
            mirror.collect(NO_GRACE, false).await.expect("collected");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let adders = async {
        let other: FileTree = files().into_iter().filter(|(path, _)| path.starts_with(b"dir")).collect();
        for _ in 0..2 {
            let (one, two) = tokio::join!(add(&mirror, origin(&files())), add(&mirror, origin(&files())));
            assert_eq!(one.expect("one").latest_ref.manifest, two.expect("two").latest_ref.manifest);
            add(&mirror, origin(&other)).await.expect("fewer");
        }
        collecting.store(0, Relaxed);
    };
    tokio::join!(collector, adders);
    assert_eq!(faults(&mirror, true).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn collect_spares_what_refs_and_leases_reach() {
    let store = Arc::new(InMemory::new());
    let mirror = mirror(store.clone());
    let held = origin(&files());
    let first = add(&mirror, held.clone()).await.expect("added").latest_ref;
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
    let adding = mirror.add_lease().await.expect("leased");
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

#[tokio::test]
async fn removal_of_a_training_cache_is_remembered_for_ever() {
    let mirror = mirror(Arc::new(InMemory::new()));
    let files = FileTree::from([(b"f".to_vec(), noise(9, 1))]);
    for name in ["cache://project/p", "memory://origin"] {
        let published = add_as(name, &mirror, origin(&files), &MirrorProgress::default()).await;
        mirror.remove(&published.expect("published").latest_ref.key()).await.expect("removed");
    }
    mirror.collect(NO_GRACE, false).await.expect("collected");
    mirror.collect(NO_GRACE, false).await.expect("collected");
    for (name, generation) in [("cache://project/p", 2), ("memory://origin", 0)] {
        let key = source_of(name, origin(&files)).key();
        assert_eq!(mirror.latest(&key).await.expect("listed").generation, generation, "{name}");
    }
}
