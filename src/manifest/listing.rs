//! Listings: what an origin holds, as it tells it, page by page.

use std::borrow::Cow;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::directories::DirectoryStack;
use super::encoder::encode;
use super::entries::SortedEntries;
use super::name;
use super::notes::ListingNotes;
use super::rejections::RejectedEntries;
use super::row::{self, ListingRow, RowKind};
use super::run::SortedRun;
use super::sort::ExternalSorter;
use super::{binary, escape};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::source::{Patterns, Selection};

/// The most entries a manifest can have: the last number stands for none.
const MAX_ENTRIES: u32 = u32::MAX - 1;
/// The longest version of a blob and the longest name of a source, in bytes. No service comes near it.
const MAX_VERSION_BYTES: usize = u16::MAX as usize - 32;

/// A file as an origin lists it.
#[derive(Clone, Debug)]
pub struct ListedFile<'a> {
    /// The path below the source's root, `/` between parts, byte for byte.
    pub path: &'a [u8],
    /// The size in bytes.
    pub size: u64,
    /// When it last changed: seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Whether the file may be executed.
    pub executable: bool,
    /// The origin's immutable identity for this content of this path.
    pub version: &'a [u8],
    /// The SHA-256 that the origin publishes for it.
    pub sha256: Option<[u8; 32]>,
}

/// Collects what an origin lists, in any order, into a manifest. Its memory does not grow with the listing: what is too
/// much goes to files without a name.
///
/// Invalid entries are not reported at once: all of them are reported together when the listing is finished.
#[derive(Debug)]
pub struct Listing {
    origin: String,
    selection: Selection,
    sorter: ExternalSorter,
    directories: DirectoryStack,
    scratch: PathBuf,
    rejected: RejectedEntries,
    notes: ListingNotes,
    /// Files and links that the origin listed.
    listed: u64,
    /// Listed files and links that the patterns selected.
    selected: u64,
    escape: bool,
    /// Whether there may be neither a file nor a link.
    may_be_empty: bool,
    /// Patterns of files that may be executed, whatever the origin says; `None`: no others.
    executable: Option<Patterns>,
}

impl Listing {
    /// An empty listing of `origin` for the entries selected by `patterns`. It goes to the directory `scratch` when it is too large
    /// for memory, and does not touch it before.
    pub fn new(origin: &str, patterns: Patterns, scratch: &Path) -> Self {
        Self {
            origin: origin.into(),
            selection: Selection::new(patterns),
            sorter: ExternalSorter::new(scratch),
            directories: DirectoryStack::new(),
            scratch: scratch.into(),
            rejected: RejectedEntries::default(),
            notes: ListingNotes::default(),
            listed: 0,
            selected: 0,
            escape: false,
            may_be_empty: false,
            executable: None,
        }
    }

    /// Calls `callback` with each invalid entry, as it is found: an error holds the first ones.
    pub fn on_rejected(&mut self, callback: impl FnMut(&[u8], &str) + Send + 'static) {
        self.rejected.callback = Some(Box::new(callback));
    }

    /// Whether all that came so far could be kept. Asked between pages it spares the rest of a long listing.
    ///
    /// # Errors
    /// [`Kind::Disk`] and [`Kind::NoSpace`].
    pub fn check_spill(&mut self) -> Result<()> {
        self.sorter.check_spill()
    }

    /// Percent-encodes invalid names from now on, in place of refusing them. Every `%` is encoded then, so decoding a
    /// path has back what the origin calls it, once `%/` is taken out of it, where a name that is too long goes on
    /// below itself. A file at the path of a directory has its first letter encoded. Patterns are for encoded paths.
    pub fn escape(&mut self) {
        self.escape = true;
    }

    /// Takes it also without any file: what is listed may have been emptied, and is known to be there.
    pub fn allow_empty(&mut self) {
        self.may_be_empty = true;
    }

    /// Makes the files that `patterns` select executable from now on, beside those that the origin says are.
    pub fn mark_executable(&mut self, patterns: Patterns) {
        self.executable = Some(patterns);
    }

    /// Limits the memory of the listing, in bytes.
    #[cfg(test)]
    pub(super) fn limit_memory(&mut self, room: usize) {
        self.sorter.limit_memory(room);
    }

    /// Whether invalid names are percent-encoded.
    pub(crate) fn escapes(&self) -> bool {
        self.escape
    }

