//! Packs: several files in one blob.

use super::super::encoder::{BlobEntry, BlobName, ManifestContents, encode};
use super::*;

/// A manifest as a mirror will write them: one blob of content with its checks, two files in it.
struct TestPack {
    content: Vec<u8>,
    checks: Vec<Check>,
}

impl TestPack {
    fn entries() -> [Entry<'static>; 3] {
        let slice = |offset, len| Node::File(Slice { blob: 0, offset, len });
        let entries =
            [(&b""[..], Node::Directory(1..3)), (b"one", slice(0, BLOCK + 3)), (b"two", slice(BLOCK + 3, 7))];
        entries.map(|(name, node)| Entry { name, parent: 0, mtime: (1, 2), executable: false, node })
    }

    fn stored() -> MirrorLocation {
        MirrorLocation { object_key: "uploads/x".into(), ends: Some(vec![7; 16].into()) }
    }
}

impl ManifestContents for TestPack {
    fn source(&self) -> &str {
        ORIGIN
    }
    fn entries(&self, each: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()> {
        Self::entries().into_iter().try_for_each(each)
    }
    fn blobs(&self, each: &mut dyn FnMut(BlobEntry<'_>) -> Result<()>) -> Result<()> {
        let name = BlobName::Content(Digest::of(&self.content), Some(&self.checks));
        let size = self.content.len() as u64;
        let stored = Self::stored();
        // The versions "v1" and "v22", each with its length.
        let version = b"\x02\0v1\x03\0v22"[..].into();
        each(BlobEntry { name, size, entry: Some(1), version, packed: true, sha256: Some([9; 32]), stored })
    }
}

#[test]
fn pack_read_back_has_its_checks_and_files() {
    let content: Vec<u8> = (0..BLOCK + 10).map(|i| i as u8).collect();
    let size = content.len() as u64;
    let blocks = content.chunks(BLOCK as usize).enumerate();
    let checks = blocks.map(|(i, bytes)| Check::of(size, i as u64, bytes)).collect();
    let pack = TestPack { content, checks };
    let mut bytes = Vec::new();
    encode(&pack, &mut bytes).expect("memory");
    let manifest = Manifest::from_bytes(bytes.clone()).expect("good");
    let blob = manifest.blob(0).expect("good");
    assert_eq!(blob.key, Key::Content(Digest::of(&pack.content)));
    assert_eq!(blob.checks.as_deref(), Some(&pack.checks[..]));
    assert_eq!(Key::Content(Check::combine(size, &pack.checks).expect("two")), blob.key);
    assert_eq!((blob.sha256, &blob.path[..], blob.size), (Some([9; 32]), &b""[..], size));
    let two = manifest.lookup(0, b"two").expect("good").expect("there");
    assert_eq!(manifest.entry(two).expect("good"), TestPack::entries()[2]);
    assert_eq!(blob.stored, TestPack::stored());
    let parts = manifest.parts(0).expect("good");
    let part = |range, path: &'static str, version: &'static str| PackedFile {
        range,
        path: path.into(),
        version: version.into(),
    };
    assert_eq!(parts, [part(0..BLOCK + 3, "one", "v1"), part(BLOCK + 3..size, "two", "v22")]);
    assert_eq!((manifest.files(), manifest.bytes(), manifest.largest()), (2, size, BLOCK + 3));
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x41;
        read_everything(bytes);
    }
}
