//! Writes manifests: bytes out, nothing kept.

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};

use zerocopy::IntoBytes;

use super::binary::{self, BlobRecord, EntryRecord, Header};
use super::{Entry, Node};
use crate::blob::MirrorLocation;
use crate::block::Check;
use crate::digest::Digest;
use crate::error::{Error, Result};

/// The contents of a manifest to be written. They are read several times, so that nothing is kept meanwhile;
/// what they return must be right and the same each time, for nothing is checked here.
pub(super) trait ManifestContents {
    /// The source's name.
    fn source(&self) -> &str;
    /// Hands on each entry, in the order of the format.
    fn entries(&self, each: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()>;
    /// Hands on each blob, in order.
    fn blobs(&self, each: &mut dyn FnMut(BlobEntry<'_>) -> Result<()>) -> Result<()>;
}

/// A blob in a manifest.
pub(super) struct BlobEntry<'a> {
    /// The name.
    pub name: BlobName<'a>,
    /// The length in bytes.
    pub size: u64,
    /// The first entry that holds it, where its origin knows it by that entry's path.
    pub entry: Option<u32>,
    /// The version that its origin pinned, or those of its parts as the format has them; under 2^32 bytes.
    pub version: Cow<'a, [u8]>,
    /// Whether the blob is a pack.
    pub packed: bool,
    /// The SHA-256 that its origin publishes.
    pub sha256: Option<[u8; 32]>,
    /// The form in which the mirror stores it. Its object key has at most 65,535 bytes.
    pub stored: MirrorLocation,
}

/// The name of a blob: a [`Key`](crate::blob::Key) before it is made.
pub(super) enum BlobName<'a> {
    /// The origin, the path there and the version.
    Origin,
    /// The digest of the content; with the checks of its blocks, where they are known.
    Content(Digest, Option<&'a [Check]>),
}

impl BlobEntry<'_> {
    /// The blob of all empty files.
    pub(super) fn empty() -> Self {
        let name = BlobName::Content(Digest::of(b""), None);
        let (version, stored) = (Cow::default(), MirrorLocation::default());
        BlobEntry { name, size: 0, entry: None, version, packed: false, sha256: None, stored }
    }

    /// The hashes, in the order of the format.
    fn hashes(&self) -> impl Iterator<Item = &[u8; 32]> {
        let (digest, checks) = match &self.name {
            BlobName::Origin => (None, None),
            BlobName::Content(digest, checks) => (Some(&digest.0), *checks),
        };
        digest.into_iter().chain(&self.sha256).chain(checks.into_iter().flatten().map(|check| &check.0))
    }

    /// The texts, in the order of the format.
    fn strings(&self) -> [&[u8]; 3] {
        [&self.version, &self.stored.object_key, self.stored.ends.as_deref().unwrap_or_default()]
    }
}

/// Writes the manifest of `contents` to `out`, and returns its digest.
///
/// # Errors
/// Those of `contents`; [`Kind::Disk`](crate::error::Kind::Disk) and [`Kind::NoSpace`](crate::error::Kind::NoSpace) from
/// `out`.
pub(super) fn encode(contents: &impl ManifestContents, out: &mut dyn Write) -> Result<Digest> {
    let out = HashingWriter { out, hasher: blake3::Hasher::new() };
    // Large enough that the hash runs at full speed.
    let mut out = BufWriter::with_capacity(256 << 10, out);
    let mut put = |bytes: &[u8]| out.write_all(bytes).map_err(unwritten);
    put(header(contents)?.as_bytes())?;
    let mut strings = contents.source().len() as u64;
    contents.entries(&mut |each| put(entry(&each, &mut strings).as_bytes()))?;
    let mut hashes = 0;
    contents.blobs(&mut |each| put(blob(&each, &mut strings, &mut hashes).as_bytes()))?;
    contents.blobs(&mut |each| each.hashes().try_for_each(|hash| put(hash)))?;
    put(contents.source().as_bytes())?;
    contents.entries(&mut |entry| {
        put(entry.name)?;
        match entry.node {
            Node::Symlink(target) => put(target),
            _ => Ok(()),
        }
    })?;
    contents.blobs(&mut |each| each.strings().into_iter().try_for_each(&mut put))?;
    out.flush().map_err(unwritten)?;
    Ok(Digest(*out.get_ref().hasher.finalize().as_bytes()))
}

fn unwritten(error: io::Error) -> Error {
    Error::disk("cannot write the manifest", error)
}

fn header(contents: &impl ManifestContents) -> Result<Header> {
    let (mut entries, mut blobs, mut strings, mut hashes) = (0u32, 0u32, contents.source().len() as u64, 0);
    let (mut files, mut bytes, mut largest) = (0, 0u64, 0);
    contents.entries(&mut |entry| {
        entries += 1;
        strings += entry.name.len() as u64;
        match entry.node {
            Node::Directory(_) => {}
            Node::Symlink(target) => strings += target.len() as u64,
            Node::File(slice) => {
                files += 1;
                bytes = bytes.saturating_add(slice.len);
                largest = slice.len.max(largest);
            }
        }
        Ok(())
    })?;
    contents.blobs(&mut |blob| {
        blobs += 1;
        strings += blob.strings().iter().map(|text| text.len() as u64).sum::<u64>();
        hashes += blob.hashes().count() as u64;
        Ok(())
    })?;
    let header = Header {
        magic: binary::MAGIC,
        version: binary::VERSION.into(),
        entries: entries.into(),
        blobs: blobs.into(),
        source_len: (contents.source().len() as u32).into(),
        hashes: hashes.into(),
        strings: strings.into(),
        files: files.into(),
        bytes: bytes.into(),
        largest: largest.into(),
    };
    binary::check_size(header.manifest_bytes())?;
    Ok(header)
}

/// The record of `entry`, whose texts are put at `strings`.
fn entry(entry: &Entry<'_>, strings: &mut u64) -> EntryRecord {
    let name = take(strings, entry.name.len());
    let (kind, a, b, blob) = match &entry.node {
        Node::Directory(children) => (binary::DIRECTORY, children.start.into(), children.len() as u64, 0),
        Node::File(slice) => (binary::FILE, slice.offset, slice.len, slice.blob),
        Node::Symlink(target) => (binary::SYMLINK, take(strings, target.len()), target.len() as u64, 0),
    };
    EntryRecord {
        name: name.into(),
        parent: entry.parent.into(),
        name_len: (entry.name.len() as u16).into(),
        kind,
        flags: if entry.executable { binary::EXECUTABLE } else { 0 },
        a: a.into(),
        b: b.into(),
        blob: blob.into(),
        nanoseconds: entry.mtime.1.into(),
        seconds: entry.mtime.0.into(),
    }
}

/// The record of `blob`, whose texts are put at `strings` and whose hashes at `hashes`.
fn blob(blob: &BlobEntry<'_>, strings: &mut u64, hashes: &mut u64) -> BlobRecord {
    let (kind, checks) = match blob.name {
        BlobName::Origin => (binary::ORIGIN, 0),
        BlobName::Content(_, None) => (binary::CONTENT, 0),
        BlobName::Content(_, Some(_)) => (binary::CONTENT, binary::CHECKS),
    };
    let [version, object_key, ends] = blob.strings().map(<[u8]>::len);
    let flag = |flag: u8, set: bool| if set { flag } else { 0 };
    BlobRecord {
        size: blob.size.into(),
        hashes: take(hashes, blob.hashes().count()).into(),
        version: take(strings, version).into(),
        object_key: take(strings, object_key + ends).into(),
        entry: blob.entry.unwrap_or(binary::NO_ENTRY).into(),
        version_len: (version as u32).into(),
        object_key_len: (object_key as u16).into(),
        kind,
        encoding: if blob.stored.ends.is_some() { binary::FRAMES } else { binary::PLAIN_ENCODING },
        flags: checks | flag(binary::SHA256, blob.sha256.is_some()) | flag(binary::PACK, blob.packed),
        reserved: [0; 3],
    }
}

/// Returns `*next`, the first of `len` items, and moves it behind them.
fn take(next: &mut u64, len: usize) -> u64 {
    let start = *next;
    *next += len as u64;
    start
}

/// Hashes what passes through.
struct HashingWriter<'a> {
    out: &'a mut dyn Write,
    hasher: blake3::Hasher,
}

impl Write for HashingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
