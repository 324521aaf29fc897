//! File handles: the open files of a mount, their modes, and the backing files that the kernel reads.

mod restore;

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::Slice;
use bdnfs::read::Reader;
use bdnfs::snapshot::Snapshot;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::device::Device;
use crate::files::OpenOutcome;
use crate::invalidation::KernelCache;
use crate::ledger::{Ledger, LedgerItem};
use crate::open_table::{OpenMode, OpenTable, RenewalActions};
use crate::tree;
use crate::wire::abi::OpenOut;
use crate::wire::flags::{RESENT, open};

use super::registered_file::{LedgerSlot, RegisteredFile, is_readable};
use super::small_file_prefetch::SmallFilePrefetch;

/// The size of the largest file, in bytes, that is prefetched where files have handles: the kernel reads ahead within larger ones.
const MAX_PREFETCHED_FILE_BYTES: u64 = 1 << 20;

/// The open files of a mount.
#[derive(Debug)]
pub(crate) struct FileHandles {
    snapshot: Arc<Snapshot>,
    runtime: Handle,
    device: Arc<Device>,
    /// Whether backing files can be registered; the first failure ends it for good.
    passthrough: AtomicBool,
    /// Whether each file keeps its node.
    steady: bool,
    prefetch: Arc<SmallFilePrefetch>,
    table: Mutex<OpenTable<Arc<RegisteredFile>, CompletionWatch>>,
    handles: Mutex<HashMap<u64, FileHandle>>,
    ledger: Arc<Ledger>,
    kernel: Arc<KernelCache>,
}

/// An open file.
#[derive(Debug)]
struct FileHandle {
    /// The handle's own reader: read-ahead follows the sequence of its reads.
    reader: Arc<Reader>,
    /// The request that opened it.
    unique: u64,
    /// The ledger item that its reply created.
    item: LedgerItem,
}

/// The task that waits for a file to become whole; aborted when this is dropped.
#[derive(Debug)]
struct CompletionWatch(AbortHandle);

