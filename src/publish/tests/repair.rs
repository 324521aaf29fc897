//! Damaged objects: named, never read, repaired.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn damaged_object_is_named_never_read_and_repaired() {
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
