//! Rows: the entries of a listing, one after the other in the bytes of a sorted run.

use std::cmp::Ordering;

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The kind of a row. A directory comes before all else of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RowKind {
    Directory,
    /// A regular file. Its tail is its version.
    File,
    /// A regular file that may be executed; otherwise like a file.
    Program,
    /// A symbolic link. Its tail is its target.
    Symlink,
}

/// An entry of a listing, before it has its number in the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListingRow<'a> {
    /// The path with a NUL for each slash; empty for the root. So what is deeper in a tree, or follows in its order, is
    /// greater byte by byte.
    pub path: &'a [u8],
    /// The number of names in its path.
    pub depth: u16,
    pub what: RowKind,
    /// The size of a file, in bytes.
    pub size: u64,
    /// Seconds and nanoseconds since 1970. Of a directory without a time of its own, that of the newest below it.
    pub mtime: (i64, u32),
    /// Whether a directory's time is its own.
    pub dated: bool,
    /// Whether a directory will be there: it was asked for, or something below it was.
    pub kept: bool,
    pub sha256: Option<&'a [u8; 32]>,
    /// A version or a target.
    pub tail: &'a [u8],
}

/// The header of a row; its path, SHA-256 and tail follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RowHeader {
    size: U64,
    seconds: I64,
    nanoseconds: U32,
    tail: U32,
    path: U16,
    depth: U16,
    what: u8,
    flags: u8,
}

const DATED: u8 = 1;
const KEPT: u8 = 2;
const SHA256: u8 = 4;

impl<'a> ListingRow<'a> {
    /// A directory that is not kept yet.
    pub(super) fn directory(path: &'a [u8], depth: u16) -> Self {
        let (what, mtime) = (RowKind::Directory, (0, 0));
        Self { path, depth, what, size: 0, mtime, dated: false, kept: false, sha256: None, tail: b"" }
    }

    /// The last name.
    pub(super) fn name(&self) -> &'a [u8] {
        self.path.rsplit(|b| *b == 0).next().unwrap_or_default()
    }

    /// Whether the row is the directory that `child` lies in.
    pub(super) fn holds(&self, child: &ListingRow<'_>) -> bool {
        let parent = &child.path[..child.path.len() - child.name().len()];
        let parent = parent.strip_suffix(&[0]).unwrap_or(parent);
        self.what == RowKind::Directory && self.depth + 1 == child.depth && self.path == parent
    }

    /// The order of the format: breadth first, each directory's entries by name. What has one path stands together.
    pub(super) fn order(&self, other: &ListingRow<'_>) -> Ordering {
        self.sort_key().cmp(&other.sort_key()).then(self.what.cmp(&other.what))
    }

    /// The sort key of the row: its depth and path.
    pub(super) fn sort_key(&self) -> (u16, &[u8]) {
        (self.depth, self.path)
    }

    /// Appends it to `out`.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let flag = |flag: u8, set: bool| if set { flag } else { 0 };
        let head = RowHeader {
            size: self.size.into(),
            seconds: self.mtime.0.into(),
            nanoseconds: self.mtime.1.into(),
            tail: (self.tail.len() as u32).into(),
            path: (self.path.len() as u16).into(),
            depth: self.depth.into(),
            what: self.what as u8,
            flags: flag(DATED, self.dated) | flag(KEPT, self.kept) | flag(SHA256, self.sha256.is_some()),
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(self.path);
        out.extend_from_slice(self.sha256.map_or(&[], |hash| &hash[..]));
        out.extend_from_slice(self.tail);
    }

    /// Returns the number of bytes of a row that begins with `head`.
    pub(super) fn len(head: &[u8; ROW_HEADER_BYTES]) -> usize {
        let head: &RowHeader = zerocopy::transmute_ref!(head);
        let sha256 = if head.flags & SHA256 != 0 { 32 } else { 0 };
        ROW_HEADER_BYTES + usize::from(head.path.get()) + sha256 + head.tail.get() as usize
    }

    /// The row that `bytes` begins with. `None` for what [`put`](Self::put) never wrote.
    pub(super) fn get(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = RowHeader::ref_from_prefix(bytes).ok()?;
        let (path, mut rest) = rest.split_at_checked(head.path.get().into())?;
        let mut sha256 = None;
        if head.flags & SHA256 != 0 {
            let (hash, after) = rest.split_first_chunk()?;
            (sha256, rest) = (Some(hash), after);
        }
        let what = [RowKind::Directory, RowKind::File, RowKind::Program, RowKind::Symlink];
        Some(Self {
            path,
            depth: head.depth.get(),
            what: *what.get(usize::from(head.what))?,
            size: head.size.get(),
            mtime: (head.seconds.get(), head.nanoseconds.get()),
            dated: head.flags & DATED != 0,
            kept: head.flags & KEPT != 0,
            sha256,
            tail: rest.get(..head.tail.get() as usize)?,
        })
    }
}

/// The bytes that tell how long a row is.
pub(super) const ROW_HEADER_BYTES: usize = size_of::<RowHeader>();

/// The form of `path` in rows.
pub(super) fn key(path: &[u8]) -> Vec<u8> {
    swap(path, b'/', 0)
}

/// The path that [`key`] was made of.
pub(super) fn path(key: &[u8]) -> Vec<u8> {
    swap(key, 0, b'/')
}

fn swap(text: &[u8], from: u8, to: u8) -> Vec<u8> {
    text.iter().map(|b| if *b == from { to } else { *b }).collect()
}

/// Returns the number of names in `key`.
pub(super) fn depth(key: &[u8]) -> u16 {
    // The longest path has 2,048 of them.
    if key.is_empty() { 0 } else { 1 + key.iter().filter(|b| **b == 0).count() as u16 }
}
