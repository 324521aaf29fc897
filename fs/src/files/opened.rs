//! The files of a mount that has opens: handles, their modes, and the backing files that the kernel reads.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::{Node, Slice};
use bdnfs::read::Reader;
use bdnfs::snapshot::Snapshot;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::device::{Backing, Device};
use crate::held::Expire;
use crate::ledger::{Entry, Item, Ledger};
use crate::opens::{Mode, Opens};
use crate::tree;
use crate::wire::abi::OpenOut;
use crate::wire::flags::{RESENT, open};

/// The files of a mount that has opens.
#[derive(Debug)]
pub(crate) struct Opened {
    snapshot: Arc<Snapshot>,
    runtime: Handle,
    device: Arc<Device>,
    /// Whether backing files can be registered; the first failure ends it for good.
    passthrough: AtomicBool,
    opens: Mutex<Opens<Arc<Backed>, Watch>>,
    handles: Mutex<HashMap<u64, OpenFile>>,
    ledger: Arc<Ledger>,
    /// Who tells the kernel in this process's place.
    expire: Option<Arc<dyn Expire>>,
    /// One notification at a time: it may wait, and the runtime's threads for such are few.
    notices: Semaphore,
}

/// An open file.
#[derive(Debug)]
struct OpenFile {
    /// What reads for it. A reader each, because each follows the sequence of its own reads.
    reader: Arc<Reader>,
    /// The request that opened it.
    unique: u64,
    /// What that was answered with.
    item: Item,
}

/// A registered backing file, and the reader whose lease keeps it.
#[derive(Debug)]
struct Backed {
    backing: Backing,
    /// Goes after what it tells of.
    _entry: Listed,
    reader: Arc<Reader>,
}

