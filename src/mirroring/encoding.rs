//! The form in which a blob is kept: as it is, or as one frame a block.

use std::sync::Arc;

use bytes::Bytes;

use crate::blob::MirrorLocation;
use crate::block::Check;
use crate::error::Result;
use crate::mirror::frames;
use crate::mirror::record::MirrorRecord;

/// The encoding of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlobEncoding {
    Plain,
    Frames,
}

/// Some blocks of a blob, hashed, and in the form in which they are kept.
pub(super) struct EncodedBlocks {
    pub(super) len: u64,
    pub(super) checks: Vec<Check>,
    pub(super) content: Vec<Bytes>,
    pub(super) raw: Vec<Bytes>,
    pub(super) form: BlobEncoding,
}

impl EncodedBlocks {
    /// The blocks from `first` on of a blob of `size` bytes. CPU-bound.
    pub(super) fn new(size: u64, first: u64, blocks: Vec<Bytes>, form: BlobEncoding) -> Result<Self> {
        let checks = (first..).zip(&blocks).map(|(index, bytes)| Check::of(size, index, bytes)).collect();
        let content = match form {
            BlobEncoding::Plain => blocks.clone(),
            BlobEncoding::Frames => {
                blocks.iter().map(|block| frames::compress(block)).collect::<Result<_>>()?
            }
        };
        let len = blocks.iter().map(|block| block.len() as u64).sum();
        Ok(Self { len, checks, content, raw: blocks, form })
    }
}

/// The end of each frame.
pub(super) struct FrameEnds {
    form: BlobEncoding,
    at: u64,
    ends: Vec<u8>,
}

impl FrameEnds {
    pub(super) fn new(form: BlobEncoding) -> Self {
        Self { form, at: 0, ends: Vec::new() }
    }

    pub(super) fn push(&mut self, len: usize) {
        self.at += len as u64;
        if self.form == BlobEncoding::Frames {
            self.ends.extend_from_slice(&self.at.to_le_bytes());
        }
    }

    pub(super) fn stored(self) -> MirrorLocation {
        let ends = (self.form == BlobEncoding::Frames).then(|| self.ends.into());
        MirrorLocation { object_key: Bytes::new(), ends }
    }
}

/// The record of a blob with these checks.
pub(super) fn record(size: u64, checks: Vec<Check>, stored: MirrorLocation) -> Result<MirrorRecord> {
    Ok(MirrorRecord { digest: Check::combine(size, &checks)?, size, checks: Arc::from(checks), stored })
}
