//! Records: how a mirror keeps a blob, with the checks of its blocks; and what was made from what.

use std::sync::Arc;

use bytes::Bytes;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::blob::MirrorLocation;
use crate::block::{self, Check};
use crate::digest::Digest;

/// The first bytes of every record.
const MAGIC: [u8; 8] = *b"BDNFSBLB";
/// The version that this code writes and reads.
const VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordHeader {
    magic: [u8; 8],
    version: U32,
    /// 0 as it is, 1 as one zstd frame a block.
    encoding: U32,
    size: U64,
    place_len: U64,
}

/// A blob that the mirror keeps. Clones share its checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorRecord {
    /// The digest.
    pub digest: Digest,
    /// The length in bytes.
    pub size: u64,
    /// The checks of its blocks.
    pub checks: Arc<[Check]>,
    /// The place and form in the mirror.
    pub stored: MirrorLocation,
}

impl MirrorRecord {
    /// The record as it is written: a header, the checks, the ends of its frames, its place, and the digest of all that.
    pub fn encode(&self) -> Vec<u8> {
        let head = RecordHeader {
            magic: MAGIC,
            version: VERSION.into(),
            encoding: u32::from(self.stored.ends.is_some()).into(),
            size: self.size.into(),
            place_len: (self.stored.object_key.len() as u64).into(),
        };
        let ends = self.stored.ends.as_deref().unwrap_or_default();
        let mut record =
            [head.as_bytes(), self.checks.as_bytes(), ends, &self.stored.object_key[..]].concat();
        let digest = Digest::of(&record);
        record.extend_from_slice(&digest.0);
        record
    }

    /// Reads the record of the blob `digest`; `None` when it is none, or another one's.
    pub fn decode(bytes: &Bytes, digest: &Digest) -> Option<Self> {
        let (bytes, own) = bytes.split_last_chunk().map(|(rest, own)| (bytes.slice_ref(rest), *own))?;
        let (head, _) = RecordHeader::ref_from_prefix(&bytes).ok()?;
        if head.magic != MAGIC || head.version.get() != VERSION || Digest::of(&bytes) != Digest(own) {
            return None;
        }
        let size = head.size.get();
        let blocks = usize::try_from(block::count(size)).ok()?;
        let mut rest = bytes.slice(size_of::<RecordHeader>()..);
        let mut take = |len: usize| (len <= rest.len()).then(|| rest.split_to(len));
        let checks = take(blocks.checked_mul(size_of::<Check>())?)?;
        let checks = <[Check]>::ref_from_bytes(&checks).ok().map(Arc::<[Check]>::from)?;
        let ends = match head.encoding.get() {
            0 => None,
            1 => Some(take(blocks.checked_mul(8)?)?),
            _ => return None,
        };
        let object_key = take(usize::try_from(head.place_len.get()).ok()?)?;
        let stored = MirrorLocation { object_key, ends };
        let proved = Check::combine(size, &checks).ok()? == *digest;
        let whole =
            rest.is_empty() && stored.len(size).is_some() && str::from_utf8(&stored.object_key).is_ok();
        (proved && whole).then_some(Self { digest: *digest, size, checks, stored })
    }
}

/// Names what a blob is made of, before a byte of it is read: the blob's files, in order, by their origins' own
/// identities for them.
pub fn recipe(files: impl IntoIterator<Item = ([u8; 32], u64)>) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("bdnfs 2026-11 mirror recipe");
    for (file, size) in files {
        hasher.update(&file).update(&size.to_le_bytes());
    }
    Digest(*hasher.finalize().as_bytes())
}

/// The object of a known recipe: the digest of what was made from it, the recipe itself, and the digest of
/// both as text, so that neither a flipped bit nor an exchange of two of them is believed.
pub(super) fn encode_recipe(recipe: &Digest, made: &Digest) -> String {
    let text = format!("{made} {recipe}");
    format!("{text} {}\n", Digest::of(text.as_bytes()))
}

/// The blob that was made from `recipe`, as [`encode_recipe`] wrote it; `None` when it is damaged.
pub(super) fn decode_recipe(text: &[u8], recipe: &Digest) -> Option<Digest> {
    let made = str::from_utf8(text).ok()?.split(' ').next()?.parse().ok()?;
    (encode_recipe(recipe, &made).as_bytes() == text).then_some(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ends: Option<Vec<u64>>) -> MirrorRecord {
        let size = block::BLOCK + 1;
        let checks: Arc<[Check]> = Arc::new([Check([1; 32]), Check([2; 32])]);
        let digest = Check::combine(size, &checks).expect("two");
        let ends = ends.map(|ends| ends.iter().flat_map(|e| e.to_le_bytes()).collect());
        MirrorRecord { digest, size, checks, stored: MirrorLocation { object_key: "uploads/x".into(), ends } }
    }

    #[test]
    fn record_reads_back_and_damage_is_refused() {
        for ends in [None, Some(vec![5, 9])] {
            let record = record(ends);
            let bytes = record.encode();
            assert_eq!(MirrorRecord::decode(&bytes.clone().into(), &record.digest), Some(record.clone()));
            assert_eq!(MirrorRecord::decode(&bytes.clone().into(), &Digest::of(b"other")), None);
            for len in 0..bytes.len() {
                assert_eq!(
                    MirrorRecord::decode(&bytes[..len].to_vec().into(), &record.digest),
                    None,
                    "{len}"
                );
            }
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= 0x80;
                assert_eq!(MirrorRecord::decode(&bytes.into(), &record.digest), None);
            }
        }
        let backwards = record(Some(vec![9, 5]));
        let (end, size) = (backwards.stored.range(backwards.size, 1..2), backwards.size);
        assert_eq!((end, backwards.stored.range(size, 0..1)), (None, Some(0..9)));
    }

    #[test]
    fn recipe_of_another_name_is_refused() {
        let (one, two) = (recipe([([1; 32], 5)]), recipe([([1; 32], 6)]));
        let made = Digest::of(b"made");
        let text = encode_recipe(&one, &made);
        assert_eq!(decode_recipe(text.as_bytes(), &one), Some(made));
        assert_eq!(decode_recipe(text.as_bytes(), &two), None);
        assert_eq!(decode_recipe(text.replacen(['0', '1', '2', '3', '4'], "f", 1).as_bytes(), &one), None);
    }
}
