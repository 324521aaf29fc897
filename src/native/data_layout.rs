//! The layout of a native snapshot: which file lies on which device, and where there. Pure, and the same for the same manifest.

use std::collections::HashSet;

use crate::block::BLOCK;
use crate::error::{Error, Kind, Result};
use crate::manifest::{Manifest, Node, Slice};

/// The size of a block of the image and of its pack, in bits: 512 bytes, the smallest that the kernel takes, so that small files
/// waste little.
pub const SMALL_BLOCK_BITS: u8 = 9;
/// The block size where the cache's disk can't be read in smaller pieces past the page cache.
pub const PAGE_BLOCK_BITS: u8 = 12;
/// The most devices that an image can have beside itself.
pub const MAX_DEVICES: usize = u16::MAX as usize;
/// Content of at most so many bytes goes to the pack: a device for each would be a file that the kernel opens while it mounts.
const MAX_PACKED_BYTES: u64 = BLOCK;
/// The largest chunk that an inode can tell, in bits above a block: its format has five bits for that.
const MAX_CHUNK_BITS: u32 = 31;
/// The smallest chunk of a large file, in bits, and the most chunks that it has: what its last block lacks to a whole one can't be
/// read from its own device, where the kernel takes the file's end for a failure, so the last chunk is copied to the pack.
const MIN_CHUNK_BITS: u32 = 16;
const MAX_CHUNKS: u64 = 1 << 12;
/// Not in the pack: neither the file nor, so far, its blob.
const NOT_PACKED: u32 = u32::MAX;

/// The addresses of all files' contents.
#[derive(Debug)]
pub struct DataLayout {
    /// The size of a block in bits.
    pub(super) block_bits: u8,
    /// For each entry, the block of the pack where what it has there begins.
    starts: Vec<u32>,
    /// The files in the pack, in its order.
    packed: Vec<PackedPart>,
    pack_blocks: u64,
    /// The blobs that are devices, after the pack.
    blobs: Vec<u32>,
    /// For each blob its number among them, from 1; 0 for none.
    devices: Vec<u16>,
}

/// The part of a file that lies in the pack.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedPart {
    /// The place in the pack, in blocks.
    block: u32,
    /// The file.
    pub entry: u32,
    /// The first byte in the file; it reaches to the file's end.
    pub from: u64,
}

/// The address of a part of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkAddress {
    /// The device.
    pub device: u16,
    /// The block there.
    pub block: u32,
}

/// The chunks of a file that is not empty: all of them have one size, but the last, which may be shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    /// The size of a chunk, in bits.
    pub bits: u32,
    /// The offset of each.
    pub addresses: Vec<ChunkAddress>,
}

/// The part of a file that lies on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePart {
    /// The first byte in the file.
    pub from: u64,
    /// The first byte on the device.
    pub at: u64,
    /// The length, in bytes.
    pub len: u64,
}

impl DataLayout {
    /// The layout of `manifest` in blocks of 2^`block_bits` bytes.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for what an image can't hold, [`Kind::Corrupt`] when the manifest is.
    pub fn new(manifest: &Manifest, block_bits: u8) -> Result<Self> {
        let mut layout = Self {
            block_bits,
            starts: vec![NOT_PACKED; manifest.entries() as usize],
            packed: Vec::new(),
            pack_blocks: 0,
            blobs: Vec::new(),
            devices: vec![0; manifest.blobs() as usize],
        };
        // Files with the same blob share what of it is in the pack.
        let mut placed = vec![NOT_PACKED; manifest.blobs() as usize];
        for index in 0..manifest.entries() {
            let Node::File(slice) = manifest.entry(index)?.node else { continue };
            let size = manifest.blob_size(slice.blob)?;
            let from = if is_packed(slice, size) { 0 } else { layout.add_device(slice.blob, size)? };
            if from == slice.len {
                continue;
            }
            let known = placed[slice.blob as usize];
            let start = match known {
                NOT_PACKED => layout.pack(index, from, slice.len)?,
                known => known,
            };
            layout.starts[index as usize] = start;
            if slice.len == size {
                placed[slice.blob as usize] = start;
            }
        }
        Ok(layout)
    }

    /// Makes blob `blob` a device, and returns the offset from which on it can't be read there.
    fn add_device(&mut self, blob: u32, size: u64) -> Result<u64> {
        if size.div_ceil(1 << self.block_bits) >= u64::from(u32::MAX) {
            return Err(too_large());
        }
        if self.devices[blob as usize] == 0 {
            self.blobs.push(blob);
            // One device less than the limit: the pack's.
            let number =
                u16::try_from(self.blobs.len()).ok().filter(|number| usize::from(*number) < MAX_DEVICES);
            self.devices[blob as usize] = number.ok_or_else(|| {
                let text =
                    format!("its more than {} large files are too many devices for EROFS", MAX_DEVICES - 1);
                Error::new(Kind::Unsupported, text)
            })?;
        }
        Ok(if size.is_multiple_of(1 << self.block_bits) {
            size
        } else {
            size >> chunk_bits(size) << chunk_bits(size)
        })
    }

