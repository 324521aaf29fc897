//! External merge sort of rows, in bounded memory: what doesn't fit is sorted batch by batch into unnamed files, and merged
//! at the end.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use super::row::ListingRow;
use super::run::{RowFilter, RunWriter, SortedRun, merge};
use crate::error::{Error, Kind, Result};

/// The number of bytes of rows that are kept in memory before they are put on the disk; while that happens, as many come. Those of
/// 100,000 objects, and so of nearly every source. A little less than a power of two, so that the last row doesn't double what they
/// lie in.
const BATCH_BYTES: usize = (16 << 20) - (128 << 10);
/// The number of runs that are merged at once: their buffers take 16 MiB.
const MAX_MERGED_RUNS: usize = 64;

/// Sorts rows, in memory and on the disk.
#[derive(Debug)]
pub(super) struct ExternalSorter {
    scratch: PathBuf,
    batch_bytes: usize,
    batch: RowBatch,
    runs: Vec<SortedRun>,
    /// The runs, while another is being written.
    writing: Option<JoinHandle<Result<Vec<SortedRun>>>>,
    failure: Option<Error>,
}

/// Rows in memory.
#[derive(Debug, Default)]
struct RowBatch {
    bytes: Vec<u8>,
    /// The offset of each.
    row_offsets: Vec<u32>,
}

impl ExternalSorter {
    /// No rows yet. Files are made in the directory `scratch` if there come to be many.
    pub(super) fn new(scratch: &Path) -> Self {
        let (runs, batch) = (Vec::new(), RowBatch::default());
        Self { scratch: scratch.into(), batch_bytes: BATCH_BYTES, batch, runs, writing: None, failure: None }
    }

    /// Limits the memory of a batch, in bytes.
    #[cfg(test)]
    pub(super) fn limit_memory(&mut self, batch_bytes: usize) {
        self.batch_bytes = batch_bytes;
    }

    /// Adds a row. Waits for the disk only when it is slower than what comes.
    pub(super) fn push(&mut self, row: &ListingRow<'_>) {
        if self.batch.bytes.len() >= self.batch_bytes {
            self.spill();
        }
        self.batch.row_offsets.push(self.batch.bytes.len() as u32);
        row.put(&mut self.batch.bytes);
    }

    /// Adds a whole run.
    pub(super) fn push_run(&mut self, run: SortedRun) {
        self.runs.push(run);
    }

    /// Whether there are no rows.
    pub(super) fn is_empty(&self) -> bool {
        self.batch.row_offsets.is_empty() && self.runs.is_empty() && self.writing.is_none()
    }

    /// Whether all that came so far could be kept.
    ///
    /// # Errors
    /// [`Kind::Disk`] and [`Kind::NoSpace`] for the directory; once.
    pub(super) fn check_spill(&mut self) -> Result<()> {
        if self.writing.as_ref().is_some_and(JoinHandle::is_finished) {
            self.await_run();
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Sorts and writes the batch on another thread: a slow disk must not hold up callers.
    fn spill(&mut self) {
        self.await_run();
        let (batch, mut runs) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.runs));
        if self.failure.is_some() {
            // The listing has failed, and what still comes of it is of no use.
            return;
        }
        let scratch = self.scratch.clone();
        self.writing = Some(std::thread::spawn(move || {
            if runs.len() >= MAX_MERGED_RUNS {
                let mut out = RunWriter::disk(&scratch)?;
                merge(&runs, &mut out, &mut all)?;
                runs = vec![out.finish(&mut all)?];
            }
            runs.push(batch.write(RunWriter::disk(&scratch)?, &mut all)?);
            Ok(runs)
        }));
    }

    /// Waits for the run that is being written.
    fn await_run(&mut self) {
        let Some(writing) = self.writing.take() else { return };
        let lost = |_| Err(Error::new(Kind::Disk, "a part of the listing was lost"));
        match writing.join().unwrap_or_else(lost) {
            Ok(runs) => self.runs.extend(runs),
            Err(error) => self.failure = Some(error),
        }
    }

    /// All rows in one run, of those that are `wanted`.
    ///
    /// # Errors
    /// [`Kind::Disk`] and [`Kind::NoSpace`] for the directory; those of `wanted`.
    pub(super) fn finish(mut self, wanted: &mut RowFilter<'_>) -> Result<SortedRun> {
        self.await_run();
        if self.runs.is_empty() && self.failure.is_none() {
            return self.batch.write(RunWriter::memory(), wanted);
        }
        self.spill();
        self.await_run();
        self.check_spill()?;
        let mut out = RunWriter::disk(&self.scratch)?;
        merge(&self.runs, &mut out, wanted)?;
        out.finish(wanted)
    }
}

/// Wants every row.
fn all(_: &ListingRow<'_>) -> Result<bool> {
    Ok(true)
}

impl RowBatch {
    /// Sorts its rows into a run.
    fn write(mut self, mut out: RunWriter, wanted: &mut RowFilter<'_>) -> Result<SortedRun> {
        let row = |offset: u32| ListingRow::get(&self.bytes[offset as usize..]);
        self.row_offsets.sort_unstable_by(|one, other| match (row(*one), row(*other)) {
            (Some(one), Some(other)) => one.order(&other),
            _ => std::cmp::Ordering::Equal,
        });
        for offset in &self.row_offsets {
            if let Some(row) = row(*offset) {
                out.push(&row, wanted)?;
            }
        }
        out.finish(wanted)
    }
}
