//! A sorted run of rows as the contents of a manifest: numbers come from counting, so nothing is kept of any entry.

use super::encoder::{BlobEntry, BlobName, ManifestContents};
use super::row::{ListingRow, RowKind};
use super::run::{RowCursor, SortedRun};
use super::{Entry, Node, Slice, corrupt};
use crate::blob::MirrorLocation;
use crate::error::Result;

/// The entries of a listing, in the order of the format.
#[derive(Debug)]
pub(super) struct SortedEntries<'a> {
    /// The name of what was listed.
    pub source: &'a str,
    /// One row for each entry, the root's first.
    pub run: SortedRun,
}

impl ManifestContents for SortedEntries<'_> {
    fn source(&self) -> &str {
        self.source
    }

    fn entries(&self, each: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()> {
        let mut here = self.run.open();
        let (mut above, mut below) = (NumberedCursor::new(&self.run), NumberedCursor::new(&self.run));
        above.step()?;
        // The root has no parent.
        below.step()?;
        below.step()?;
        let (mut index, mut blobs) = (0, BlobNumbers::default());
        while let Some(row) = here.next()? {
            while index > 0 && !above.cursor.row().ok_or_else(missing_directory_error)?.holds(&row) {
                above.step()?;
            }
            let node = match row.what {
                RowKind::Directory => {
                    let start = below.number;
                    while below.cursor.row().is_some_and(|child| row.holds(&child)) {
                        below.step()?;
                    }
                    Node::Directory(start..below.number)
                }
                RowKind::File | RowKind::Program => {
                    Node::File(Slice { blob: blobs.number(&row).0, offset: 0, len: row.size })
                }
                RowKind::Symlink => Node::Symlink(row.tail),
            };
            each(Entry {
                name: row.name(),
                parent: above.number,
                mtime: row.mtime,
                executable: row.what == RowKind::Program,
                node,
            })?;
            index += 1;
        }
        Ok(())
    }

    fn blobs(&self, each: &mut dyn FnMut(BlobEntry<'_>) -> Result<()>) -> Result<()> {
        let mut here = self.run.open();
        let (mut entry, mut blobs) = (0, BlobNumbers::default());
        while let Some(row) = here.next()? {
            if matches!(row.what, RowKind::File | RowKind::Program) && blobs.number(&row).1 {
                each(if row.size == 0 { BlobEntry::empty() } else { content(&row, entry) })?;
            }
            entry += 1;
        }
        Ok(())
    }
}

/// The content of a file that isn't empty.
fn content<'a>(row: &ListingRow<'a>, entry: u32) -> BlobEntry<'a> {
    BlobEntry {
        name: BlobName::Origin,
        size: row.size,
        entry: Some(entry),
        version: row.tail.into(),
        packed: false,
        sha256: row.sha256.copied(),
        stored: MirrorLocation::default(),
    }
}

/// The blobs of the files so far. All empty files share one.
#[derive(Default)]
struct BlobNumbers {
    count: u32,
    empty: Option<u32>,
}

impl BlobNumbers {
    /// The number of a file's blob, and whether it is the first that has it.
    fn number(&mut self, file: &ListingRow<'_>) -> (u32, bool) {
        if let Some(empty) = self.empty.filter(|_| file.size == 0) {
            return (empty, false);
        }
        let number = self.count;
        self.count += 1;
        if file.size == 0 {
            self.empty = Some(number);
        }
        (number, true)
    }
}

/// A cursor that knows the number of its entry.
struct NumberedCursor {
    cursor: RowCursor,
    number: u32,
    begun: bool,
}

impl NumberedCursor {
    /// Before the first.
    fn new(run: &SortedRun) -> Self {
        Self { cursor: run.open(), number: 0, begun: false }
    }

    fn step(&mut self) -> Result<()> {
        self.cursor.next()?;
        self.number += u32::from(std::mem::replace(&mut self.begun, true));
        Ok(())
    }
}

fn missing_directory_error() -> crate::error::Error {
    corrupt("the listing has an entry without a directory")
}
