//! Prefetches the files that come next in the order of names.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::error::Kind;
use bdnfs::manifest::{Entry, Node, Slice};
use bdnfs::read::Reader;
use bdnfs::snapshot::Snapshot;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::sequence_detector::SequenceDetector;

/// The size of the largest file, in bytes, that is fetched ahead of its reader. A larger one takes longer than the wait for it.
const MAX_FETCHED_FILE_BYTES: u64 = 256 << 10;

/// The number of files that are fetched at once: more would need more connections, and take from readers that wait for theirs.
const PARALLEL_FETCHES: usize = 16;

/// The number of files that one thread looks for: a few, so that the disk works on several at once.
const BATCH_FILES: usize = 8;

/// The number of threads that look for files at once: a disk that hangs keeps each, and others need some.
const PARALLEL_BATCHES: usize = 4;

/// The maximum number of bytes that are prefetched at once for one sequence.
const WINDOW_BYTES: u64 = 32 << 20;

/// The maximum number of bytes that are being fetched or wait for that, for all sequences, where each file counts as
/// [`MIN_COUNTED_BYTES`] at least. What is beyond that is fetched when it is read.
const MAX_PENDING_BYTES: usize = 32 << 20;
const MIN_COUNTED_BYTES: u64 = 16 << 10;

/// The time for which nothing is fetched ahead after something could not be stored or fetched. It would be fetched again by its
/// readers.
const PREFETCH_FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// The prefetch of a mount's files.
#[derive(Debug)]
pub(super) struct SmallFilePrefetch {
    snapshot: Arc<Snapshot>,
    runtime: Handle,
    sequences: Mutex<SequenceDetector>,
    fetches: Semaphore,
    pending: Arc<Semaphore>,
    batches: Arc<Semaphore>,
    paused_until: Mutex<Option<Instant>>,
}

impl SmallFilePrefetch {
    /// The prefetch of the files of `snapshot`, none of which was read yet.
    pub(super) fn new(snapshot: Arc<Snapshot>, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            snapshot,
            runtime,
            sequences: Mutex::default(),
            fetches: Semaphore::new(PARALLEL_FETCHES),
            pending: Arc::new(Semaphore::new(MAX_PENDING_BYTES)),
            batches: Arc::new(Semaphore::new(PARALLEL_BATCHES)),
            paused_until: Mutex::default(),
        })
    }

    /// Prefetches what a process that reads the file `index` will read next: files that are local into the page cache, others
    /// from their source if they are small. Those of more than `most` bytes are left out. `open` opens one that is a slice.
    pub(super) fn advance<O>(self: &Arc<Self>, index: u32, most: u64, open: O)
    where
        O: Fn(u32, Slice) -> Option<Arc<Reader>> + Clone + Send + 'static,
    {
        let wanted = self.sequences.lock().advance(index);
        if wanted.is_empty() {
            return;
        }
        let this = self.clone();
        self.runtime.spawn_blocking(move || {
            for batch in this.window(wanted, most).chunks(BATCH_FILES) {
                let (this, open, batch) = (this.clone(), open.clone(), batch.to_vec());
                this.runtime.clone().spawn(async move {
                    let turn = this.batches.clone().acquire_owned().await;
                    this.runtime.clone().spawn_blocking(move || {
                        let _turn = turn;
                        let readers = batch.into_iter().filter_map(|(index, slice)| open(index, slice));
                        readers.for_each(|reader| this.prefetch(reader));
                    });
                });
            }
        });
    }

    /// The files among `wanted` of up to `most` bytes each, [`WINDOW_BYTES`] in all.
    fn window(&self, wanted: Range<u32>, most: u64) -> Vec<(u32, Slice)> {
        let (mut files, mut left) = (Vec::new(), WINDOW_BYTES);
        for index in wanted {
            // The read of the file reports an error.
            let entry = self.snapshot.manifest().entry(index);
            let Ok(Entry { node: Node::File(slice), .. }) = entry else { continue };
            if slice.len > most {
                continue;
            }
            let Some(rest) = left.checked_sub(slice.len) else { break };
            left = rest;
            files.push((index, slice));
        }
        files
    }

    fn prefetch(self: &Arc<Self>, reader: Arc<Reader>) {
        let is_in_memory_soon = reader.prefetch_pages();
        if is_in_memory_soon || reader.is_empty() || reader.len() > MAX_FETCHED_FILE_BYTES || self.is_paused()
        {
            return;
        }
        let counted = reader.len().max(MIN_COUNTED_BYTES) as u32;
        let Ok(pending) = self.pending.clone().try_acquire_many_owned(counted) else { return };
        let this = self.clone();
        self.runtime.spawn(async move {
            let _pending = pending;
            let _slot = this.fetches.acquire().await;
            if this.is_paused() {
                return;
            }
            if let Err(error) = reader.prefetch().await {
                tracing::debug!(%error, "a file could not be fetched ahead of its reader");
                // A file that has changed says nothing of the others.
                if !matches!(error.kind(), Kind::Changed | Kind::NotFound | Kind::Refused | Kind::Corrupt) {
                    *this.paused_until.lock() = Some(Instant::now() + PREFETCH_FAILURE_PAUSE);
                }
            }
        });
    }

    fn is_paused(&self) -> bool {
        self.paused_until.lock().is_some_and(|until| Instant::now() < until)
    }
}
