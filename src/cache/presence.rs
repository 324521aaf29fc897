//! Presence: which blocks of a part are there, in memory and on the disk.
//!
//! The map beside a part:
//!
//! ```text
//!   0   8  magic "bdnfsmap"
//!   8   4  version, 1                       all numbers little-endian
//!  12   4  zero
//!  16   8  size of the blob in bytes
//!  24  32  stamp: the life of the machine in which the map was last written
//!  56   8  zero
//!  64   .  for each 64 blocks a pair of 64-bit words: one bit a block, present; one bit a block, doubted
//!   .  32  for each block: its check, valid where one of its bits is set
//! ```
//!
//! Bits are written after the content, but neither is made durable at once: that would cost a flush a block. So a
//! present bit is believed only under the stamp it was written in, when all writes before it are still in the page
//! cache or on the disk. Under another stamp it becomes a doubted one: the block counts as there only once its bytes
//! have been held against its check again. A bit that reached the disk before its content, or its check, then costs
//! one block, never a wrong byte.
//!
//! The map has no check of its own. But a check of zeros is none that a block has: a bit set without one is rot, and not believed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::block;
use crate::digest::Digest;

/// The bytes before the bits.
pub const MAP_HEADER_BYTES: u64 = 64;
const MAGIC: &[u8; 8] = b"bdnfsmap";
const VERSION: u32 = 1;

/// The presence of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The block is absent.
    Absent,
    /// The map says that the block is present, but was written before an unclean stop: it is verified before use.
    Doubted,
    /// The block is present.
    Present,
}

/// The bitmap of the blocks of one blob that are present. Every word is read and written whole, so no lock is needed.
#[derive(Debug)]
pub struct Presence {
    blocks: u64,
    present: Vec<AtomicU64>,
    doubted: Vec<AtomicU64>,
    missing: AtomicU64,
}

fn words(blocks: u64) -> usize {
    blocks.div_ceil(64) as usize
}

impl Presence {
    /// The presence of a blob with `blocks` blocks, all of them absent.
    pub fn none(blocks: u64) -> Self {
        let zeros = || (0..words(blocks)).map(|_| AtomicU64::new(0)).collect();
        Self { blocks, present: zeros(), doubted: zeros(), missing: AtomicU64::new(blocks) }
    }

    /// The presence that the words of a map claim; all of it doubted, unless `believed`: written under the present stamp.
    fn claimed(blocks: u64, pairs: &[u8], believed: bool) -> Self {
        let presence = Self::none(blocks);
        for (index, pair) in pairs.as_chunks::<16>().0.iter().enumerate().take(words(blocks)) {
            let valid = match blocks - index as u64 * 64 {
                left @ 0..64 => (1 << left) - 1,
                _ => u64::MAX,
            };
            let pair = u128::from_le_bytes(*pair);
            let (present, doubted) = (pair as u64 & valid, (pair >> 64) as u64 & valid);
            let (present, doubted) =
                if believed { (present, doubted & !present) } else { (0, present | doubted) };
            presence.present[index].store(present, Relaxed);
            presence.doubted[index].store(doubted, Relaxed);
            presence.missing.fetch_sub(u64::from(present.count_ones()), Relaxed);
        }
        presence
    }

    /// The presence of block `index`.
    pub fn state(&self, index: u64) -> BlockState {
        let (word, bit) = ((index / 64) as usize, 1 << (index % 64));
        // Acquire pairs with the Release in `set_present`: a thread that sees the bit sees the bytes written before it.
        if self.present[word].load(std::sync::atomic::Ordering::Acquire) & bit != 0 {
            BlockState::Present
        } else if self.doubted[word].load(Relaxed) & bit != 0 {
            BlockState::Doubted
        } else {
            BlockState::Absent
        }
    }

    /// Marks block `index` present or, with `present` false, a doubted one absent. True if that changed.
    pub fn set_present(&self, index: u64, present: bool) -> bool {
        let (word, bit) = ((index / 64) as usize, 1 << (index % 64));
        let mut changed = false;
        if present {
            let before = self.present[word].fetch_or(bit, std::sync::atomic::Ordering::Release);
            changed = before & bit == 0;
            if changed {
                self.missing.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
            }
        }
        self.doubted[word].fetch_and(!bit, Relaxed);
        changed
    }

    /// Marks a present block as doubted.
    pub fn doubt(&self, index: u64) {
        let (word, bit) = ((index / 64) as usize, 1 << (index % 64));
        self.doubted[word].fetch_or(bit, Relaxed);
        if self.present[word].fetch_and(!bit, std::sync::atomic::Ordering::AcqRel) & bit != 0 {
            self.missing.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        }
    }

