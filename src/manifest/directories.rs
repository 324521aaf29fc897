//! The stack of open directories of a listing, from the root to that of its last file.

use super::row::{self, ListingRow};
use super::sort::ExternalSorter;

/// The open directories of a listing. Each becomes a row when the listing leaves it; what comes back to one makes it
/// another.
#[derive(Debug)]
pub(super) struct DirectoryStack {
    /// The last directory's path, in the form of rows.
    path: Vec<u8>,
    /// The root comes first.
    levels: Vec<OpenDirectory>,
}

/// A directory on the stack.
#[derive(Debug, Default)]
struct OpenDirectory {
    /// The length of its path.
    end: usize,
    /// The directory's own time, where it is known.
    own: Option<(i64, u32)>,
    /// The time of the newest below it.
    newest: (i64, u32),
    kept: bool,
}

impl DirectoryStack {
    /// The root alone.
    pub(super) fn new() -> Self {
        Self { path: Vec::new(), levels: vec![OpenDirectory { kept: true, ..OpenDirectory::default() }] }
    }

    /// Enters the directory `path`, in the form of rows.
    pub(super) fn enter(&mut self, path: &[u8], sorter: &mut ExternalSorter) {
        if path == self.path {
            return;
        }
        let below = |end: usize, known: &[u8]| {
            end == 0 || path.starts_with(&known[..end]) && path.get(end).is_none_or(|b| *b == 0)
        };
        while self.levels.last().is_some_and(|level| !below(level.end, &self.path)) {
            self.leave(sorter);
        }
        let known = self.levels.last().map_or(0, |level| level.end);
        self.path.clear();
        self.path.extend_from_slice(path);
        let ends = (known + 1..=path.len()).filter(|end| path.get(*end).is_none_or(|b| *b == 0));
        self.levels.extend(ends.map(|end| OpenDirectory { end, ..OpenDirectory::default() }));
    }

    /// Keeps the directory that it is in, where something of time `mtime` lies.
    pub(super) fn keep(&mut self, mtime: (i64, u32)) {
        if let Some(level) = self.levels.last_mut() {
            level.kept = true;
            level.newest = level.newest.max(mtime);
        }
    }

    /// Gives the directory that it is in a time of its own.
    pub(super) fn date(&mut self, mtime: (i64, u32)) {
        if let Some(level) = self.levels.last_mut() {
            level.own = level.own.max(Some(mtime));
        }
    }

    /// Makes rows of all that are left.
    pub(super) fn close(&mut self, sorter: &mut ExternalSorter) {
        while !self.levels.is_empty() {
            self.leave(sorter);
        }
    }

    fn leave(&mut self, sorter: &mut ExternalSorter) {
        let Some(level) = self.levels.pop() else { return };
        let path = &self.path[..level.end];
        let mtime = level.own.unwrap_or(level.newest);
        let (dated, kept) = (level.own.is_some(), level.kept);
        sorter.push(&ListingRow { mtime, dated, kept, ..ListingRow::directory(path, row::depth(path)) });
        if level.kept
            && let Some(parent) = self.levels.last_mut()
        {
            parent.kept = true;
            parent.newest = parent.newest.max(level.newest);
        }
    }
}
