//! Inodes: one entry of a snapshot with its mode, its extended attributes, and the place of the rest of it.

use zerocopy::IntoBytes;

use super::data_layout::Chunks;
use super::erofs::{self, ChunkIndex, Inode, XattrEntry, XattrHeader};
use crate::manifest::{Entry, Node};

/// The alignment of extended attributes, in bytes.
const XATTR_ALIGN: usize = 4;

/// Extended attributes as they lie behind an inode; empty where there are none.
#[derive(Debug, Default)]
pub(super) struct Xattrs(Vec<u8>);

impl Xattrs {
    /// Adds `user.<name>`.
    pub(super) fn add(&mut self, name: &str, value: &[u8]) {
        if self.0.is_empty() {
            self.0.extend_from_slice(XattrHeader::default().as_bytes());
        }
        // Names are constants; the longest value is a source with a path.
        let value = &value[..value.len().min(u16::MAX.into())];
        let entry = XattrEntry {
            name_len: name.len() as u8,
            prefix: erofs::XATTR_USER,
            value_len: (value.len() as u16).into(),
        };
        self.0.extend_from_slice(entry.as_bytes());
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(XATTR_ALIGN), 0);
    }

    /// The encoded bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The length of the attributes as an inode stores it: in units, of which the header is one.
    fn count(&self) -> u16 {
        let behind = self.0.len().checked_sub(size_of::<XattrHeader>());
        behind.map_or(0, |bytes| (bytes / XATTR_ALIGN + 1) as u16)
    }
}

/// The permission bits of `entry`, as a mount for everybody or for one user shows them.
pub(super) fn mode(entry: &Entry<'_>, allow_other: bool) -> u16 {
    let (kind, permissions) = match entry.node {
        // The kernel ignores the bits of a symbolic link.
        Node::Symlink(_) => return (libc::S_IFLNK | 0o777) as u16,
        Node::Directory(_) => (libc::S_IFDIR, 0o555),
        Node::File(_) => (libc::S_IFREG, if entry.executable { 0o555 } else { 0o444 }),
    };
    (kind | permissions & if allow_other { 0o777 } else { 0o700 }) as u16
}

/// The data behind an inode and its attributes.
pub(super) enum Tail {
    /// Nothing: the file is empty, or its content, of so many bytes, begins with a block of the image.
    Blocks { len: u64, first: u32 },
    /// A directory's or link's content.
    Inline(Vec<u8>),
    /// The chunks of a file of so many bytes, in blocks of the image.
    Chunks { len: u64, chunks: Chunks, block_bits: u8 },
}

impl Tail {
    /// The layout, the size and the place that the inode tells.
    fn described(&self) -> (u16, u64, u32) {
        match self {
            Self::Blocks { len, first } => (erofs::FLAT_PLAIN, *len, *first),
            Self::Inline(content) => (erofs::FLAT_INLINE, content.len() as u64, 0),
            // The five bits hold it: no chunk is larger.
            Self::Chunks { len, chunks, block_bits } => {
                let bits = chunks.bits - u32::from(*block_bits);
                (erofs::CHUNK_BASED, *len, u32::from(erofs::CHUNK_INDEXES) | bits)
            }
        }
    }
}

/// The bytes that `count` chunks take behind an inode whose length, with all before them, is `len`.
pub(super) fn chunk_bytes(len: u64, count: usize) -> u64 {
    let size = size_of::<ChunkIndex>() as u64;
    len.next_multiple_of(size) - len + count as u64 * size
}

/// The inode `number` of `entry` with the data behind it.
pub(super) fn encode(
    entry: &Entry<'_>,
    number: u32,
    (mode, uid, gid): (u16, u32, u32),
    xattrs: &Xattrs,
    tail: &Tail,
) -> Vec<u8> {
    let (format, size, place) = tail.described();
    let inode = Inode {
        format: format.into(),
        xattr_count: xattrs.count().into(),
        mode: mode.into(),
        size: size.into(),
        place: place.into(),
        number: number.into(),
        uid: uid.into(),
        gid: gid.into(),
        mtime: (entry.mtime.0 as u64).into(),
        mtime_nanoseconds: entry.mtime.1.into(),
        links: 1.into(),
        ..Inode::default()
    };
    let mut bytes = inode.as_bytes().to_vec();
    bytes.extend_from_slice(xattrs.bytes());
    match tail {
        Tail::Blocks { .. } => {}
        Tail::Inline(content) => bytes.extend_from_slice(content),
        Tail::Chunks { chunks, .. } => {
            bytes.resize(bytes.len().next_multiple_of(size_of::<ChunkIndex>()), 0);
            for address in &chunks.addresses {
                let (device, block) = (address.device.into(), address.block.into());
                bytes.extend_from_slice(ChunkIndex { device, block, ..ChunkIndex::default() }.as_bytes());
            }
        }
    }
    bytes
}
