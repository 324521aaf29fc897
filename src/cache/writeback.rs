//! Writeback: having the disk begin with what was written, long before it must be done.
//!
//! Asking for it can block while the disk's queue is full, so a thread of its own asks: whoever writes a block goes on to
//! the next one.

use std::fs::File;
use std::sync::mpsc::{SyncSender, sync_channel};

use crate::error::{Error, Kind, Result};

use super::io;

/// How many files may wait to be begun with. More are forgotten: each later question covers them, and the commit asks
/// for all of it.
const QUEUE: usize = 64;

/// The way to the thread that asks. It ends when this is dropped.
#[derive(Debug)]
pub struct Writeback {
    queue: SyncSender<(File, u64)>,
}

impl Writeback {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Kind::Disk`] when none can be made.
    pub fn start() -> Result<Self> {
        let (queue, files) = sync_channel::<(File, u64)>(QUEUE);
        std::thread::Builder::new()
            .name("bdnfs-write".into())
            .spawn(move || files.iter().for_each(|(file, len)| io::begin_writeback(&file, 0, len)))
            .map_err(|e| Error::with(Kind::Disk, "cannot start the thread that begins writeback", e))?;
        Ok(Self { queue })
    }

    /// Has the disk begin with the first `len` bytes of `file`. A hint: it may be forgotten.
    pub fn begin(&self, file: &File, len: u64) {
        if let Ok(file) = file.try_clone() {
            self.queue.try_send((file, len)).ok();
        }
    }
}