    /// Marks the blocks as absent whose `checks`, those of the word that block `first` begins, are zeros.
    pub fn forget_unchecked(&self, first: u64, checks: &[u8]) {
        for (index, check) in (first..).zip(checks.as_chunks::<32>().0) {
            if *check == [0; 32] {
                self.doubt(index);
                self.set_present(index, false);
            }
        }
    }

    /// Returns the number of missing blocks, the doubted ones among them.
    pub fn missing(&self) -> u64 {
        self.missing.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Returns the number of blocks of the blob.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The pair of words that speaks of block `index`, and where it lies in the map.
    pub fn pair(&self, index: u64) -> (u64, [u8; 16]) {
        let word = (index / 64) as usize;
        let (present, doubted) = (self.present[word].load(Relaxed), self.doubted[word].load(Relaxed));
        let pair = u128::from(present) | u128::from(doubted) << 64;
        (MAP_HEADER_BYTES + word as u64 * 16, pair.to_le_bytes())
    }

    /// All pairs, as they lie in the map behind its header.
    pub fn pairs(&self) -> Vec<u8> {
        (0..self.blocks).step_by(64).flat_map(|index| self.pair(index).1).collect()
    }
}

/// Returns the number of bytes that the words of a blob with `blocks` blocks take in a map.
pub fn bits_len(blocks: u64) -> u64 {
    words(blocks) as u64 * 16
}

/// The offset of the check of block `index` in a map.
pub fn check_at(blocks: u64, index: u64) -> u64 {
    MAP_HEADER_BYTES + bits_len(blocks) + index * 32
}

/// A map's header.
pub fn header(size: u64, stamp: &Digest) -> [u8; MAP_HEADER_BYTES as usize] {
    let mut bytes = [0; MAP_HEADER_BYTES as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&size.to_le_bytes());
    bytes[24..56].copy_from_slice(&stamp.0);
    bytes
}

/// The presence that a map's `bytes` (header and words) claim for a blob of `size` bytes; `None` when they are no map.
pub fn read(bytes: &[u8], size: u64, stamp: &Digest) -> Option<Presence> {
    let head = bytes.get(..MAP_HEADER_BYTES as usize)?;
    let written = Digest(*head.get(24..56)?.first_chunk()?);
    if head != header(size, &written) {
        return None;
    }
    let blocks = block::count(size);
    let pairs = bytes.get(MAP_HEADER_BYTES as usize..(MAP_HEADER_BYTES + bits_len(blocks)) as usize)?;
    Some(Presence::claimed(blocks, pairs, written == *stamp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn map_read_back_has_the_settled_blocks(blocks in 1u64..300, there in proptest::collection::vec(any::<u64>(), 0..80)) {
            let size = blocks * block::BLOCK - 5;
            let stamp = Digest::of(b"now");
            let presence = Presence::none(blocks);
            let mut map = header(size, &stamp).to_vec();
            map.resize((MAP_HEADER_BYTES + bits_len(blocks)) as usize, 0);
            for index in there.iter().map(|i| i % blocks) {
                presence.set_present(index, true);
                let (at, pair) = presence.pair(index);
                map[at as usize..at as usize + 16].copy_from_slice(&pair);
            }
            let again = read(&map, size, &stamp).expect("a map");
            let later = read(&map, size, &Digest::of(b"later")).expect("a map");
            prop_assert_eq!(again.missing(), presence.missing());
            prop_assert_eq!(later.missing(), blocks);
            for index in 0..blocks {
                prop_assert_eq!(again.state(index), presence.state(index));
                let doubted = presence.state(index) == BlockState::Present;
                prop_assert_eq!(later.state(index), if doubted { BlockState::Doubted } else { BlockState::Absent });
            }
        }

        #[test]
        fn map_of_hostile_bytes_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), size in 1u64..1 << 40) {
            prop_assert!(read(&bytes, size, &Digest::of(b"")).is_none());
        }
    }

    #[test]
    fn doubted_block_settles_either_way() {
        let presence = Presence::claimed(3, &0b111u128.to_le_bytes(), false);
        assert!(presence.set_present(0, true));
        assert!(!presence.set_present(0, true));
        presence.set_present(1, false);
        assert_eq!(
            [0, 1, 2].map(|i| presence.state(i)),
            [BlockState::Present, BlockState::Absent, BlockState::Doubted]
        );
        assert_eq!(presence.missing(), 2);
    }
}