    /// `path` as it is in this tree.
    fn named<'a>(&self, path: &'a [u8]) -> Cow<'a, [u8]> {
        if self.escape && !path.is_empty() { escape::encode(path).into() } else { path.into() }
    }

    /// The patterns that select what is kept.
    pub(crate) fn patterns(&self) -> &Patterns {
        self.selection.patterns()
    }

    /// Adds a file.
    pub fn file(&mut self, found: ListedFile<'_>) {
        let path = self.named(found.path);
        let found = ListedFile { path: &path, ..found };
        if !self.wants(found.path) {
            return;
        }
        if found.version.len() > MAX_VERSION_BYTES {
            return self.rejected.add(found.path, "its version is too long");
        }
        if found.size > binary::MAX_BLOB_BYTES {
            return self.rejected.add(found.path, "it is larger than any file can be");
        }
        if found.size == 0 && found.sha256.is_some_and(|sha256| sha256 != *Sha256::digest([])) {
            return self
                .rejected
                .add(found.path, "its size is 0, and its SHA-256 is not that of an empty file");
        }
        let marked = || self.executable.as_ref().is_some_and(|patterns| patterns.select(found.path));
        let what = if found.executable || marked() { RowKind::Program } else { RowKind::File };
        let ListedFile { path, size, version, ref sha256, .. } = found;
        self.take(path, what, size, found.mtime, sha256.as_ref(), version);
    }

    /// Adds a directory, which may be empty; the root where `path` is. It is kept if there are no patterns,
    /// or something selected is below it.
    pub fn directory(&mut self, path: &[u8], mtime: (i64, u32)) {
        let path = &*self.named(path);
        let all = self.selection.patterns().all();
        if let Err(why) = name::path(path)
            && !path.is_empty()
        {
            // Whatever is selected below a bad name has a bad path of its own.
            if all {
                self.rejected.add(path, why);
            }
            return;
        }
        let mtime = time(mtime);
        self.directories.enter(&row::key(path), &mut self.sorter);
        self.directories.date(mtime);
        if all {
            self.directories.keep(mtime);
        }
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &[u8], target: &[u8], mtime: (i64, u32)) {
        let path = &*self.named(path);
        if !self.wants(path) {
            return;
        }
        match name::target(target) {
            Ok(()) => self.take(path, RowKind::Symlink, 0, mtime, None, target),
            Err(why) => self.rejected.add(path, why),
        }
    }

    /// Adds the entry at `path`, which is valid.
    fn take(
        &mut self,
        path: &[u8],
        what: RowKind,
        size: u64,
        mtime: (i64, u32),
        sha256: Option<&[u8; 32]>,
        tail: &[u8],
    ) {
        let (path, mtime) = (row::key(path), time(mtime));
        let name = path.iter().rev().take_while(|b| **b != 0).count();
        let directory = &path[..(path.len() - name).saturating_sub(1)];
        self.directories.enter(directory, &mut self.sorter);
        self.directories.keep(mtime);
        let depth = row::depth(&path);
        let (path, dated, kept) = (&path[..], true, true);
        self.sorter.push(&ListingRow { path, depth, what, size, mtime, dated, kept, sha256, tail });
    }

    /// Leaves out what is at `path`, which holds no data, and notes why if it is selected: a fifo, a socket, a device.
    pub fn skip(&mut self, path: &[u8], why: &str) {
        let path = &*self.named(path);
        if self.selection.select(path) {
            self.notes.skip(path, why);
        }
    }

    /// Records an object at `path` that can't be an entry, and why: its key is no path. Like a bad name, it
    /// is reported when the listing is finished, if it is selected.
    pub fn refuse(&mut self, path: &[u8], why: &str) {
        let path = &*self.named(path);
        self.listed += 1;
        if self.selection.select(path) {
            self.selected += 1;
            self.rejected.add(path, why);
        }
    }

    /// Whether the file at `path` is selected. An origin that has to ask for what its listing doesn't tell need not do
    /// so for others.
    pub fn selects(&self, path: &[u8]) -> bool {
        self.selection.patterns().select(path)
    }

    /// The notes for users so far.
    pub fn notes(&self) -> ListingNotes {
        let unmatched = self.selection.unmatched().into_iter().map(String::from).collect();
        ListingNotes { unmatched, ..self.notes.clone() }
    }

    /// Whether what is at `path` is selected and can be an entry; if only the former, that is noted.
    fn wants(&mut self, path: &[u8]) -> bool {
        self.listed += 1;
        if !self.selection.select(path) {
            return false;
        }
        self.selected += 1;
        if let Err(why) = name::path(path) {
            self.rejected.add(path, why);
            return false;
        }
        true
    }

    /// Writes the manifest and returns its digest.
    ///
    /// # Errors
    /// [`Kind::Invalid`] that names what can't be an entry, [`Kind::NotFound`] when there is no file or none is
    /// selected, [`Kind::Disk`] and [`Kind::NoSpace`] from `out`, which is taken to lie where the rows do.
    pub fn finish(mut self, out: &mut dyn Write) -> Result<Digest> {
        let origin = &self.origin;
        if origin.len() > MAX_VERSION_BYTES {
            return Err(Error::new(Kind::Invalid, format!("a source's name has {} bytes", origin.len())));
        }
        self.directories.close(&mut self.sorter);
        let run = order(self.sorter, &self.scratch, self.escape, &mut self.rejected)
            .map_err(|e| e.context(origin))?;
        self.rejected.check(origin)?;
        if self.selected == 0 && !self.may_be_empty {
            let (listed, patterns) = (self.listed, self.selection.patterns());
            return Err(Error::new(
                Kind::NotFound,
                match listed {
                    0 => format!("{origin} holds no file"),
                    1 => format!("the only file of {origin} is not selected by the patterns ({patterns})"),
                    _ => format!(
                        "none of the {listed} files of {origin} is selected by the patterns ({patterns})"
                    ),
                },
            ));
        }
        encode(&SortedEntries { source: origin, run }, out)
            .map_err(|e| e.on_disk(&self.scratch).context(origin))
    }
}

