//! The files of a stateless mount: read without having been opened.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use bdnfs::error::Result;
use bdnfs::manifest::Slice;
use bdnfs::read::Reader;
use bdnfs::snapshot::Snapshot;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::idle_cache::IdleCache;
use crate::invalidation::KernelCache;
use crate::open_table::BACKING_IDLE_TIMEOUT;
use crate::tree;

use super::MAX_STATELESS_FILE_BYTES;
use super::small_file_prefetch::SmallFilePrefetch;

/// The number of readers that are kept: more than the kernel reads from at once. Each holds a lease.
const MAX_READERS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// The files of a stateless mount.
#[derive(Debug)]
pub(crate) struct StatelessFiles {
    snapshot: Arc<Snapshot>,
    kernel: Arc<KernelCache>,
    readers: Mutex<IdleCache<u32, Arc<Reader>>>,
    prefetch: Arc<SmallFilePrefetch>,
}

impl StatelessFiles {
    /// The files of `snapshot`, none of which was read yet.
    pub(crate) fn new(snapshot: Arc<Snapshot>, runtime: Handle, kernel: Arc<KernelCache>) -> Arc<Self> {
        let readers = Mutex::new(IdleCache::new(MAX_READERS, BACKING_IDLE_TIMEOUT));
        let prefetch = SmallFilePrefetch::new(snapshot.clone(), runtime);
        Arc::new(Self { snapshot, kernel, readers, prefetch })
    }

    /// The reader of the file `index`, which is `slice`.
    pub(crate) fn reader(&self, index: u32, slice: Slice) -> Result<Arc<Reader>> {
        let known = self.readers.lock().get(&index, Instant::now());
        if let Some(reader) = known {
            return Ok(reader);
        }
        Ok(self.keep(index, self.snapshot.open(slice)?))
    }

    /// As [`reader`](Self::reader), without looking for the file in the cache, whose disk does not answer.
    pub(crate) fn reader_past_cache(&self, index: u32, slice: Slice) -> Result<Arc<Reader>> {
        Ok(self.keep(index, self.snapshot.open_past_cache(slice)?))
    }

    fn keep(&self, index: u32, reader: Reader) -> Arc<Reader> {
        let reader = Arc::new(reader);
        // Bound, and dropped without the lock.
        let _evicted = self.readers.lock().put(index, reader.clone(), Instant::now());
        reader
    }

    /// Prefetches the files that a reader of file `index` will read next.
    pub(crate) fn prefetch_after(self: &Arc<Self>, index: u32) {
        let files = self.clone();
        self.prefetch
            .advance(index, MAX_STATELESS_FILE_BYTES, move |index, slice| files.reader(index, slice).ok());
    }

    /// Makes the kernel read the file `index` anew: the pages that it has are wrong.
    pub(crate) async fn renew(&self, index: u32) {
        self.kernel.forget_pages(tree::base(index)).await;
    }

    /// Drops the readers that have been idle for too long at `now`. One that waits for a tier is not: with it would go what the
    /// kernel's second try of a failed read is answered with.
    pub(crate) fn expire(&self, now: Instant) {
        // Bound first and dropped at the end, so that files are closed without the lock.
        let _expired = self.readers.lock().expire(now, |reader| Arc::strong_count(reader) > 1);
    }
}
