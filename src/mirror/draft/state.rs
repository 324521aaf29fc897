//! The state of a draft, as its journal holds it.

use bytes::Bytes;
use sha2::Sha256;
use sha2::digest::common::hazmat::{SerializableState, SerializedState};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block::{self, BLOCK, Check};
use crate::digest::Digest;

/// The first bytes of every draft's state.
const MAGIC: [u8; 8] = *b"BDNFSDRF";
/// The version that this code writes and reads.
const VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DraftHeader {
    magic: [u8; 8],
    version: U32,
    /// 0 as it is, 1 as one zstd frame each block.
    form: U32,
    recipe: [u8; 32],
    size: U64,
    blocks: U64,
    part: U64,
    parts: U64,
    rest: U64,
}

/// State of an unfinished upload: its first blocks, of whose stored form the first parts are in the store.
#[derive(Clone, Debug)]
pub(super) struct DraftState {
    /// The size of its content.
    pub size: u64,
    /// The checks of the blocks that are done.
    pub checks: Vec<Check>,
    /// The ends of their frames, where they are compressed, as in [`MirrorLocation`](crate::blob::MirrorLocation).
    pub ends: Option<Vec<u8>>,
    /// The SHA-256 of them, so far, where their origin publishes one.
    pub sha256: Option<Sha256>,
    /// The size of a part.
    pub part: u64,
    /// The store's identifiers of the parts that it has.
    pub parts: Vec<String>,
    /// The bytes of these blocks that follow those.
    pub rest: Bytes,
    /// The key of the object below its tenant's, and what the store calls the upload.
    pub place: String,
    pub upload: String,
    /// The name of its holder's lease.
    pub holder: String,
}

impl DraftState {
    /// The state as it is written, of what is made from `recipe`.
    pub(super) fn encode(&self, recipe: &Digest) -> Vec<u8> {
        let number = |len: usize| U64::new(len as u64);
        let head = DraftHeader {
            magic: MAGIC,
            version: VERSION.into(),
            form: u32::from(self.ends.is_some()).into(),
            recipe: recipe.0,
            size: self.size.into(),
            blocks: number(self.checks.len()),
            part: self.part.into(),
            parts: number(self.parts.len()),
            rest: number(self.rest.len()),
        };
        let ends = self.ends.as_deref().unwrap_or_default();
        let mut state = [head.as_bytes(), self.checks.as_bytes(), ends, &self.rest].concat();
        let sha256 = self.sha256.as_ref().map(|hasher| hasher.serialize().to_vec()).unwrap_or_default();
        let texts = [&self.holder, &self.place, &self.upload].into_iter().chain(&self.parts);
        for text in [&sha256[..]].into_iter().chain(texts.map(String::as_bytes)) {
            state.extend_from_slice(&(text.len() as u32).to_le_bytes());
            state.extend_from_slice(text);
        }
        let digest = Digest::of(&state);
        state.extend_from_slice(&digest.0);
        state
    }

    /// Reads the state of what is made from `recipe`; `None` when it is none, or another one's.
    pub(super) fn decode(bytes: &Bytes, recipe: &Digest) -> Option<Self> {
        let (rest, own) = bytes.split_last_chunk()?;
        let (head, _) = DraftHeader::ref_from_prefix(rest).ok()?;
        let ours = head.magic == MAGIC && head.version.get() == VERSION && head.recipe == recipe.0;
        if !ours || Digest::of(rest) != Digest(*own) {
            return None;
        }
        let mut rest = bytes.slice(size_of::<DraftHeader>()..rest.len());
        let mut take = |len: usize| (len <= rest.len()).then(|| rest.split_to(len));
        let number = |number: U64| usize::try_from(number.get()).ok();
        let blocks = number(head.blocks)?;
        let checks =
            <[Check]>::ref_from_bytes(&take(blocks.checked_mul(size_of::<Check>())?)?).ok()?.to_vec();
        let ends = match head.form.get() {
            0 => None,
            1 => Some(take(blocks.checked_mul(8)?)?.to_vec()),
            _ => return None,
        };
        let behind = take(number(head.rest)?)?;
        let mut next = || {
            let len = u32::from_le_bytes(*take(4)?.first_chunk()?);
            take(usize::try_from(len).ok()?)
        };
        let sha256 = match &next()?[..] {
            [] => None,
            state => Some(Sha256::deserialize(&SerializedState::<Sha256>::try_from(state).ok()?).ok()?),
        };
        let mut text = || String::from_utf8(next()?.to_vec()).ok();
        let (holder, place, upload) = (text()?, text()?, text()?);
        let parts = (0..head.parts.get()).map(|_| text()).collect::<Option<_>>()?;
        let (size, part) = (head.size.get(), head.part.get());
        let state = Self { size, checks, ends, sha256, part, parts, rest: behind, place, upload, holder };
        (rest.is_empty() && state.adds_up()).then_some(state)
    }

