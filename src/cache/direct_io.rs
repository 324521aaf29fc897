//! Direct I/O: writes whole blocks to the disk past the page cache.
//!
//! What is delivered is written once and seldom read back soon: a waiting reader has the block from memory. Through the
//! page cache each byte would cost a page, a copy, and a second pass to write it out, and it would push out what the
//! machine's other work keeps there. The page cache is left to the readers.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};

use crate::blob::Key;
use crate::block::BLOCK;
use crate::buffer::{self, ALIGNMENT};

use super::io as positioned;
use super::layout::{BlobFile, Layout};

/// A file of a blob, opened past the page cache.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    /// Whether the disk refused direct I/O: then all goes through the page cache.
    refused: AtomicBool,
}

impl DirectFile {
    /// Opens the file of `key` that has this `form`, a part to be written as well; `None` where the file system has no such way.
    pub fn open(layout: &Layout, key: &Key, form: BlobFile) -> Option<Self> {
        let file = layout.open_direct(key, form).ok()?;
        Some(Self { file, refused: AtomicBool::new(false) })
    }

    /// Writes a whole block. False: it must go through the page cache.
    ///
    /// # Errors
    /// The disk's own.
    pub fn write(&self, offset: u64, block: &Bytes) -> io::Result<bool> {
        if block.len() as u64 != BLOCK || self.refused.load(Relaxed) {
            return Ok(false);
        }
        let written = if block.as_ptr().align_offset(ALIGNMENT) == 0 {
            positioned::write(&self.file, offset, block)
        } else {
            let mut aligned = buffer::block();
            aligned.extend_from_slice(block);
            positioned::write(&self.file, offset, &aligned)
        };
        self.done(written)
    }

    /// Reads the `len` bytes of a block, or of the last one of the file. `None`: they must come through the page cache.
    ///
    /// # Errors
    /// The disk's own.
    pub fn read(&self, offset: u64, len: usize) -> io::Result<Option<BytesMut>> {
        if self.refused.load(Relaxed) {
            return Ok(None);
        }
        let mut buffer = buffer::block();
        // The disk is read in whole pages; the file ends before that.
        let read =
            positioned::fill_at_least(&self.file, offset, &mut buffer, len..=len.next_multiple_of(ALIGNMENT));
        buffer.truncate(len);
        Ok(self.done(read)?.then_some(buffer))
    }

    /// Whether direct I/O succeeded; a refusal is remembered.
    fn done(&self, outcome: io::Result<()>) -> io::Result<bool> {
        match outcome {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.refused.store(true, Relaxed);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