    /// Adds file `entry` of `len` bytes to the pack, from byte `from` on, and returns its block there.
    fn pack(&mut self, entry: u32, from: u64, len: u64) -> Result<u32> {
        let block = u32::try_from(self.pack_blocks).map_err(|_| too_large())?;
        self.packed.push(PackedPart { block, entry, from });
        self.pack_blocks += (len - from).div_ceil(1 << self.block_bits);
        if self.pack_blocks < u64::from(u32::MAX) { Ok(block) } else { Err(too_large()) }
    }

    /// The length of the pack, in bytes; 0 where nothing is packed.
    pub fn pack_bytes(&self) -> u64 {
        self.pack_blocks << self.block_bits
    }

    /// Whether the first device is the pack.
    pub fn has_pack(&self) -> bool {
        self.pack_blocks > 0
    }

    /// The blobs that are devices by themselves, in the order of the devices.
    pub fn device_blobs(&self) -> &[u32] {
        &self.blobs
    }

    /// The chunks of entry `index`, whose content is `slice`; `None` where it is empty.
    pub(super) fn chunks(&self, index: u32, slice: Slice) -> Option<Chunks> {
        let packed = match self.starts[index as usize] {
            NOT_PACKED => None,
            block => Some(ChunkAddress { device: 1, block }),
        };
        let device = match self.devices[slice.blob as usize] {
            0 => None,
            number => Some(number + u16::from(self.has_pack())),
        };
        let whole_bits = slice.len.next_power_of_two().trailing_zeros().max(self.block_bits.into());
        match (device, packed) {
            (_, None) if slice.len == 0 => None,
            (None, None) => None,
            (None, Some(address)) => Some(Chunks { bits: whole_bits, addresses: vec![address] }),
            (Some(device), None) => {
                // What an inode can tell of a chunk: a larger file has several.
                let bits = whole_bits.min(MAX_CHUNK_BITS + u32::from(self.block_bits));
                Some(Chunks {
                    bits,
                    addresses: self.device_chunks(device, slice.len.div_ceil(1 << bits), bits).collect(),
                })
            }
            (Some(device), Some(last)) => {
                let bits = chunk_bits(slice.len);
                let addresses = self.device_chunks(device, slice.len >> bits, bits);
                Some(Chunks { bits, addresses: addresses.chain([last]).collect() })
            }
        }
    }

    /// The first `count` chunks of `device`, of 2^`bits` bytes each.
    fn device_chunks(
        &self,
        device: u16,
        count: u64,
        bits: u32,
    ) -> impl Iterator<Item = ChunkAddress> + use<> {
        let block_bits = self.block_bits;
        (0..count).map(move |chunk| ChunkAddress { device, block: (chunk << bits >> block_bits) as u32 })
    }

    /// The files of which bytes lie in one of `ranges` of the pack, each its first byte and its length. Files with the same content
    /// share one place.
    pub(super) fn packed_files(&self, ranges: &[(u64, u64)]) -> Vec<u32> {
        let parts = ranges
            .iter()
            .flat_map(|(start, len)| self.packed_from(*start).take_while(move |(at, _)| *at < start + len));
        let blocks: HashSet<u32> = parts.map(|(_, part)| part.block).collect();
        let lies_there = |block: &u32| *block != NOT_PACKED && blocks.contains(block);
        (0..).zip(&self.starts).filter(|(_, block)| lies_there(block)).map(|(entry, _)| entry).collect()
    }

    /// The part of entry `index`, a file of `len` bytes, that lies in the pack, or else on the device that is its blob.
    pub(super) fn device_part(&self, index: u32, len: u64, in_pack: bool) -> DevicePart {
        let block = self.starts[index as usize];
        let packed = self.packed.binary_search_by_key(&block, |part| part.block);
        let from = packed.map_or(len, |at| self.packed[at].from);
        if in_pack {
            DevicePart { from, at: u64::from(block) << self.block_bits, len: len - from }
        } else {
            DevicePart { from: 0, at: 0, len: from }
        }
    }

    /// The files in the pack from byte `start` on, in order, each with its offset there.
    pub(super) fn packed_from(&self, start: u64) -> impl Iterator<Item = (u64, PackedPart)> + '_ {
        let begin = |part: &PackedPart| u64::from(part.block) << self.block_bits;
        let first = self.packed.partition_point(|part| begin(part) <= start).saturating_sub(1);
        self.packed[first..].iter().map(move |part| (begin(part), *part))
    }
}

/// Whether a slice of a blob of `size` bytes goes to the pack: it is small, or only a part of the blob, which may begin anywhere.
fn is_packed(slice: Slice, size: u64) -> bool {
    size <= MAX_PACKED_BYTES || slice.len != size
}

/// The size of the chunks of a large file of `size` bytes, in bits.
fn chunk_bits(size: u64) -> u32 {
    size.div_ceil(MAX_CHUNKS).next_power_of_two().trailing_zeros().max(MIN_CHUNK_BITS)
}

