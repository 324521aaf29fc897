//! Sorted runs: rows in their order, in memory or in an unnamed file, read from the start as often as needed.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::row::{ListingRow, ROW_HEADER_BYTES, RowKind};
use crate::error::{Error, Result};

/// The number of bytes of a run's file that are read at once: runs are read beside each other, each from the start to the end.
const READ_BUFFER_BYTES: usize = 256 << 10;

/// Sorted rows; no directory is there twice.
#[derive(Clone, Debug)]
pub(super) enum SortedRun {
    Memory(Bytes),
    Disk(Arc<File>),
}

impl SortedRun {
    /// A cursor before the first row.
    pub(super) fn open(&self) -> RowCursor {
        let input: Box<dyn BufRead + Send> = match self {
            Self::Memory(bytes) => Box::new(io::Cursor::new(bytes.clone())),
            Self::Disk(file) => Box::new(BufReader::with_capacity(
                READ_BUFFER_BYTES,
                PositionedReader { file: file.clone(), at: 0 },
            )),
        };
        RowCursor { input, bytes: Vec::new() }
    }
}

/// A file that several read at once, each at its own offset.
struct PositionedReader {
    file: Arc<File>,
    at: u64,
}

impl Read for PositionedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The next row of a run.
pub(super) struct RowCursor {
    input: Box<dyn BufRead + Send>,
    bytes: Vec<u8>,
}

impl RowCursor {
    /// The next row; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<ListingRow<'_>>> {
        let there = self.step().map_err(|e| Error::disk("cannot read back a part of the listing", e))?;
        Ok(if there { self.row() } else { None })
    }

    /// The one that was read last.
    pub(super) fn row(&self) -> Option<ListingRow<'_>> {
        ListingRow::get(&self.bytes)
    }

    fn step(&mut self) -> io::Result<bool> {
        self.bytes.clear();
        if self.input.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let mut head = [0; ROW_HEADER_BYTES];
        self.input.read_exact(&mut head)?;
        self.bytes.extend_from_slice(&head);
        self.bytes.resize(ListingRow::len(&head), 0);
        self.input.read_exact(&mut self.bytes[ROW_HEADER_BYTES..])?;
        Ok(true)
    }
}

/// Writes rows, which come in their order, into a run; those of one directory become one.
pub(super) struct RunWriter {
    out: RunOutput,
    /// The directory that came last.
    last: Vec<u8>,
    row: Vec<u8>,
}

enum RunOutput {
    Memory(Vec<u8>),
    /// Into a file of this directory.
    Disk(BufWriter<File>, PathBuf),
}

impl RunWriter {
    /// A writer into memory.
    pub(super) fn memory() -> Self {
        Self { out: RunOutput::Memory(Vec::new()), last: Vec::new(), row: Vec::new() }
    }

    /// A writer into a file of the directory `scratch`.
    pub(super) fn disk(scratch: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(scratch).map_err(|e| spill_failed(scratch, e))?;
        let out = RunOutput::Disk(BufWriter::with_capacity(READ_BUFFER_BYTES, file), scratch.into());
        Ok(Self { out, last: Vec::new(), row: Vec::new() })
    }

    /// Appends the next row. `wanted` is asked of each, once it is known whole, whether it is to be written.
    pub(super) fn push(&mut self, row: &ListingRow<'_>, wanted: &mut RowFilter<'_>) -> Result<()> {
        if row.what == RowKind::Directory
            && let Some(last) = ListingRow::get(&self.last).filter(|last| last.path == row.path)
        {
            let mtime = match (last.dated, row.dated) {
                (true, false) => last.mtime,
                (false, true) => row.mtime,
                _ => last.mtime.max(row.mtime),
            };
            let (dated, kept) = (last.dated || row.dated, last.kept || row.kept);
            let both = ListingRow { mtime, dated, kept, ..*row };
            self.row.clear();
            both.put(&mut self.row);
            std::mem::swap(&mut self.last, &mut self.row);
            return Ok(());
        }
        self.release(wanted)?;
        if row.what == RowKind::Directory {
            row.put(&mut self.last);
            return Ok(());
        }
        self.write(row, wanted)
    }

    /// Writes the directory that came last, if wanted.
    fn release(&mut self, wanted: &mut RowFilter<'_>) -> Result<()> {
        let last = std::mem::take(&mut self.last);
        if let Some(row) = ListingRow::get(&last) {
            self.write(&row, wanted)?;
        }
        self.last = last;
        self.last.clear();
        Ok(())
    }

    fn write(&mut self, row: &ListingRow<'_>, wanted: &mut RowFilter<'_>) -> Result<()> {
        if !wanted(row)? {
            return Ok(());
        }
        match &mut self.out {
            RunOutput::Memory(bytes) => row.put(bytes),
            RunOutput::Disk(out, scratch) => {
                self.row.clear();
                row.put(&mut self.row);
                out.write_all(&self.row).map_err(|e| spill_failed(scratch, e))?;
            }
        }
        Ok(())
    }

    /// The run.
    pub(super) fn finish(mut self, wanted: &mut RowFilter<'_>) -> Result<SortedRun> {
        self.release(wanted)?;
        Ok(match self.out {
            RunOutput::Memory(bytes) => SortedRun::Memory(bytes.into()),
            RunOutput::Disk(out, scratch) => {
                let file = out.into_inner().map_err(|e| spill_failed(&scratch, e.into_error()))?;
                SortedRun::Disk(Arc::new(file))
            }
        })
    }
}

/// Whether a row is to be written.
pub(super) type RowFilter<'a> = dyn FnMut(&ListingRow<'_>) -> Result<bool> + 'a;

fn spill_failed(scratch: &Path, error: io::Error) -> Error {
    let text = format!("the listing is too long for memory, and cannot be kept in {}", scratch.display());
    Error::disk(text, error)
}

/// Merges all rows of `runs` into `out`, in their order.
pub(super) fn merge(runs: &[SortedRun], out: &mut RunWriter, wanted: &mut RowFilter<'_>) -> Result<()> {
    let mut heap = BinaryHeap::with_capacity(runs.len());
    for run in runs {
        let mut cursor = run.open();
        if cursor.next()?.is_some() {
            heap.push(HeapRow(cursor));
        }
    }
    while let Some(mut first) = heap.peek_mut() {
        if let Some(row) = first.0.row() {
            out.push(&row, wanted)?;
        }
        if first.0.next()?.is_none() {
            PeekMut::pop(first);
        }
    }
    Ok(())
}

/// A cursor, the greater the earlier its row comes: a heap has the greatest on top.
struct HeapRow(RowCursor);

impl Ord for HeapRow {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.0.row(), other.0.row()) {
            (Some(one), Some(other)) => other.order(&one),
            // Exhausted runs are removed before they are compared.
            _ => Ordering::Equal,
        }
    }
}

impl PartialOrd for HeapRow {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for HeapRow {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for HeapRow {}
