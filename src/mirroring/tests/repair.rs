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

#[tokio::test(flavor = "multi_thread")]
async fn damaged_record_is_found_by_deep_verification_and_repaired() {
    let clean = Arc::new(InMemory::new());
    add(&mirror(clean.clone()), origin(&files())).await.expect("added");
    let records = objects(&*clean, "records").await;
    for (at, (path, bytes)) in records.iter().enumerate() {
        let mut flipped = bytes.to_vec();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        let other = records[(at + 1) % records.len()].1.clone();
        for damage in [flipped.into(), bytes.slice(..bytes.len() - 1), other, Bytes::new()] {
            let store = Arc::new(clean.fork());
            store.put(path, damage.into()).await.expect("put");
            let mirror = mirror(store);
            let told = faults(&mirror, true).await;
            let name = path.filename().expect("a name");
            assert!(told.len() == 1 && told[0].contains(&format!("{name} is damaged")), "{path}: {told:?}");
            add(&mirror, origin(&files())).await.expect("added again");
            assert_eq!(faults(&mirror, true).await, [""; 0], "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn manifest_with_one_path_twice_is_found_by_verification() {
    let store = Arc::new(InMemory::new());
    let mirror = mirror(store.clone());
    let files =
        FileTree::from([(b"same-name-1".to_vec(), noise(9, 1)), (b"same-name-2".to_vec(), noise(9, 2))]);
    let published = add(&mirror, origin(&files)).await.expect("added");
    let (_, manifest) = objects(&*store, "manifests").await.remove(0);
    let mut forged = manifest.to_vec();
    let second = forged.windows(11).position(|name| name == b"same-name-2").expect("its name");
    forged[second + 10] = b'1';
    let digest = Digest::of(&forged);
    store.put(&Path::from(format!("tenants/tenant/manifests/{digest}")), forged.into()).await.expect("put");
    let listed = published.latest_ref.listed + Duration::from_secs(1);
    mirror
        .commit_ref(&Ref { manifest: digest, listed, ..published.latest_ref }, None)
        .await
        .expect("published");
    for deep in [false, true] {
        let told = faults(&mirror, deep).await;
        assert!(told.len() == 1 && told[0].contains("out of order"), "{told:?}");
    }
}