/// An entry of the ledger, which is struck when this is dropped.
#[derive(Debug)]
struct Listed {
    ledger: Arc<Ledger>,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.ledger.strike(self.number);
    }
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
        ledger: Arc<Ledger>,
        expire: Option<Arc<dyn Expire>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            snapshot,
            runtime,
            device,
            passthrough: AtomicBool::new(passthrough),
            opens: Mutex::new(Opens::new()),
            handles: Mutex::default(),
            ledger,
            expire,
            notices: Semaphore::new(1),
        })
    }

    /// What reads for the handle `fh`.
    pub(crate) fn reader(&self, fh: u64) -> Option<Arc<Reader>> {
        self.handles.lock().get(&fh).map(|handle| handle.reader.clone())
    }

    /// The node that a lookup of file `index` is answered with.
    pub(crate) fn prefer(&self, index: u32) -> u64 {
        self.opens.lock().prefer(index)
    }

    /// Whether whole files are read by the kernel itself.
    pub(crate) fn passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Relaxed)
    }

    /// Lets go what has been idle for long at `now`.
    pub(crate) fn expire(&self, now: Instant) {
        // Bound first and dropped at the end, so that files are closed without the lock.
        let _old = self.opens.lock().expire(now);
    }

    /// Takes over what `entries` tell of: what the process before this one had open.
    pub(crate) fn inherit(self: &Arc<Self>, entries: &[Entry]) {
        let mut registered = HashMap::new();
        for entry in entries {
            if let Item::Backing(id) = entry.item {
                registered.insert(id, entry.number);
            }
        }
        self.find_lost(&registered);
        let mut adopted: HashMap<u32, Arc<Backed>> = HashMap::new();
        for entry in entries.iter().filter(|entry| !matches!(entry.item, Item::Backing(_))) {
            let Entry { number, node, unique, item } = *entry;
            let Some((index, reader)) = self.reader_of(node) else { continue };
            let mode = match item {
                Item::Passthrough(id) => {
                    let adopt = || self.adopt(id, registered.remove(&id), node, &reader);
                    Mode::Passthrough(adopted.entry(id).or_insert_with(adopt).clone())
                }
                _ => Mode::Cached,
            };
            let watch = || self.watch(node, index, reader.clone());
            self.opens.lock().inherit(node, mode, watch);
            self.handles.lock().insert(number, OpenFile { reader, unique, item });
        }
        // No handle is left that needs them.
        for (id, number) in registered {
            drop(Backing::adopt(self.device.clone(), id));
            self.ledger.strike(number);
        }
    }

    /// The file of `node`, and a reader of it.
    fn reader_of(&self, node: u64) -> Option<(u32, Arc<Reader>)> {
        let index = tree::index(node)?;
        let open = || match self.snapshot.manifest().entry(index)?.node {
            Node::File(slice) => self.snapshot.open(slice),
            _ => Err(Error::new(Kind::Corrupt, "it is no file")),
        };
        let opened = open().inspect_err(|error| tracing::error!(index, %error, "an open file is lost"));
        Some((index, Arc::new(opened.ok()?)))
    }

    /// The backing file `id` of `node`, which another process registered and which is entered as `number`.
    fn adopt(&self, id: u32, number: Option<u64>, node: u64, reader: &Arc<Reader>) -> Arc<Backed> {
        let backing = Backing::adopt(self.device.clone(), id);
        let number = number.or_else(|| self.ledger.enter(node, 0, Item::Backing(id))).unwrap_or_default();
        let _entry = Listed { ledger: self.ledger.clone(), number };
        Arc::new(Backed { backing, _entry, reader: reader.clone() })
    }

    /// Lets go of the backing file that the process before this one registered and had no time to enter. There is one at
    /// the most, and the kernel counts: it is the one before the next.
    fn find_lost(self: &Arc<Self>, registered: &HashMap<u32, u64>) {
        if self.passthrough()
            && let Ok(next) = self.device.back(&self.ledger.as_fd())
            && let Some(last) = next.id().checked_sub(1).filter(|id| *id > 0 && !registered.contains_key(id))
        {
            drop(Backing::adopt(self.device.clone(), last));
        }
    }

    /// Opens the file `index`, which is `slice`, at its node `node`, for the request `unique`.
    pub(crate) fn open(
        self: &Arc<Self>,
        unique: u64,
        node: u64,
        index: u32,
        slice: Slice,
    ) -> Result<OpenOut> {
        if unique & RESENT != 0
            && let Some(answer) = self.answered(unique & !RESENT)
        {
            return Ok(answer);
        }
        // On its own line: the lock must be gone before the second one.
        let again = self.opens.lock().reopen(node);
        if let Some(backed) = again {
            return self.handle(unique, node, backed.reader.clone(), Mode::Passthrough(backed));
        }
        let reader = Arc::new(self.snapshot.open(slice)?);
        let back = || self.back(node, &reader);
        let watch = || self.watch(node, index, reader.clone());
        let mode = self.opens.lock().open(node, back, watch);
        self.handle(unique, node, reader, mode)
    }

    /// The answer to the request `unique`, if it was made out before and did not get through.
    fn answered(&self, unique: u64) -> Option<OpenOut> {
        let handles = self.handles.lock();
        let (fh, handle) = handles.iter().find(|(_, handle)| handle.unique == unique)?;
        Some(answer(*fh, handle.item))
    }

    /// Closes the handle `fh` of `node`.
    pub(crate) fn close(&self, node: u64, fh: u64) {
        if self.handles.lock().remove(&fh).is_some() {
            // First: as soon as the node is free it may be opened in another mode.
            self.ledger.strike(fh);
            let _evicted = self.opens.lock().close(node, Instant::now());
        }
    }

    /// A new handle of `node` that reads by `reader`, and the answer to its OPEN `unique`.
    fn handle(
        &self,
        unique: u64,
        node: u64,
        reader: Arc<Reader>,
        mode: Mode<Arc<Backed>>,
    ) -> Result<OpenOut> {
        let item = match mode {
            Mode::Cached => Item::Cached,
            Mode::Passthrough(backed) => Item::Passthrough(backed.backing.id()),
        };
        let unique = unique & !RESENT;
        let Some(fh) = self.ledger.enter(node, unique, item) else {
            let _evicted = self.opens.lock().close(node, Instant::now());
            return Err(Error::new(Kind::Busy, "too many files of this mount are open"));
        };
        // With passthrough too: readahead(2) and fadvise(2) still ask the daemon.
        self.handles.lock().insert(fh, OpenFile { reader, unique, item });
        Ok(answer(fh, item))
    }

    /// Registers the file behind `reader`, if it is whole.
    fn back(&self, node: u64, reader: &Arc<Reader>) -> Option<Arc<Backed>> {
        if !self.passthrough() {
            return None;
        }
        let file: Arc<File> = reader.backing()?;
        match self.device.back(&*file) {
            Ok(backing) => {
                let number = self.ledger.enter(node, 0, Item::Backing(backing.id()))?;
                let _entry = Listed { ledger: self.ledger.clone(), number };
                Some(Arc::new(Backed { backing, _entry, reader: reader.clone() }))
            }
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
        if !self.passthrough() {
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
        if !self.opens.lock().complete(node) {
            return;
        }
        let Ok(entry) = self.snapshot.manifest().entry(index) else { return };
        let (parent, name) = (tree::base(entry.parent), entry.name.to_vec());
        let (device, expire) = (self.device.clone(), self.expire.clone());
        let Ok(_turn) = self.notices.acquire().await else { return };
        let tell = move || {
            if !expire.is_some_and(|expire| expire.expire(device.as_fd(), parent, &name)) {
                // An error means that the kernel doesn't know the name, or has let the mount go: nothing is left to tell.
                let _ = device.forget_name(parent, &name);
            }
        };
        let _ = self.runtime.spawn_blocking(tell).await;
    }
}

/// The answer to an OPEN, which made the handle `fh`.
fn answer(fh: u64, item: Item) -> OpenOut {
    match item {
        Item::Passthrough(backing) => OpenOut { fh, flags: open::PASSTHROUGH | open::NOFLUSH, backing },
        _ => OpenOut { fh, flags: open::KEEP_CACHE | open::NOFLUSH, backing: 0 },
    }
}
