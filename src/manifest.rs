//! Manifests: the sorted list of a snapshot's entries and of the blobs that hold their content.
//!
//! A manifest is one file that is read in place: opening it looks at its header only, and no entry costs memory.
//! Everything else is checked when it is looked at, so damaged or hostile bytes give
//! [`Kind::Corrupt`], never a panic, a loop or a path out of the tree. It is written once, under its digest, and
//! never changed.
//!
//! # The format, version 1
//!
//! All integers are little-endian; nothing is aligned; reserved bytes are zero. A header and four sections follow
//! each other without gaps, and nothing follows them, so the counts in the header fix where each begins.
//!
//! **Header**, 64 bytes:
//!
//! | at | type | what |
//! |---|---|---|
//! | 0 | 8 bytes | `BDNFSMAN` |
//! | 8 | u32 | version: 1. A reader refuses a higher one |
//! | 12 | u32 | number of entries, the root included; at least 1 |
//! | 16 | u32 | number of blobs |
//! | 20 | u32 | length of the source's name, UTF-8, which begins the strings |
//! | 24 | u64 | number of hashes |
//! | 32 | u64 | length of the strings in bytes |
//! | 40 | u64 | number of regular files |
//! | 48 | u64 | sum of their sizes |
//! | 56 | u64 | size of the largest of them |
//!
//! **Entries**, 48 bytes each, breadth first: entry 0 is the root, and the children of each directory follow those of
//! the one before it, sorted by the bytes of their names. So a directory is a range of entries, and a parent comes
//! before its children.
//!
//! | at | type | what |
//! |---|---|---|
//! | 0 | u64 | where its name begins in the strings |
//! | 8 | u32 | the entry that holds it; 0 for the root |
//! | 12 | u16 | length of its name: 1 to 255, 0 for the root only |
//! | 14 | u8 | kind: 1 directory, 2 regular file, 3 symbolic link |
//! | 15 | u8 | flags: 1 executable |
//! | 16 | u64 | directory: its first child · file: offset of its slice in its blob · link: offset of its target in the strings |
//! | 24 | u64 | directory: number of children · file: its size · link: length of its target, 1 to 4095 |
//! | 32 | u32 | file: its blob · else 0 |
//! | 36 | u32 | nanoseconds of its last change, under 10^9 |
//! | 40 | i64 | seconds of its last change since 1970 |
//!
//! **Blobs**, 48 bytes each, in the order in which the entries first use them:
//!
//! | at | type | what |
//! |---|---|---|
//! | 0 | u64 | size in bytes, under 2^63 |
//! | 8 | u64 | its first hash; the others follow it |
//! | 16 | u64 | where its version begins in the strings |
//! | 24 | u64 | offset of its place in the mirror in the strings |
//! | 32 | u32 | the first entry that holds it: its origin knows the blob by that path; 2^32-1: by none |
//! | 36 | u32 | length of its version |
//! | 40 | u16 | length of its place in the mirror, the key of an object below the tenant's; 0: `blobs/ab/<digest>` |
//! | 42 | u8 | kind: 1 content, named by its digest · 2 origin, named by a key that is not stored |
//! | 43 | u8 | how the mirror keeps it: 0 as it is · 1 as one zstd frame a block |
//! | 44 | u8 | flags: 1 its SHA-256 is known · 2 the checks of its blocks are known · 4 it is a pack |
//! | 45 | 3 bytes | reserved |
//!
//! The hashes of a blob are, as far as it has them: a content blob's digest; its SHA-256 (flag 1); the checks of its blocks (flag
//! 2), one for each. Where the mirror keeps it in frames, its place there is followed by the end of each frame in the object, u64
//! each. The key of a blob of kind 2 is [`Key::origin_file`](crate::blob::Key::origin_file) of the source's name, its path, its
//! version and its SHA-256.
//!
//! A pack holds several files one after the other, without gaps, in the order of their entries. Its version is that of
//! each of them with its length, u16, before it; its entry is that of the first.
//!
//! **Hashes**, 32 bytes each, in the order of the blobs. **Strings**: the source's name; then of each entry its name
//! and its target; then of each blob its version, its place and the ends of its frames. A reader takes them from
//! wherever the records point.

mod binary;
mod decoder;
mod directories;
mod encoder;
mod entries;
pub(crate) mod escape;
mod hub_cache;
mod listing;
mod mirrored_listing;
mod name;
mod notes;
mod pack;
mod rejections;
mod row;
mod run;
mod shard;
mod sort;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use crate::error::{Error, Kind};

pub use decoder::Manifest;
pub use hub_cache::HubCache;
pub use listing::{ListedFile, Listing};
pub use mirrored_listing::{MirroredBlob, MirroredListing};
pub use notes::ListingNotes;
pub(crate) use pack::content_version;
pub use pack::{FileVersions, PackedFile};

pub(crate) use name::{MAX_NAME_BYTES, MAX_PATH_BYTES};

/// A part of a blob: what a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// The blob's number in the manifest.
    pub blob: u32,
    /// The offset of the slice in the blob, in bytes.
    pub offset: u64,
    /// The length, in bytes.
    pub len: u64,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node<'a> {
    /// A directory; its children are the entries of this range, sorted by name.
    Directory(Range<u32>),
    /// A regular file.
    File(Slice),
    /// A symbolic link with its target.
    Symlink(&'a [u8]),
}

/// One entry of a tree. Entry 0 is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name, byte for byte; empty for the root.
    pub name: &'a [u8],
    /// The entry that holds it; the root holds itself.
    pub parent: u32,
    /// When its content last changed at the origin: seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Whether the file may be executed.
    pub executable: bool,
    /// The kind of entry, with its content.
    pub node: Node<'a>,
}

fn corrupt(what: impl fmt::Display) -> Error {
    Error::new(Kind::Corrupt, format!("the manifest is damaged: {what}"))
}