fn too_large() -> Error {
    Error::new(Kind::Unsupported, "its files are too large for an EROFS image")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{ListedFile, Listing};
    use crate::source::Patterns;

    /// A manifest of files of these sizes.
    fn manifest(sizes: &[u64]) -> Manifest {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut listing = Listing::new("file:///x", Patterns::default(), scratch.path());
        for (number, size) in sizes.iter().enumerate() {
            let path = format!("{number:05}");
            let version = path.as_bytes();
            let (size, mtime, executable) = (*size, (0, 0), false);
            listing.file(ListedFile {
                path: path.as_bytes(),
                size,
                mtime,
                executable,
                version,
                sha256: None,
            });
        }
        let mut bytes = Vec::new();
        listing.finish(&mut bytes).expect("written");
        Manifest::from_bytes(bytes).expect("a manifest")
    }

    fn chunks(manifest: &Manifest, layout: &DataLayout, index: u32) -> Option<Chunks> {
        let Node::File(slice) = manifest.entry(index).expect("an entry").node else { return None };
        layout.chunks(index, slice)
    }

    #[test]
    fn data_layout_of_a_file_larger_than_the_largest_chunk_has_several() {
        for (size, count) in [(1 << 40, 1), ((1 << 40) + 512, 2), (1 << 41, 2)] {
            let manifest = manifest(&[size]);
            let Ok(layout) = DataLayout::new(&manifest, SMALL_BLOCK_BITS) else {
                assert_eq!(size, 1 << 41, "an index tells fewer blocks");
                continue;
            };
            let found = chunks(&manifest, &layout, 1).expect("content");
            assert!(found.bits - u32::from(SMALL_BLOCK_BITS) <= MAX_CHUNK_BITS, "{size}");
            let blocks: Vec<_> = found.addresses.iter().map(|address| u64::from(address.block)).collect();
            assert_eq!(blocks, (0..count).map(|chunk| chunk << (found.bits - 9)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn data_layout_packs_small_files_and_incomplete_last_blocks() {
        let manifest = manifest(&[700, 0, 512, 2 << 20, (2 << 20) + 65536 + 3]);
        let layout = DataLayout::new(&manifest, SMALL_BLOCK_BITS).expect("it fits");
        let at = |device, block| ChunkAddress { device, block };
        let only = |address, bits| Some(Chunks { bits, addresses: vec![address] });
        assert_eq!(chunks(&manifest, &layout, 1), only(at(1, 0), 10));
        assert_eq!(chunks(&manifest, &layout, 2), None);
        assert_eq!(chunks(&manifest, &layout, 3), only(at(1, 2), 9));
        assert_eq!(chunks(&manifest, &layout, 4), only(at(2, 0), 21));
        let large = chunks(&manifest, &layout, 5).expect("chunks");
        assert_eq!((large.bits, large.addresses.len()), (16, 34));
        assert_eq!((large.addresses[32], large.addresses[33]), (at(3, 32 * 128), at(1, 3)));
        assert_eq!((layout.pack_bytes(), layout.device_blobs().len()), (4 * 512, 2));
        let packed: Vec<_> = layout.packed_from(1024).map(|(at, part)| (at, part.entry, part.from)).collect();
        assert_eq!(packed, [(1024, 3, 0), (1536, 5, (2 << 20) + 65536)]);
        let large = (2 << 20) + 65536;
        let small = |in_pack| layout.device_part(3, 512, in_pack);
        assert_eq!(small(true), DevicePart { from: 0, at: 1024, len: 512 });
        assert_eq!(small(false).len, 0, "all of it is packed");
        let part = |in_pack| layout.device_part(5, large + 3, in_pack);
        assert_eq!(part(true), DevicePart { from: large, at: 1536, len: 3 });
        assert_eq!(part(false), DevicePart { from: 0, at: 0, len: large });
        assert_eq!(layout.device_part(4, 2 << 20, false), DevicePart { from: 0, at: 0, len: 2 << 20 });
    }

    #[test]
    fn packed_files_of_a_range_include_those_that_share_a_place() {
        let manifest = manifest(&[700, 512, 700, 512]);
        let mut layout = DataLayout::new(&manifest, SMALL_BLOCK_BITS).expect("it fits");
        // As if the third file had the blob of the first.
        layout.starts[3] = layout.starts[1];
        assert_eq!(layout.packed_files(&[(0, 1)]), [1, 3]);
        assert_eq!(layout.packed_files(&[(1024, 512)]), [2]);
        assert_eq!(layout.packed_files(&[(512, 1), (5 * 512, 512)]), [1, 3, 4]);
        assert!(layout.packed_files(&[]).is_empty());
    }

    #[test]
    fn data_layout_of_large_files_of_whole_blocks_has_no_pack() {
        let layout = DataLayout::new(&manifest(&[2 << 20]), SMALL_BLOCK_BITS).expect("it fits");
        assert!(!layout.has_pack() && layout.pack_bytes() == 0);
    }
}
