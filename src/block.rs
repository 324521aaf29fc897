//! Blocks: the unit of verification and of presence.
//!
//! A blob is cut into blocks of 1 MiB, the last one shorter. A block's [`Check`] is the chaining value of
//! its subtree in the BLAKE3 tree of the whole blob, so the checks of all blocks combine to the blob's own
//! digest: a reader that trusts the digest can prove the list, and with the list it can verify each block
//! alone, in any order, on any thread. (BLAKE3 specification, section 2.1: a subtree whose length is a power
//! of two chunks has a chaining value of its own; 1 MiB is 1,024 chunks.)
//!
//! Bytes that crossed a wire become a [`Verified`] in one place only, [`Arrival::verify`], and only a `Verified`
//! can be stored or given to a reader. Where nothing is known beforehand that a block could be held against, a [`FRAGMENT`] of one
//! may be given to a reader, and is never stored.

use std::ops::Range;

use blake3::hazmat::{self, HasherExt, Mode};
use bytes::Bytes;

use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// The size of a block, in bytes: large enough that its 32-byte check costs nothing (32 ppm), small enough
/// that a random reader of a cold file waits for little more than it asked for.
pub const BLOCK: u64 = 1 << 20;

/// The size of a fragment of a block, in bytes: what is fetched for a reader that jumps about, where no block needs to be whole to
/// be verified. A shorter one would take as long to come: a request costs more than these bytes.
pub const FRAGMENT: u64 = BLOCK / 16;

/// Returns the number of blocks of a blob of `size` bytes.
pub fn count(size: u64) -> u64 {
    size.div_ceil(BLOCK)
}

/// The blocks that the bytes `range` of a blob lie in.
pub fn touched(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK..range.end.div_ceil(BLOCK)
}

/// The byte length of block `index` of a blob of `size` bytes.
pub fn len(size: u64, index: u64) -> u64 {
    size.saturating_sub(index * BLOCK).min(BLOCK)
}

/// The check of a block: its chaining value, or the digest itself for a blob of a single block.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
    zerocopy::Unaligned,
)]
#[repr(transparent)]
pub struct Check(pub [u8; 32]);

impl Check {
    /// The check of block `index`, which holds `bytes`, in a blob of `size` bytes.
    pub fn of(size: u64, index: u64, bytes: &[u8]) -> Self {
        if size <= BLOCK {
            return Self(*blake3::hash(bytes).as_bytes());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(index * BLOCK);
        hasher.update(bytes);
        Self(hasher.finalize_non_root())
    }

    /// The digest that the checks of all blocks of a blob of `size` bytes combine to.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the number of checks does not fit the size.
    pub fn combine(size: u64, checks: &[Check]) -> Result<Digest> {
        if checks.len() as u64 != count(size) {
            return Err(Error::new(
                Kind::Corrupt,
                format!("{} block checks for a blob of {size} bytes", checks.len()),
            ));
        }
        Ok(match checks {
            [] => Digest::of(b""),
            [only] => Digest(only.0),
            _ => {
                let (left, right) = halves(size, checks);
                Digest(*hazmat::merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
            }
        })
    }
}

/// The chaining values of the two subtrees below the root of a tree over `checks`, at least two.
fn halves(size: u64, checks: &[Check]) -> ([u8; 32], [u8; 32]) {
    let left = hazmat::left_subtree_len(size);
    let (low, high) = checks.split_at((left / BLOCK) as usize);
    (subtree(left, low), subtree(size - left, high))
}

fn subtree(size: u64, checks: &[Check]) -> [u8; 32] {
    if let [only] = checks {
        return only.0;
    }
    let (left, right) = halves(size, checks);
    hazmat::merge_subtrees_non_root(&left, &right, Mode::Hash)
}

/// A block as it came from a tier, not verified yet.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The size of the blob that the block is part of, in bytes.
    pub size: u64,
    /// The index of the block in its blob.
    pub index: u64,
    /// The content as received, before it is verified.
    pub bytes: Bytes,
}

impl Arrival {
    /// Hashes the bytes and holds them against `expected`. Where nothing is known beforehand (a blob read
    /// straight from its origin), `None` lets them pass: the check made here is what they are held against
    /// from then on.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the length or the hash is not right.
    pub fn verify(self, expected: Option<&Check>) -> Result<Verified> {
        let want = len(self.size, self.index);
        if self.bytes.len() as u64 != want {
            return Err(Error::new(
                Kind::Corrupt,
                format!("block {} has {} bytes, not {want}", self.index, self.bytes.len()),
            ));
        }
        let check = Check::of(self.size, self.index, &self.bytes);
        if expected.is_some_and(|e| *e != check) {
            return Err(Error::new(
                Kind::Corrupt,
                format!("block {} does not hash to its check value", self.index),
            ));
        }
        Ok(Verified { index: self.index, check, bytes: self.bytes })
    }
}

/// A block whose bytes match their check. [`Arrival::verify`] is the only way to make one.
#[derive(Clone, Debug)]
pub struct Verified {
    index: u64,
    check: Check,
    bytes: Bytes,
}

impl Verified {
    /// The index of the block in its blob.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The check of the bytes.
    pub fn check(&self) -> &Check {
        &self.check
    }

    /// The content.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(size: usize) -> Vec<u8> {
        (0..size).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    fn checks(content: &[u8]) -> Vec<Check> {
        let size = content.len() as u64;
        content
            .chunks(BLOCK as usize)
            .enumerate()
            .map(|(i, bytes)| Check::of(size, i as u64, bytes))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn checks_combined_are_the_plain_blake3_digest(size in 0usize..(9 << 20)) {
            let content = content(size);
            let combined = Check::combine(size as u64, &checks(&content)).expect("count fits");
            prop_assert_eq!(combined, Digest::of(&content));
        }
    }

    #[test]
    fn checks_at_block_edges_combine_to_the_digest() {
        for size in [1, 1 << 20, (1 << 20) + 1, 2 << 20, (3 << 20) - 1, 4 << 20, (5 << 20) + 7] {
            let content = content(size);
            let combined = Check::combine(size as u64, &checks(&content)).expect("count fits");
            assert_eq!(combined, Digest::of(&content), "{size} bytes");
        }
        assert!(Check::combine(5 << 20, &[]).is_err());
    }

    #[test]
    fn verify_with_flipped_bit_or_wrong_length_fails() {
        let content = content((1 << 20) + 100);
        let size = content.len() as u64;
        let check = Check::of(size, 1, &content[1 << 20..]);
        let arrival = |bytes: &[u8]| Arrival { size, index: 1, bytes: Bytes::copy_from_slice(bytes) };
        assert!(arrival(&content[1 << 20..]).verify(Some(&check)).is_ok());
        let mut flipped = content[1 << 20..].to_vec();
        flipped[50] ^= 1;
        assert_eq!(arrival(&flipped).verify(Some(&check)).expect_err("flip").kind(), Kind::Corrupt);
        assert_eq!(arrival(&flipped[..99]).verify(None).expect_err("short").kind(), Kind::Corrupt);
    }
}
