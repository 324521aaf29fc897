//! Files: opened, read and closed, by one of two ways that a mount keeps to.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bdnfs::error::Result;
use bdnfs::manifest::{Entry, Node, Slice};
use bdnfs::read::Reader;
use bdnfs::snapshot::Snapshot;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::ahead::Ahead;
use crate::device::{Backing, Device};
use crate::idle::Idle;
use crate::opens::{IDLE_TIME, Mode, Opens};
use crate::wire::abi::OpenOut;
use crate::wire::flags::open;
use crate::{lock, tree};

/// A tree with no file larger than this has no opens: see [`Files::Unopened`]. Files of this size gain more
/// from an open that costs nothing than from passthrough, which pays off in long reads; and the tree of a
/// model whose weights lie beside small files is not taken for one of small files.
const SMALL: u64 = 16 << 20;
/// How many files of such a tree are kept ready to be read: as many as the kernel reads from at once and
/// more. Each holds a lease.
const READERS: usize = 1024;

/// How many of the files ahead of a reader one thread brings: a few, so that the disk is asked for others meanwhile.
const TURN: u32 = 8;

/// The files of a mount.
#[derive(Debug)]
pub(crate) enum Files {
    /// Every open comes here, and may be answered with a backing file.
    Opened(Arc<Opened>),
    /// The kernel is told once that there is no need to open, and then sends neither OPEN nor RELEASE: twelve
    /// times as fast for a tree of many small files.
    Unopened(Arc<Unopened>),
}

impl Files {
    /// Whether the files of `snapshot` are all so small that they are best not opened at all.
    pub(crate) fn small(snapshot: &Snapshot) -> bool {
        snapshot.manifest().largest() <= SMALL
    }

    /// Opens the file `index`, which is `slice`, at its node `node`. `None`: this mount has no opens.
    pub(crate) fn open(&self, node: u64, index: u32, slice: Slice) -> Result<Option<OpenOut>> {
        match self {
            Self::Opened(opened) => opened.open(node, index, slice).map(Some),
            Self::Unopened(_) => Ok(None),
        }
    }

    /// What reads the file `index`, which is `slice`, by its handle `fh`. `None`: there is no such handle.
    pub(crate) fn reader(&self, fh: u64, index: u32, slice: Slice) -> Result<Option<Arc<Reader>>> {
        match self {
            Self::Opened(opened) => Ok(lock(&opened.handles).get(&fh).cloned()),
            Self::Unopened(unopened) => {
                unopened.lead(index);
                unopened.reader(index, slice).map(Some)
            }
        }
    }

    /// Closes the handle `fh` of `node`.
    pub(crate) fn close(&self, node: u64, fh: u64) {
        if let Self::Opened(opened) = self {
            opened.close(node, fh);
        }
    }

    /// The node that a lookup of file `index` is answered with.
    pub(crate) fn node(&self, index: u32) -> u64 {
        match self {
            Self::Opened(opened) => lock(&opened.opens).prefer(index),
            Self::Unopened(_) => tree::base(index),
        }
    }

    /// Whether whole files are read by the kernel itself.
    pub(crate) fn passthrough(&self) -> bool {
        matches!(self, Self::Opened(opened) if opened.passthrough.load(Ordering::Relaxed))
    }

    /// Whether they would be, if the kernel or the privileges allowed it.
    pub(crate) fn lack_passthrough(&self) -> bool {
        matches!(self, Self::Opened(opened) if !opened.passthrough.load(Ordering::Relaxed))
    }

    /// Lets go what has been idle for long. Touches the local disk.
    pub(crate) fn expire(&self, now: Instant) {
        // Bound first and dropped at the end, so that files are closed without the lock.
        match self {
            Self::Opened(opened) => {
                let _old = lock(&opened.opens).expire(now);
            }
            Self::Unopened(unopened) => {
                let _old = lock(&unopened.readers).expire(now);
            }
        }
    }
}

/// The files of a mount that has opens.
#[derive(Debug)]
pub(crate) struct Opened {
    snapshot: Arc<Snapshot>,
    runtime: Handle,
    device: Arc<Device>,
    /// Whether backing files can be registered; the first failure ends it for good.
    passthrough: AtomicBool,
    opens: Mutex<Opens<Arc<Backed>, Watch>>,
    /// What reads for each handle. A reader each, because each follows the sequence of its own reads.
    handles: Mutex<HashMap<u64, Arc<Reader>>>,
    next: AtomicU64,
    /// One notification at a time: it may wait, and the runtime's threads for such are few.
    notices: Semaphore,
}

/// A registered backing file, and the reader whose lease keeps it.
#[derive(Debug)]
struct Backed {
    backing: Backing,
    reader: Arc<Reader>,
}

