//! Manifests that are newer, or lie.

use std::borrow::Cow;

use super::super::binary::MAX_MANIFEST_BYTES;
use super::super::encoder::{BlobEntry, ManifestContents, encode};
use super::*;

/// Blobs whose versions have `bytes` bytes in all.
struct LongVersions {
    bytes: u64,
}

impl ManifestContents for LongVersions {
    fn source(&self) -> &str {
        ORIGIN
    }

    fn entries(&self, _: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn blobs(&self, each: &mut dyn FnMut(BlobEntry<'_>) -> Result<()>) -> Result<()> {
        let version = vec![0; 1 << 20];
        (0..self.bytes >> 20)
            .try_for_each(|_| each(BlobEntry { version: Cow::Borrowed(&version), ..BlobEntry::empty() }))
    }
}

#[test]
fn manifest_above_its_largest_size_is_neither_written_nor_read() {
    let mut out = Vec::new();
    let written = encode(&LongVersions { bytes: MAX_MANIFEST_BYTES }, &mut out).expect_err("too large");
    assert_eq!(written.kind(), Kind::Unsupported, "{written}");
    assert!(out.is_empty(), "nothing of it is written");

    let mut start = Vec::new();
    listing(&[], &["a"]).finish(&mut start).expect("good");
    let rest = start.len() as u64 - u64::from_le_bytes(start[32..40].try_into().expect("8 bytes"));
    for (len, expected) in [(MAX_MANIFEST_BYTES, None), (MAX_MANIFEST_BYTES + 1, Some(Kind::Unsupported))] {
        start[32..40].copy_from_slice(&(len - rest).to_le_bytes());
        let checked = Manifest::check_start(&start, len as usize);
        assert_eq!(checked.err().map(|error| error.kind()), expected, "{len} bytes");
    }
}

#[test]
fn manifest_of_newer_version_is_refused() {
    let mut bytes = Vec::new();
    let digest = listing(&[], &["a/b"]).finish(&mut bytes).expect("good");
    let mut disk = tempfile::tempfile().expect("file");
    disk.write_all(&bytes).expect("written");
    disk.rewind().expect("rewound");
    let manifest = Manifest::open(&disk).expect("good");
    assert_eq!((manifest.digest(), manifest.entries()), (digest, 3));
    manifest.release_pages();
    assert_eq!(manifest.path(2).expect("good"), b"a/b");
    assert_eq!(
        Manifest::open(&tempfile::tempfile().expect("file")).expect_err("empty").kind(),
        Kind::Corrupt
    );
    bytes[8] = 2;
    assert_eq!(Manifest::from_bytes(bytes).expect_err("newer").kind(), Kind::Unsupported);
}

#[test]
fn manifest_with_each_inconsistency_is_corrupt() {
    let mut bytes = Vec::new();
    listing(&[], &["a/x", "b/y"]).finish(&mut bytes).expect("good");
    // Entries 1 to 4 are a, b, a/x, b/y; after them come the two blobs, and the strings from 400 on.
    let (entry, blob, name) = (|i: usize| 64 + 48 * i, |i: usize| 304 + 48 * i, 400 + ORIGIN.len());
    type Look = fn(&Manifest) -> Result<()>;
    let see: Look = |m| m.entry(3).map(drop);
    let lies: [(&str, usize, &[u8], Look); 16] = [
        ("a directory before itself", entry(1) + 16, &[0], |m| m.entry(1).map(drop)),
        ("a directory past the end", entry(1) + 24, &[9], |m| m.entry(1).map(drop)),
        ("a child of two, walked", entry(1) + 24, &[2], |m| walk(m).map(drop)),
        ("a name out of order", name, b"c", |m| walk(m).map(drop)),
        ("a child of two, looked up", entry(1) + 24, &[2], |m| m.lookup(1, b"y").map(drop)),
        ("a root that is a file", entry(0) + 14, &[2], |m| m.entry(0).map(drop)),
        ("another's child", entry(3) + 8, &[2], see),
        ("no kind", entry(3) + 14, &[9], see),
        ("an end past the blob", entry(3) + 24, &[6], see),
        ("an overflowing end", entry(3) + 16, &[255; 8], see),
        ("too many nanoseconds", entry(3) + 36, &1_000_000_000u32.to_le_bytes(), see),
        ("no name", entry(3) + 12, &[0], see),
        ("a name of two parts", name + 2, b"/", see),
        ("a blob without end", blob(0) + 7, &[128], |m| m.blob_size(0).map(drop)),
        ("another's blob", blob(0) + 32, &[4], |m| m.blob(0).map(drop)),
        ("a nameless blob", blob(0) + 32, &[255; 4], |m| m.blob(0).map(drop)),
    ];
    for (what, at, lie, look) in lies {
        let mut bytes = bytes.clone();
        look(&Manifest::from_bytes(bytes.clone()).expect("good")).expect(what);
        bytes[at..at + lie.len()].copy_from_slice(lie);
        let manifest = Manifest::from_bytes(bytes).expect("a right header");
        for error in [look(&manifest).expect_err(what), manifest.check().expect_err(what)] {
            assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
        }
    }
}
