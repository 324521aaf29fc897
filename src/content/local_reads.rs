//! Local content: what of it this node has, in memory or on its disk.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;

use crate::block;
use crate::cache::io;
use crate::error::{Error, Result};

use super::{Content, Requester};

impl Content {
    /// Looks for it in the cache, unless that was done; waits where another thread is at it. Touches the local disk, but while that
    /// does not answer: then, as with a broken one, everything comes from the ladder.
    pub fn open(self: &Arc<Self>) {
        if self.opened.is_completed() || self.is_disk_late() {
            return;
        }
        self.opened.call_once_force(|_| {
            let found = self.resources.cache.reads().run(&self.resources.runtime, || self.open_local());
            if let Err(error) = found {
                tracing::warn!(%error, "the cache cannot be used for a file");
            }
            self.finish();
        });
    }

    fn open_local(&self) -> Result<()> {
        let cache = &self.resources.cache;
        loop {
            let removals = self.removals.load(SeqCst);
            if let Some(file) = cache.open_whole(&self.blob.key, self.blob.size)? {
                *self.whole.write() = Some(Arc::new(file));
                // Others may have used it while the disk did not answer.
                self.changed.notify_waiters();
            } else if let Some(partial) = cache.resume(&self.blob.key, self.blob.size)? {
                *self.slot() = Some(partial);
            }
            // Who removes it meanwhile finds nothing to be reopened.
            if self.removals.load(SeqCst) == removals {
                return Ok(());
            }
            *self.whole.write() = None;
        }
    }

    /// Reads what is local, in memory or on the disk, as pieces in order; `None` when some of it is not here.
    ///
    /// # Errors
    /// None that another tier could help with: a block that the disk can't read counts as not here.
    pub fn try_read(self: &Arc<Self>, range: Range<u64>) -> Option<Vec<Bytes>> {
        self.load(Requester::Reader, range)
    }

    /// Whether the cache's disk does not answer reads.
    pub(crate) fn is_disk_late(&self) -> bool {
        self.resources.cache.reads().are_late()
    }

    /// Whether some of `blocks` may be on the cache's disk that does not answer, or did not when they were looked for there.
    pub(super) fn may_be_on_late_disk(&self, blocks: &Range<u64>) -> bool {
        !self.opened.is_completed()
            || (self.is_disk_late() && blocks.clone().any(|index| self.is_present(index)))
    }

    /// Waits until the cache's disk answers reads, and looks for it there.
    pub(super) async fn await_late_disk(self: &Arc<Self>) {
        self.resources.cache.reads().answered().await;
        let (content, runtime) = (self.clone(), &self.resources.runtime);
        // Who reads is told of what that brings about.
        let _ = self.resources.cache.reads().run_blocking(runtime, move || content.open()).await;
    }

    /// Waits for the cache's disk until that gives the first byte of the whole file.
    pub(crate) fn await_disk(&self) {
        if let Some(file) = self.whole()
            && !self.is_disk_late()
        {
            // Whoever reads the file is told of errors.
            let _ = self.resources.cache.reads().run(&self.resources.runtime, || io::read(&file, 0, 1));
        }
    }

    /// Loads the blocks for `requester`; only what readers get is counted.
    fn load(self: &Arc<Self>, requester: Requester, range: Range<u64>) -> Option<Vec<Bytes>> {
        if range.is_empty() {
            return Some(Vec::new());
        }
        if self.refutation.active_error().is_some() {
            return None;
        }
        // The disk may not have answered when its first user came.
        self.open();
        let recent = self.load_from_memory(requester, &range);
        if recent.is_some() {
            return recent;
        }
        if self.is_disk_late() {
            return None;
        }
        let reads = self.resources.cache.reads();
        let bytes = reads.run(&self.resources.runtime, || self.load_from_disk(&range))?;
        if let (Requester::Reader, Ok(bytes)) = (requester, &bytes) {
            self.ladder().counters().count_cached(bytes.len() as u64);
        }
        bytes
            .inspect_err(|error| tracing::warn!(%error, "the cache's disk fails: reading from the next tier"))
            .map(|bytes| vec![bytes])
            .ok()
    }

    /// Loads the blocks on a blocking thread; `None` also where the cache's disk does not answer.
    pub(super) async fn load_in_time(
        self: &Arc<Self>,
        requester: Requester,
        range: Range<u64>,
    ) -> Result<Option<Vec<Bytes>>> {
        let recent = self.load_from_memory(requester, &range);
        if recent.is_some() {
            return Ok(recent);
        }
        let (content, runtime) = (self.clone(), &self.resources.runtime);
        let loaded =
            self.resources.cache.reads().run_blocking(runtime, move || content.load(requester, range));
        Ok(loaded.await?.flatten())
    }

    fn load_from_memory(&self, requester: Requester, range: &Range<u64>) -> Option<Vec<Bytes>> {
        match requester {
            Requester::Reader => self.resources.recent_blocks.read(&self.blob.key, range),
            Requester::Peer(_) => self.resources.recent_blocks.peek(&self.blob.key, range),
        }
    }

    /// The bytes as the disk has them; `None` when some of them are not here.
    fn load_from_disk(&self, range: &Range<u64>) -> Option<Result<Bytes>> {
        let len = (range.end - range.start) as usize;
        let is_here = || block::touched(range).all(|index| self.is_present(index));
        Some(match (self.whole(), self.part()) {
            (Some(file), _) => io::read(&file, range.start, len)
                .map_err(|e| Error::disk(format!("cannot read blob {}", self.blob.key), e)),
            (None, Some(partial)) if !self.awaits_proof() && is_here() => {
                let holes = partial.holes();
                let read = partial.read(range.start, len);
                // Doubted meanwhile, the disk may have given anything, also where it was stored again.
                if !is_here() || partial.holes() != holes {
                    return None;
                }
                read
            }
            _ => return None,
        })
    }
}
