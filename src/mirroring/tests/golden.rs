//! The golden files: a mirror as it was written when its format was fixed.

use super::*;

/// The source of the golden files.
fn golden() -> (FileTree, Arc<MemoryTier>) {
    let files = FileTree::from([
        (b"dir/one".to_vec(), noise(70, 1)),
        (b"dir/two".to_vec(), noise(90, 2)),
        (b"empty".to_vec(), Bytes::new()),
        (b"text".to_vec(), text(BLOCK + 1000, 3)),
    ]);
    let origin = origin(&files);
    (files, origin)
}

/// The objects of the mirror in `testdata`, by their keys.
fn golden_objects() -> BTreeMap<String, Bytes> {
    fn gather(directory: &std::path::Path, below: &str, objects: &mut BTreeMap<String, Bytes>) {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let entry = entry.expect("an entry");
            let key = format!("{below}/{}", entry.file_name().into_string().expect("UTF-8"));
            match entry.file_type().expect("known").is_dir() {
                true => gather(&entry.path(), &key, objects),
                false => {
                    drop(objects.insert(key[1..].into(), std::fs::read(entry.path()).expect("read").into()))
                }
            }
        }
    }
    let mut objects = BTreeMap::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/mirroring/testdata/mirror");
    gather(&root, "", &mut objects);
    objects
}

/// Checks that what was written stays readable: this fails when a format changes without a new version.
#[tokio::test(flavor = "multi_thread")]
async fn golden_mirror_is_read() {
    let store = Arc::new(InMemory::new());
    for (key, bytes) in golden_objects() {
        store.put(&key.as_str().into(), bytes.into()).await.expect("put");
    }
    let mirror = mirror(store);
    assert_eq!(faults(&mirror, true).await, [""; 0]);
    let snapshot = mount(&node(), &mirror, None).await.expect("mounted");
    assert!(read(&snapshot).await.expect("read") == golden().0);
}

/// Checks that what is written is what `docs/formats.md` says, byte for byte, but for the ref, which tells the time.
#[tokio::test(flavor = "multi_thread")]
async fn golden_mirror_is_written() {
    let store = Arc::new(InMemory::new());
    add(&mirror(store.clone()), golden().1).await.expect("added");
    let mut expected = golden_objects();
    let timeless = |key: &str| key != "format.json" && !key.contains("/refs/");
    expected.retain(|key, _| timeless(key));
    let mut written: BTreeMap<String, Bytes> =
        objects(&*store, "").await.into_iter().map(|(key, bytes)| (key.to_string(), bytes)).collect();
    written.retain(|key, _| timeless(key));
    assert!(written.keys().eq(expected.keys()), "{:?} {:?}", written.keys(), expected.keys());
    for (key, bytes) in expected {
        assert!(written[&key] == bytes, "{key} is written otherwise");
    }
}
