//! Files: opened, read and closed, by one of two ways that a mount keeps to.

use std::sync::Arc;
use std::time::Instant;

use bdnfs::error::Result;
use bdnfs::manifest::{Entry, Node, Slice};
use bdnfs::read::Reader;
use bdnfs::snapshot::Snapshot;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::ahead::Ahead;
use crate::idle::Idle;
use crate::opens::IDLE_TIME;
use crate::tree;
use crate::wire::abi::OpenOut;

mod opened;

pub(crate) use opened::Opened;

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

    /// Opens the file `index`, which is `slice`, at its node `node`, for the request `unique`. `None`: this mount has no
    /// opens.
    pub(crate) fn open(&self, unique: u64, node: u64, index: u32, slice: Slice) -> Result<Option<OpenOut>> {
        match self {
            Self::Opened(opened) => opened.open(unique, node, index, slice).map(Some),
            Self::Unopened(_) => Ok(None),
        }
    }

    /// What reads the file `index`, which is `slice`, by its handle `fh`. `None`: there is no such handle.
    pub(crate) fn reader(&self, fh: u64, index: u32, slice: Slice) -> Result<Option<Arc<Reader>>> {
        match self {
            Self::Opened(opened) => Ok(opened.reader(fh)),
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
            Self::Opened(opened) => opened.prefer(index),
            Self::Unopened(_) => tree::base(index),
        }
    }

    /// Whether whole files are read by the kernel itself.
    pub(crate) fn passthrough(&self) -> bool {
        matches!(self, Self::Opened(opened) if opened.passthrough())
    }

    /// Whether they would be, if the kernel or the privileges allowed it.
    pub(crate) fn lack_passthrough(&self) -> bool {
        matches!(self, Self::Opened(opened) if !opened.passthrough())
    }

    /// Lets go what has been idle for long. Touches the local disk.
    pub(crate) fn expire(&self, now: Instant) {
        match self {
            Self::Opened(opened) => opened.expire(now),
            Self::Unopened(unopened) => {
                // Bound first and dropped at the end, so that files are closed without the lock.
                let _old = unopened.readers.lock().expire(now);
            }
        }
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
        let known = self.readers.lock().get(index, Instant::now());
        if let Some(reader) = known {
            return Ok(reader);
        }
        let reader = Arc::new(self.snapshot.open(slice)?);
        let evicted = self.readers.lock().put(index, reader.clone(), Instant::now());
        drop(evicted);
        Ok(reader)
    }

    /// Brings the files that whoever reads file `index` will read next, if they are local.
    fn lead(self: &Arc<Self>, index: u32) {
        let wanted = self.ahead.lock().advance(index);
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
