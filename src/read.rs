//! Readers: open files, whose bytes come from the nearest tier that has them.

pub(crate) mod next_shard;
pub mod read_ahead;

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::Advice;

use crate::block::BLOCK;
use crate::content::Content;
use crate::error::Result;
use crate::manifest::Slice;

use next_shard::NextShard;
use read_ahead::ReadAhead;

/// An open file. It holds a lease on its blob as long as it lives.
#[derive(Debug)]
pub struct Reader {
    content: Arc<Content>,
    slice: Slice,
    read_ahead: Mutex<ReadAhead>,
    next: Option<Arc<NextShard>>,
}

impl Reader {
    /// A reader of `slice`, which lies in `content`.
    pub(crate) fn new(content: Arc<Content>, slice: Slice) -> Self {
        Self { content, slice, read_ahead: Mutex::default(), next: None }
    }

    /// Continues its read-ahead in `next`.
    pub(crate) fn followed_by(self, next: Option<NextShard>) -> Self {
        Self { next: next.map(Arc::new), ..self }
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

    /// Whether the cache's disk does not answer reads, so that [`backing`](Self::backing) can't be read.
    pub fn is_disk_late(&self) -> bool {
        self.content.is_disk_late()
    }

    /// Waits for the cache's disk until that gives the first byte of [`backing`](Self::backing): a disk that hangs is found to be
    /// [late](Self::is_disk_late) before anybody else reads from it. It takes no time where that byte is in memory.
    pub fn await_disk(&self) {
        self.content.await_disk();
    }

    /// Waits until [`backing`](Self::backing) is there; false when it never will be.
    pub async fn whole(&self) -> bool {
        self.is_all() && self.content.became_whole().await.is_ok()
    }

    /// Reads without waiting for any tier: `None` when some of it isn't local. Touches the local disk. The pieces, in
    /// order, are as long as `len` in all, shorter only at the end of the file.
    pub fn try_read_at(&self, offset: u64, len: usize) -> Option<Vec<Bytes>> {
        let range = self.range(offset, len as u64);
        let pieces = self.content.try_read(range.clone())?;
        if self.next.is_some() || self.content.whole().is_none() {
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
        let range = self.range(offset, len as u64);
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let run = self.start_read_ahead(&range).map(|ahead| ahead.div_ceil(BLOCK));
        self.content.read(range, run).await
    }

    /// Fetches the first `bytes` bytes of the file for a reader that may come, but for those that were `asked` for before, in whole
    /// requests, and of the shards behind it what is beyond its end. Touches the local disk, and waits for nothing.
    fn prefetch_start(&self, asked: u64, bytes: u64, shards: usize) {
        if self.content.is_sent_whole() {
            return;
        }
        let request = self.content.ahead_blocks() * BLOCK;
        let [from, to] =
            [asked, bytes].map(|end| if end < self.slice.len { end - end % request } else { self.slice.len });
        if from < to {
            self.content.prefetch(self.range(from, to - from));
        }
        if let Some(next) = &self.next
            && bytes > self.slice.len
        {
            next.prefetch(bytes - self.slice.len, shards);
        }
    }

    /// Has the kernel read the file into its page cache, without waiting for that; false where not all of it is local.
    pub fn prefetch_pages(&self) -> bool {
        let (Some(file), Some(len)) = (self.content.whole(), NonZeroU64::new(self.slice.len)) else {
            return false;
        };
        if self.is_disk_late() {
            return true;
        }
        // A hint: that it fails changes nothing.
        let _ = rustix::fs::fadvise(&*file, self.slice.offset, Some(len), Advice::WillNeed);
        true
    }

    /// Fetches what of the file is not local, ahead of its readers, and waits until it is stored.
    ///
    /// # Errors
    /// Those of the tiers and of the cache. Nobody needs to be told: who reads the file fetches it again.
    pub async fn prefetch(&self) -> Result<()> {
        self.content.prefetch_stored(self.slice.offset..self.slice.offset + self.slice.len).await
    }

    /// Starts the read-ahead of a sequential reader, and returns how many bytes of the file that is; `None` of a reader that jumps
    /// about.
    fn start_read_ahead(&self, range: &Range<u64>) -> Option<u64> {
        let end = self.slice.offset + self.slice.len;
        let request = self.content.ahead_blocks() * BLOCK;
        let (ahead, has_jumped) = {
            let mut read_ahead = self.read_ahead.lock();
            (read_ahead.advance(range, request), read_ahead.has_jumped())
        };
        let here = ahead.start.min(end)..ahead.end.min(end);
        if !here.is_empty() {
            self.content.prefetch(here.clone());
        }
        if let Some(next) = &self.next
            && ahead.end > end
        {
            next.clone().start_prefetch(ahead.end - end);
        }
        (!has_jumped).then_some(here.end - here.start)
    }

    /// The range of the blob with `len` bytes at `offset` of the file.
    fn range(&self, offset: u64, len: u64) -> Range<u64> {
        let start = offset.min(self.slice.len);
        let end = start.saturating_add(len).min(self.slice.len);
        self.slice.offset + start..self.slice.offset + end
    }
}