impl Drop for CompletionWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl FileHandles {
    /// A table without open files. With `passthrough`, the kernel has offered it; on a `steady` mount each file keeps its node.
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        runtime: Handle,
        device: Arc<Device>,
        passthrough: bool,
        steady: bool,
        ledger: Arc<Ledger>,
        kernel: Arc<KernelCache>,
    ) -> Arc<Self> {
        Arc::new(Self {
            prefetch: SmallFilePrefetch::new(snapshot.clone(), runtime.clone()),
            snapshot,
            runtime,
            device,
            passthrough: AtomicBool::new(passthrough),
            steady,
            table: Mutex::new(OpenTable::new(steady)),
            handles: Mutex::default(),
            ledger,
            kernel,
        })
    }

    /// The reader of the handle `fh`.
    pub(crate) fn reader(&self, fh: u64) -> Option<Arc<Reader>> {
        self.handles.lock().get(&fh).map(|handle| handle.reader.clone())
    }

    /// Prefetches the files that the opener of file `index` is likely to open next. The file's content is `slice`.
    pub(crate) fn prefetch_after(self: &Arc<Self>, index: u32, slice: Slice) {
        if slice.len <= MAX_PREFETCHED_FILE_BYTES {
            let snapshot = self.snapshot.clone();
            let open = move |_, slice| snapshot.open(slice).ok().map(Arc::new);
            self.prefetch.advance(index, MAX_PREFETCHED_FILE_BYTES, open);
        }
    }

    /// The node that a lookup of file `index` returns.
    pub(crate) fn lookup_node(&self, index: u32) -> u64 {
        self.table.lock().lookup_node(index)
    }

    /// Whether the kernel reads whole files by itself.
    pub(crate) fn passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Relaxed)
    }

    /// Closes backing files that were idle for too long at `now`.
    pub(crate) fn expire(&self, now: Instant) {
        // Bound first and dropped at the end, so that files are closed without the lock.
        let _expired = self.table.lock().expire(now);
    }

    /// Opens the file `index`, which is `slice`, at its node `node`, for the request `unique`.
    pub(crate) fn open(
        self: &Arc<Self>,
        unique: u64,
        node: u64,
        index: u32,
        slice: Slice,
    ) -> Result<OpenOutcome> {
        if unique & RESENT != 0
            && let Some(reply) = self.earlier_reply(unique & !RESENT)
        {
            return Ok(OpenOutcome::Opened(reply));
        }
        // Each on a line of its own: the lock must be gone before the next.
        let is_moved = self.table.lock().has_damaged_backing(node);
        if is_moved {
            return Ok(OpenOutcome::Moved);
        }
        let registered = self.table.lock().reopen(node);
        if let Some(file) = registered {
            file.reader.await_disk();
            // An overlay is given no other node while this one is in use.
            let is_late = !self.steady && file.reader.is_disk_late();
            if file.is_readable() && !is_late {
                return self.insert(unique, node, file.reader.clone(), OpenMode::Passthrough(file));
            }
            if self.close_idle_backing(node, index) {
                return Ok(OpenOutcome::Moved);
            }
        }
        let reader = Arc::new(self.snapshot.open_file(index, slice)?);
        if self.passthrough() {
            // The kernel, which reads it by itself then, would not give it up.
            reader.await_disk();
        }
        let mode = {
            let (back, watch) = (|| self.register(node, &reader), || self.watch(node, index, reader.clone()));
            self.table.lock().open(node, back, watch)
        };
        self.insert_opened(unique, node, reader, mode)
    }

    /// As [`open`](Self::open), without looking for the file in the cache, whose disk does not answer.
    pub(crate) fn open_past_cache(
        self: &Arc<Self>,
        unique: u64,
        node: u64,
        index: u32,
        slice: Slice,
    ) -> Result<OpenOutcome> {
        let registered = self.table.lock().reopen(node);
        match registered {
            // An overlay is given no other node while this one is in use.
            Some(file) if self.steady => {
                return self.insert(unique, node, file.reader.clone(), OpenMode::Passthrough(file));
            }
            Some(_) if self.close_idle_backing(node, index) => return Ok(OpenOutcome::Moved),
            _ => {}
        }
        let reader = Arc::new(self.snapshot.open_past_cache(slice)?);
        let mode = self.table.lock().open(node, || None, || self.watch(node, index, reader.clone()));
        self.insert_opened(unique, node, reader, mode)
    }

    fn insert_opened(
        &self,
        unique: u64,
        node: u64,
        reader: Arc<Reader>,
        mode: Option<OpenMode<Arc<RegisteredFile>>>,
    ) -> Result<OpenOutcome> {
        match mode {
            Some(mode) => self.insert(unique, node, reader, mode),
            None if !self.steady => Ok(OpenOutcome::Moved),
            None => Err(Error::new(
                Kind::Corrupt,
                "its copy in the cache was damaged, and processes still have that open",
            )),
        }
    }

    /// Stops further handles from reading the backing file of `node`, which was reopened a moment ago. True
    /// where lookups of the file `index` lead to another node from now on, since others have it open.
    fn close_idle_backing(&self, node: u64, index: u32) -> bool {
        let mut table = self.table.lock();
        // Bound, and dropped without the lock.
        let (closed, renewed) = (table.close(node, Instant::now()), table.renew(index));
        let has_moved = table.is_passthrough(node) && renewed.moved_to.is_some();
        drop(table);
        self.record(&renewed);
        drop((closed, renewed));
        has_moved
    }

    /// Records for the next process what it must know of a file that was read wrongly.
    fn record(&self, renewed: &RenewalActions<Arc<RegisteredFile>>) {
        if let Some(node) = renewed.moved_to {
            self.ledger.insert(node, 0, LedgerItem::Moved);
        }
        if let Some((node, file)) = &renewed.damaged {
            self.ledger.insert(*node, 0, LedgerItem::Damaged(file.backing.id()));
        }
    }

    /// The reply to the request `unique`, if it was made before and did not get through.
    fn earlier_reply(&self, unique: u64) -> Option<OpenOut> {
        let handles = self.handles.lock();
        let (fh, handle) = handles.iter().find(|(_, handle)| handle.unique == unique)?;
        Some(open_reply(*fh, handle.item))
    }

    /// Closes the handle `fh` of `node`.
    pub(crate) fn close(&self, node: u64, fh: u64) {
        if self.handles.lock().remove(&fh).is_some() {
            // First: as soon as the node is free it may be opened in another mode.
            self.ledger.remove(fh);
            let _evicted = self.table.lock().close(node, Instant::now());
        }
    }

    /// Adds a handle of `node` with `reader`, and returns the reply to its OPEN `unique`.
    fn insert(
        &self,
        unique: u64,
        node: u64,
        reader: Arc<Reader>,
        mode: OpenMode<Arc<RegisteredFile>>,
    ) -> Result<OpenOutcome> {
        let item = match mode {
            OpenMode::Cached => LedgerItem::Cached,
            OpenMode::Passthrough(file) => LedgerItem::Passthrough(file.backing.id()),
        };
        let unique = unique & !RESENT;
        let Some(fh) = self.ledger.insert(node, unique, item) else {
            let _evicted = self.table.lock().close(node, Instant::now());
            return Err(Error::new(Kind::Busy, "too many open files on this mount (the limit is a million)"));
        };
        // With passthrough, too: readahead(2) and fadvise(2) still send reads.
        self.handles.lock().insert(fh, FileHandle { reader, unique, item });
        Ok(OpenOutcome::Opened(open_reply(fh, item)))
    }

    /// Registers the file behind `reader`, if it is whole.
    fn register(&self, node: u64, reader: &Arc<Reader>) -> Option<Arc<RegisteredFile>> {
        if !self.passthrough() || reader.is_disk_late() {
            return None;
        }
        let file: Arc<File> = reader.backing().filter(|file| is_readable(file))?;
        match self.device.register(&*file) {
            Ok(backing) => {
                let number = self.ledger.insert(node, 0, LedgerItem::BackingFile(backing.id()))?;
                let _slot = LedgerSlot { ledger: self.ledger.clone(), number };
                Some(Arc::new(RegisteredFile { backing, _slot, reader: reader.clone(), file: Some(file) }))
            }
            Err(error) => {
                if self.passthrough.swap(false, Ordering::Relaxed) {
                    tracing::warn!(%error, "passthrough is not available on this mount: reads of local files go through the agent");
                }
                None
            }
        }
    }

    /// Starts to wait for the file `index` to become whole, for as long as its node `node` has cached handles, and if it has
    /// another.
    fn watch(self: &Arc<Self>, node: u64, index: u32, reader: Arc<Reader>) -> Option<CompletionWatch> {
        if self.steady || !self.passthrough() {
            return None;
        }
        let handles = Arc::downgrade(self);
        let task = self.runtime.spawn(async move {
            if reader.whole().await
                && let Some(handles) = handles.upgrade()
            {
                handles.switch_to_twin(node, index).await;
            }
        });
        Some(CompletionWatch(task.abort_handle()))
    }

    /// Makes lookups of the file `index`, which has become whole at its node `node`, lead to its other node from now on.
    async fn switch_to_twin(&self, node: u64, index: u32) {
        if !self.table.lock().mark_whole(node) {
            return;
        }
        self.forget_name(index).await;
    }

    /// Makes the kernel look up the name of the file `index` anew.
    async fn forget_name(&self, index: u32) {
        if let Ok(entry) = self.snapshot.manifest().entry(index) {
            self.kernel.forget_name(tree::base(entry.parent), entry.name.to_vec()).await;
        }
    }

    /// Makes the kernel read the file `index` anew: the pages that it has are wrong.
    pub(crate) async fn renew(&self, index: u32) {
        // Bound first, so that files are closed without the lock.
        let renewed = self.table.lock().renew(index);
        self.record(&renewed);
        let RenewalActions { nodes, is_name_outdated, damaged, backings, .. } = renewed;
        drop((damaged, backings));
        if is_name_outdated {
            self.forget_name(index).await;
        }
        for node in nodes {
            self.kernel.forget_pages(node).await;
        }
    }
}

/// The reply to an OPEN that made the handle `fh`.
fn open_reply(fh: u64, item: LedgerItem) -> OpenOut {
    match item {
        LedgerItem::Passthrough(backing) => OpenOut { fh, flags: open::PASSTHROUGH | open::NOFLUSH, backing },
        _ => OpenOut { fh, flags: open::KEEP_CACHE | open::NOFLUSH, backing: 0 },
    }
}