/// The rows of `sorter` that become entries, in their order. Where two have one path, the second is
/// reported as invalid, or gets another name.
fn order(
    sorter: ExternalSorter,
    scratch: &Path,
    escape: bool,
    rejected: &mut RejectedEntries,
) -> Result<SortedRun> {
    let mut beside = ExternalSorter::new(scratch);
    let run = sorter.finish(&mut DuplicatePaths::default().find(|row, directory| {
        if escape && directory {
            let parent = &row.path[..row.path.len() - row.name().len()];
            let path = [parent, &escape::beside(row.name())[..]].concat();
            beside.push(&ListingRow { path: &path, ..*row });
            return false;
        }
        rejected.add(&row::path(row.path), if directory { ALSO_A_DIRECTORY } else { LISTED_TWICE });
        true
    }))?;
    if beside.is_empty() {
        return Ok(run);
    }
    beside.push_run(run);
    beside.finish(&mut DuplicatePaths::default().find(|row, directory| {
        rejected.add(&row::path(row.path), if directory { ALSO_A_DIRECTORY } else { LISTED_TWICE });
        true
    }))
}

const ALSO_A_DIRECTORY: &str = "a file has the same path";
const LISTED_TWICE: &str = "it is there twice";

/// Finds what has the path of another.
#[derive(Default)]
struct DuplicatePaths {
    /// The path of the last row, and whether it was a directory.
    last: (Vec<u8>, bool),
    count: u32,
}

impl DuplicatePaths {
    /// A filter that accepts the rows that are kept. One with the path of the row before it is accepted if `twin` says so.
    fn find(
        mut self,
        mut twin: impl FnMut(&ListingRow<'_>, bool) -> bool,
    ) -> impl FnMut(&ListingRow<'_>) -> Result<bool> {
        move |row| {
            if !row.kept {
                return Ok(false);
            }
            if self.count == MAX_ENTRIES {
                let text = "there are more entries than a manifest can hold";
                return Err(Error::new(Kind::Invalid, text));
            }
            let (path, directory) = &mut self.last;
            if self.count > 0 && path == row.path && !twin(row, *directory) {
                return Ok(false);
            }
            path.clear();
            path.extend_from_slice(row.path);
            *directory = row.what == RowKind::Directory;
            self.count += 1;
            Ok(true)
        }
    }
}

/// `mtime` with an origin's odd nanoseconds cut to what a time can have.
fn time(mtime: (i64, u32)) -> (i64, u32) {
    (mtime.0, mtime.1.min(999_999_999))
}
