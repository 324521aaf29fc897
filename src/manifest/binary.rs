//! The binary layout of a manifest's header and records, byte for byte as [`crate::manifest`] describes them.

use std::ops::Range;

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::corrupt;
use crate::block::Check;
use crate::error::{Error, Kind, Result};

/// The first bytes of every manifest.
pub(super) const MAGIC: [u8; 8] = *b"BDNFSMAN";
/// The version that this code writes, and the newest that it reads.
pub(super) const VERSION: u32 = 1;

/// Kinds of entries.
pub(super) const DIRECTORY: u8 = 1;
pub(super) const FILE: u8 = 2;
pub(super) const SYMLINK: u8 = 3;
/// The flag of an entry that may be executed.
pub(super) const EXECUTABLE: u8 = 1;

/// Kinds of blobs.
pub(super) const CONTENT: u8 = 1;
pub(super) const ORIGIN: u8 = 2;
/// The flags of a blob: its SHA-256 is known, its checks are known, it holds several files.
pub(super) const SHA256: u8 = 1;
pub(super) const CHECKS: u8 = 2;
pub(super) const PACK: u8 = 4;
/// The forms in which a mirror stores a blob.
pub(super) const PLAIN_ENCODING: u8 = 0;
pub(super) const FRAMES: u8 = 1;

/// The entry of a blob whose origin has no path for it.
pub(super) const NO_ENTRY: u32 = u32::MAX;
/// The size of the largest manifest, in bytes. Ten million mirrored files of up to 1 MiB take 2 to 3 GB, 200 to 300 bytes each, and
/// the checks of 64 TiB take 2 GiB. A larger one would take minutes to fetch, and the address space of whoever opens it.
pub(super) const MAX_MANIFEST_BYTES: u64 = 4 << 30;
/// The size of the largest blob, in bytes: what a file's offset (`off_t`) can tell.
pub(super) const MAX_BLOB_BYTES: u64 = i64::MAX as u64;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    pub magic: [u8; 8],
    pub version: U32,
    pub entries: U32,
    pub blobs: U32,
    pub source_len: U32,
    pub hashes: U64,
    pub strings: U64,
    pub files: U64,
    pub bytes: U64,
    pub largest: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct EntryRecord {
    pub name: U64,
    pub parent: U32,
    pub name_len: U16,
    pub kind: u8,
    pub flags: u8,
    pub a: U64,
    pub b: U64,
    pub blob: U32,
    pub nanoseconds: U32,
    pub seconds: I64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlobRecord {
    pub size: U64,
    pub hashes: U64,
    pub version: U64,
    pub object_key: U64,
    pub entry: U32,
    pub version_len: U32,
    pub object_key_len: U16,
    pub kind: u8,
    pub encoding: u8,
    pub flags: u8,
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<Header>() == 64);
const _: () = assert!(size_of::<EntryRecord>() == 48);
const _: () = assert!(size_of::<BlobRecord>() == 48);

/// The byte ranges of a manifest's sections.
pub(super) struct Sections {
    pub entries: Range<usize>,
    pub blobs: Range<usize>,
    pub hashes: Range<usize>,
    pub strings: Range<usize>,
}

/// Checks the size of a manifest, in bytes.
///
/// # Errors
/// [`Kind::Unsupported`] when it is above [`MAX_MANIFEST_BYTES`].
pub(super) fn check_size(len: u64) -> Result<()> {
    if len <= MAX_MANIFEST_BYTES {
        return Ok(());
    }
    let text = format!(
        "a manifest has {len} bytes, and {MAX_MANIFEST_BYTES} at the most: its source has too many files, or is too large"
    );
    Err(Error::new(Kind::Unsupported, text))
}

impl Header {
    /// The number of records in each section, and the size of one, in bytes.
    fn records(&self) -> [(u64, usize); 4] {
        [
            (u64::from(self.entries.get()), size_of::<EntryRecord>()),
            (u64::from(self.blobs.get()), size_of::<BlobRecord>()),
            (self.hashes.get(), size_of::<Check>()),
            (self.strings.get(), 1),
        ]
    }

    /// The size of the manifest that begins with this header, in bytes.
    pub(super) fn manifest_bytes(&self) -> u64 {
        let sections = self.records().map(|(count, size)| count.saturating_mul(size as u64));
        sections.into_iter().fold(size_of::<Self>() as u64, u64::saturating_add)
    }

    /// The sections of a manifest that begins with this header and has `len` bytes in all.
    pub(super) fn sections(&self, len: usize) -> Result<Sections> {
        if self.magic != MAGIC {
            return Err(corrupt("it does not begin like one"));
        }
        match self.version.get() {
            VERSION => {}
            0 => return Err(corrupt("it has no version")),
            newer => {
                let text =
                    format!("the manifest has version {newer}; this bdnfs reads up to {VERSION}, update it");
                return Err(Error::new(Kind::Unsupported, text));
            }
        }
        check_size(len as u64)?;
        if self.entries.get() == 0 {
            return Err(corrupt("it has no root"));
        }
        let mut end = size_of::<Self>();
        let mut next = |(count, size): (u64, usize)| {
            let start = end;
            end = usize::try_from(count).ok()?.checked_mul(size)?.checked_add(start)?;
            Some(start..end)
        };
        let [entries, blobs, hashes, strings] = self.records().map(&mut next);
        match (entries, blobs, hashes, strings) {
            (Some(entries), Some(blobs), Some(hashes), Some(strings)) if strings.end == len => {
                Ok(Sections { entries, blobs, hashes, strings })
            }
            _ => Err(corrupt(format!("size {len} does not match the header"))),
        }
    }
}
