//! Readers: open files, whose bytes come from the nearest tier that has them.

pub mod read_ahead;

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::block::BLOCK;
use crate::content::Content;
use crate::error::Result;
use crate::manifest::Slice;

use read_ahead::ReadAhead;

/// An open file. It holds a lease on its blob as long as it lives.
#[derive(Debug)]
pub struct Reader {
    content: Arc<Content>,
    slice: Slice,
    read_ahead: Mutex<ReadAhead>,
}

impl Reader {
    /// A reader of `slice`, which lies in `content`.
    pub(crate) fn new(content: Arc<Content>, slice: Slice) -> Self {
        Self { content, slice, read_ahead: Mutex::default() }
    }

    /// The length of the file, in bytes.
    pub fn len(&self) -> u64 {
        self.slice.len
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.slice.len == 0
    }

    /// The file on the local disk that holds exactly this file's bytes, when there is one: the blob is whole and the
    /// slice is all of it. As long as that file is right, it stays the same one.
    pub fn backing(&self) -> Option<Arc<File>> {
        self.is_all().then(|| self.content.whole()).flatten()
    }

    fn is_all(&self) -> bool {
        self.slice.offset == 0 && self.slice.len == self.content.blob().size
    }

    /// Waits until [`backing`](Self::backing) is there; false when it never will be.
    pub async fn whole(&self) -> bool {
        self.is_all() && self.content.became_whole().await.is_ok()
    }

    /// Reads without waiting for any tier: `None` when some of it isn't local. Touches the local disk. The pieces, in
    /// order, are as long as `len` in all, shorter only at the end of the file.
    pub fn try_read_at(&self, offset: u64, len: usize) -> Option<Vec<Bytes>> {
        let range = self.range(offset, len);
        let pieces = self.content.try_read(range.clone())?;
        if self.content.whole().is_none() {
            self.start_read_ahead(&range);
        }
        Some(pieces)
    }

    /// Reads, from whatever tier has it; ends within [`READ_DEADLINE`](crate::content::READ_DEADLINE). The pieces, in order, are
    /// as long as `len` in all, shorter only at the end of the file.
    ///
    /// # Errors
    /// Those of the tiers, named by the file's path: see [`crate::error::Kind`].
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<Vec<Bytes>> {
        let range = self.range(offset, len);
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let run = self.start_read_ahead(&range).div_ceil(BLOCK);
        self.content.read(range, run).await
    }

    /// Starts the read-ahead of a sequential reader, and returns how many bytes that is.
    fn start_read_ahead(&self, range: &Range<u64>) -> u64 {
        let end = self.slice.offset + self.slice.len;
        let ahead = self.read_ahead.lock().advance(range, end, self.content.extent());
        let wanted = ahead.end - ahead.start;
        if wanted > 0 {
            self.content.prefetch(ahead);
        }
        wanted
    }

    /// The range of the blob with `len` bytes at `offset` of the file.
    fn range(&self, offset: u64, len: usize) -> Range<u64> {
        let start = offset.min(self.slice.len);
        let end = start.saturating_add(len as u64).min(self.slice.len);
        self.slice.offset + start..self.slice.offset + end
    }
}
