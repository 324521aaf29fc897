//! Registered files: what the kernel reads by itself, and the ledger's record of it.

use std::fs::File;
use std::io::IoSliceMut;
use std::sync::Arc;

use bdnfs::read::Reader;
use rustix::io::{Errno, ReadWriteFlags};

use crate::device::BackingFile;
use crate::ledger::Ledger;

/// A registered backing file, and the reader whose lease keeps it in the cache.
#[derive(Debug)]
pub(super) struct RegisteredFile {
    pub(super) backing: BackingFile,
    /// Dropped after what it records.
    pub(super) _slot: LedgerSlot,
    pub(super) reader: Arc<Reader>,
    /// The file that the kernel reads: known to be open, should it turn out to be damaged.
    pub(super) file: Option<Arc<File>>,
}

impl RegisteredFile {
    /// Whether the kernel can read it still.
    pub(super) fn is_readable(&self) -> bool {
        self.file.as_ref().is_none_or(|file| is_readable(file))
    }
}

/// Whether the disk below `file` still answers: one that was shut down, or whose device has gone, fails all reads. Asks for what is
/// in memory only, so that it waits for nothing.
pub(super) fn is_readable(file: &File) -> bool {
    let mut byte = [0];
    let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT);
    read != Err(Errno::IO)
}

/// An entry of the ledger, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct LedgerSlot {
    pub(super) ledger: Arc<Ledger>,
    pub(super) number: u64,
}

impl Drop for LedgerSlot {
    fn drop(&mut self) {
        self.ledger.remove(self.number);
    }
}