    /// Returns the length of the stored form of the blocks that are done.
    pub(super) fn stored(&self) -> u64 {
        stored(self.size, self.checks.len() as u64, self.ends.as_deref())
    }

    /// Whether the parts, and what comes behind them, are just the blocks that are done.
    fn adds_up(&self) -> bool {
        let (blocks, all) = (self.checks.len() as u64, block::count(self.size));
        let parts = self.parts.len() as u64;
        let whole = parts.checked_mul(self.part).and_then(|len| len.checked_add(self.rest.len() as u64));
        // The last part may be a short one.
        let ended =
            blocks == all && self.rest.is_empty() && parts == self.stored().div_ceil(self.part.max(1));
        self.part > 0 && blocks <= all && (ended || whole == Some(self.stored()))
    }
}

/// Returns the length of the stored form of the first `blocks` of a blob of `size` bytes.
pub(super) fn stored(size: u64, blocks: u64, ends: Option<&[u8]>) -> u64 {
    match ends {
        None => (blocks * BLOCK).min(size),
        Some(ends) => ends.last_chunk().map_or(0, |end| u64::from_le_bytes(*end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::Digest as _;

    fn state(framed: bool) -> DraftState {
        DraftState {
            size: 9 * BLOCK,
            checks: vec![Check([1; 32]), Check([2; 32])],
            ends: framed.then(|| [500_u64, 700].iter().flat_map(|end| end.to_le_bytes()).collect()),
            sha256: Some(Sha256::new_with_prefix([7; 64])),
            part: if framed { 600 } else { 2 * BLOCK },
            parts: vec!["\"etag\"".into()],
            rest: if framed { vec![9; 100].into() } else { Bytes::new() },
            place: "uploads/x".into(),
            upload: "u".into(),
            holder: "add-1".into(),
        }
    }

    #[test]
    fn draft_state_reads_back_and_damage_is_refused() {
        let recipe = Digest::of(b"recipe");
        for framed in [false, true] {
            let bytes = Bytes::from(state(framed).encode(&recipe));
            let back = DraftState::decode(&bytes, &recipe).expect("good");
            assert_eq!(back.encode(&recipe), bytes);
            assert_eq!(back.sha256.expect("one").finalize(), Sha256::digest([7; 64]));
            assert!(DraftState::decode(&bytes, &Digest::of(b"other")).is_none());
            for at in 0..bytes.len() {
                assert!(DraftState::decode(&bytes.slice(..at), &recipe).is_none(), "{at}");
                let mut bytes = bytes.to_vec();
                bytes[at] ^= 0x40;
                assert!(DraftState::decode(&bytes.into(), &recipe).is_none(), "{at}");
            }
        }
    }

    /// Drafts are written as `docs/formats.md` says, byte for byte, and those of earlier versions stay readable.
    #[test]
    fn golden_draft_is_written_and_read() {
        let (golden, recipe) = (include_bytes!("../../mirroring/testdata/draft"), Digest::of(b"recipe"));
        assert_eq!(state(true).encode(&recipe), golden);
        let read = DraftState::decode(&Bytes::from_static(golden), &recipe).expect("good");
        assert_eq!(read.encode(&recipe), golden);
    }

    #[test]
    fn draft_state_whose_parts_do_not_add_up_is_refused() {
        let recipe = Digest::of(b"recipe");
        let refused =
            |state: DraftState| DraftState::decode(&state.encode(&recipe).into(), &recipe).is_none();
        assert!(!refused(state(false)) && !refused(state(true)));
        assert!(refused(DraftState { part: 0, ..state(false) }));
        assert!(refused(DraftState { parts: vec![], ..state(false) }));
        assert!(refused(DraftState { rest: Bytes::from_static(b"x"), ..state(true) }));
        assert!(refused(DraftState { size: BLOCK, ..state(false) }));
    }
}