/// The task that waits for a file to become whole; ends with this.
#[derive(Debug)]
struct Watch(AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Opened {
    /// No file is open. With `passthrough`, the kernel has offered it.
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        runtime: Handle,
        device: Arc<Device>,
        passthrough: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            snapshot,
            runtime,
            device,
            passthrough: AtomicBool::new(passthrough),
            opens: Mutex::new(Opens::new()),
            handles: Mutex::default(),
            next: AtomicU64::new(1),
            notices: Semaphore::new(1),
        })
    }

    fn open(self: &Arc<Self>, node: u64, index: u32, slice: Slice) -> Result<OpenOut> {
        // On its own line: the lock must be gone before the second one.
        let again = lock(&self.opens).reopen(node);
        if let Some(backed) = again {
            return Ok(self.handle(backed.reader.clone(), Mode::Passthrough(backed)));
        }
        let reader = Arc::new(self.snapshot.open(slice)?);
        let back = || self.back(&reader);
        let watch = || self.watch(node, index, reader.clone());
        let mode = lock(&self.opens).open(node, back, watch);
        Ok(self.handle(reader, mode))
    }

    fn close(&self, node: u64, fh: u64) {
        let reader = lock(&self.handles).remove(&fh);
        if reader.is_some() {
            let _evicted = lock(&self.opens).close(node, Instant::now());
        }
    }

    /// A new handle that reads by `reader`, and the answer to its OPEN.
    fn handle(&self, reader: Arc<Reader>, mode: Mode<Arc<Backed>>) -> OpenOut {
        let fh = self.next.fetch_add(1, Ordering::Relaxed);
        // With passthrough too: readahead(2) and fadvise(2) still ask the daemon.
        lock(&self.handles).insert(fh, reader);
        match mode {
            Mode::Cached => OpenOut { fh, flags: open::KEEP_CACHE | open::NOFLUSH, backing: 0 },
            Mode::Passthrough(backed) => {
                OpenOut { fh, flags: open::PASSTHROUGH | open::NOFLUSH, backing: backed.backing.id() }
            }
        }
    }

    /// Registers the file behind `reader`, if it is whole.
    fn back(&self, reader: &Arc<Reader>) -> Option<Arc<Backed>> {
        if !self.passthrough.load(Ordering::Relaxed) {
            return None;
        }
        let file: Arc<File> = reader.backing()?;
        match self.device.back(&file) {
            Ok(backing) => Some(Arc::new(Backed { backing, reader: reader.clone() })),
            Err(error) => {
                if self.passthrough.swap(false, Ordering::Relaxed) {
                    tracing::warn!(%error, "no passthrough on this mount: reads of local files go by the daemon");
                }
                None
            }
        }
    }

    /// Begins to wait for the file `index` to become whole, for as long as its node `node` has cached
    /// handles.
    fn watch(self: &Arc<Self>, node: u64, index: u32, reader: Arc<Reader>) -> Option<Watch> {
        if !self.passthrough.load(Ordering::Relaxed) {
            return None;
        }
        let opened = Arc::downgrade(self);
        let task = self.runtime.spawn(async move {
            if reader.whole().await
                && let Some(opened) = opened.upgrade()
            {
                opened.complete(node, index).await;
            }
        });
        Some(Watch(task.abort_handle()))
    }

    /// The file `index` has become whole: its name leads to its other node from now on.
    async fn complete(&self, node: u64, index: u32) {
        if !lock(&self.opens).complete(node) {
            return;
        }
        let Ok(entry) = self.snapshot.manifest().entry(index) else { return };
        let (parent, name) = (tree::base(entry.parent), entry.name.to_vec());
        let device = self.device.clone();
        let Ok(_turn) = self.notices.acquire().await else { return };
        // An error means that the kernel doesn't know the name, or has let the mount go: nothing is left to
        // tell.
        let _ = self.runtime.spawn_blocking(move || device.forget_name(parent, &name)).await;
    }
}

/// The files of a mount that has no opens.
#[derive(Debug)]
pub(crate) struct Unopened {
    snapshot: Arc<Snapshot>,
    runtime: Handle,
    readers: Mutex<Idle<u32, Arc<Reader>>>,
    ahead: Mutex<Ahead>,
}

impl Unopened {
    /// No file is read.
    pub(crate) fn new(snapshot: Arc<Snapshot>, runtime: Handle) -> Arc<Self> {
        let readers = Mutex::new(Idle::new(READERS, IDLE_TIME));
        Arc::new(Self { snapshot, runtime, readers, ahead: Mutex::default() })
    }

    fn reader(&self, index: u32, slice: Slice) -> Result<Arc<Reader>> {
        let known = lock(&self.readers).get(index, Instant::now());
        if let Some(reader) = known {
            return Ok(reader);
        }
        let reader = Arc::new(self.snapshot.open(slice)?);
        let evicted = lock(&self.readers).put(index, reader.clone(), Instant::now());
        drop(evicted);
        Ok(reader)
    }

    /// Brings the files that whoever reads file `index` will read next, if they are local.
    fn lead(self: &Arc<Self>, index: u32) {
        let wanted = lock(&self.ahead).advance(index);
        for from in wanted.clone().step_by(TURN as usize) {
            let (unopened, to) = (self.clone(), wanted.end.min(from + TURN));
            self.runtime.spawn_blocking(move || (from..to).for_each(|index| unopened.bring(index)));
        }
    }

    fn bring(&self, index: u32) {
        // Whatever fails here is told to who reads it.
        let Ok(Entry { node: Node::File(slice), .. }) = self.snapshot.manifest().entry(index) else { return };
        let Some(file) = self.reader(index, slice).ok().and_then(|reader| reader.backing()) else { return };
        let _ = rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::WillNeed);
    }
}
