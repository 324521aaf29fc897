//! The blocks that a fetch is to bring, or the fragment of one.

use crate::block::{BLOCK, FRAGMENT};

/// The units of a blob that are wanted, all of one length.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Their indices, in order.
    pub(super) indices: Vec<u64>,
    /// The length of each, in bytes; the last one of the blob is shorter.
    pub(super) unit: u64,
}

impl Wanted {
    /// Fragment `index` of a blob that is cut into fragments of [`FRAGMENT`] bytes. What arrives is no block: it can't be verified.
    pub fn fragment(index: u64) -> Self {
        Self { indices: vec![index], unit: FRAGMENT }
    }
}

impl From<Vec<u64>> for Wanted {
    /// Blocks, by their indices in order.
    fn from(indices: Vec<u64>) -> Self {
        Self { indices, unit: BLOCK }
    }
}
