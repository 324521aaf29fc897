//! The binary layout of an EROFS image, as the kernel's `fs/erofs/erofs_fs.h` has it. All integers are little-endian.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes, Unaligned};

/// The superblock's offset in the image, in bytes; it is 128 bytes long.
pub(super) const SUPERBLOCK_OFFSET: u64 = 1024;
pub(super) const MAGIC: u32 = 0xE0F5_E1E2;
/// Features without which a kernel can't read the image: files in chunks, and other devices.
pub(super) const CHUNKED_FILE: u32 = 0x4;
pub(super) const DEVICE_TABLE: u32 = 0x8;
/// The size of a device's slot, and the unit of the table's offset.
pub(super) const DEVICE_SLOT_BYTES: u64 = 128;
/// The unit of inode numbers, in bytes.
pub(super) const INODE_SLOT_BYTES: u64 = 32;
/// The layouts of an inode's data, in a 64-byte inode's format: blocks of their own, after the inode, in chunks.
pub(super) const FLAT_PLAIN: u16 = 1;
pub(super) const FLAT_INLINE: u16 = 1 | 2 << 1;
pub(super) const CHUNK_BASED: u16 = 1 | 4 << 1;
/// The flag of chunks that name their device. The lower five bits are the chunk's size: so many times a block is doubled.
pub(super) const CHUNK_INDEXES: u16 = 0x20;
/// The index of the name prefix `user.` of extended attributes.
pub(super) const XATTR_USER: u8 = 1;
/// Kinds of directory entries.
pub(super) const REGULAR: u8 = 1;
pub(super) const DIRECTORY: u8 = 2;
pub(super) const SYMLINK: u8 = 7;

#[derive(IntoBytes, Immutable, Unaligned, Default)]
#[repr(C)]
pub(super) struct Superblock {
    pub magic: U32,
    pub checksum: U32,
    pub feature_compat: U32,
    pub block_bits: u8,
    pub extension_slots: u8,
    pub root: U16,
    pub inodes: U64,
    pub epoch: U64,
    pub epoch_nanoseconds: U32,
    pub blocks: U32,
    pub metadata_block: U32,
    pub xattr_block: U32,
    pub uuid: [u8; 16],
    pub volume_name: [u8; 16],
    pub feature_incompat: U32,
    pub compression: U16,
    pub devices: U16,
    pub device_table: U16,
    pub directory_block_bits: u8,
    pub reserved: [u8; 5],
    pub packed_inode: U64,
    pub reserved_end: [[u8; 8]; 3],
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct DeviceSlot {
    pub tag: [[u8; 32]; 2],
    pub blocks: U32,
    pub mapped_block: U32,
    pub reserved: [[u8; 28]; 2],
}

/// An inode with a time of its own.
#[derive(IntoBytes, Immutable, Unaligned, Default)]
#[repr(C)]
pub(super) struct Inode {
    pub format: U16,
    pub xattr_count: U16,
    pub mode: U16,
    pub reserved: U16,
    pub size: U64,
    /// The first block, or the format of its chunks.
    pub place: U32,
    pub number: U32,
    pub uid: U32,
    pub gid: U32,
    pub mtime: U64,
    pub mtime_nanoseconds: U32,
    pub links: U32,
    pub reserved_end: [u8; 16],
}

/// The entry of each chunk, behind a chunked inode.
#[derive(IntoBytes, Immutable, Unaligned, Default)]
#[repr(C)]
pub(super) struct ChunkIndex {
    pub block_high: U16,
    pub device: U16,
    pub block: U32,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct DirectoryEntry {
    pub inode: U64,
    pub name_offset: U16,
    pub kind: u8,
    pub reserved: u8,
}

/// The header of an inode's extended attributes.
#[derive(IntoBytes, Immutable, Unaligned, Default)]
#[repr(C)]
pub(super) struct XattrHeader {
    pub name_filter: U32,
    pub shared: u8,
    pub reserved: [u8; 7],
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct XattrEntry {
    pub name_len: u8,
    pub prefix: u8,
    pub value_len: U16,
}

const _: () = {
    assert!(size_of::<Superblock>() == 128 && size_of::<DeviceSlot>() == DEVICE_SLOT_BYTES as usize);
    assert!(size_of::<Inode>() == 64 && size_of::<ChunkIndex>() == 8);
    assert!(size_of::<DirectoryEntry>() == 12 && size_of::<XattrHeader>() == 12);
};
