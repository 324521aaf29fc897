//! Listings: what an origin holds, as it tells it, page by page.

use std::borrow::Cow;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::bad::Bad;
use super::branch::Branch;
use super::encode::encode;
use super::name;
use super::order::Ordered;
use super::record::{self, Record, What};
use super::run::Run;
use super::sort::Sorter;
use super::{escape, layout};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::source::{Patterns, Selection};

/// The most entries a manifest can have: the last number stands for none.
const MOST: u32 = u32::MAX - 1;
/// The longest version of a blob and the longest name of a source, in bytes. No service comes near it.
const LONGEST_VERSION: usize = u16::MAX as usize - 32;

/// A file as an origin lists it.
#[derive(Clone, Debug)]
pub struct Found<'a> {
    /// Its path below the source's root, `/` between parts, byte for byte.
    pub path: &'a [u8],
    /// Its size in bytes.
    pub size: u64,
    /// When it last changed: seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Whether it may be executed.
    pub executable: bool,
    /// The origin's immutable identity for this content of this path.
    pub version: &'a [u8],
    /// The SHA-256 that the origin publishes for it.
    pub sha256: Option<[u8; 32]>,
}

/// Gathers what an origin lists, in any order, and becomes a manifest. The memory that it needs does not grow with what is
/// listed: what is too much goes to files without a name.
///
/// What can't be an entry is not told at once: all of it is told together when the listing is finished.
#[derive(Debug)]
pub struct Listing {
    origin: String,
    selection: Selection,
    sorter: Sorter,
    branch: Branch,
    scratch: PathBuf,
    bad: Bad,
    /// Files and links that the origin told of.
    told: u64,
    /// Those of them that were selected.
    taken: u64,
    escape: bool,
}

impl Listing {
    /// An empty listing of what `origin` names, which takes only what `patterns` select. What is too much for memory goes to
    /// the directory `scratch`, which is not touched before.
    pub fn new(origin: &str, patterns: Patterns, scratch: &Path) -> Self {
        Self {
            origin: origin.into(),
            selection: Selection::new(patterns),
            sorter: Sorter::new(scratch),
            branch: Branch::new(),
            scratch: scratch.into(),
            bad: Bad::default(),
            told: 0,
            taken: 0,
            escape: false,
        }
    }

    /// Has `teller` told of everything that can't be an entry, as it is found: an error holds the first ones.
    pub fn tell_bad(&mut self, teller: impl FnMut(&[u8], &str) + Send + 'static) {
        self.bad.teller = Some(Box::new(teller));
    }

    /// Whether all that came so far could be kept. Asked between pages it spares the rest of a long listing.
    ///
    /// # Errors
    /// [`Kind::Disk`] and [`Kind::NoSpace`].
    pub fn sound(&mut self) -> Result<()> {
        self.sorter.sound()
    }

    /// Has what can't be a name percent-encoded from now on, and not refused. Every `%` is encoded then, so decoding a
    /// path has back what the origin calls it, once `%/` is taken out of it, where a name that is too long goes on
    /// below itself. A file at the path of a directory has its first letter encoded. Patterns are for encoded paths.
    pub fn escape(&mut self) {
        self.escape = true;
    }

    /// Has less room in memory.
    #[cfg(test)]
    pub(super) fn cramped(&mut self, room: usize) {
        self.sorter.cramped(room);
    }

    /// Whether that is so.
    pub(crate) fn escapes(&self) -> bool {
        self.escape
    }

    /// `path` as it is in this tree.
    fn named<'a>(&self, path: &'a [u8]) -> Cow<'a, [u8]> {
        if self.escape && !path.is_empty() { escape::encode(path).into() } else { path.into() }
    }

    /// Takes a file.
    pub fn file(&mut self, found: Found<'_>) {
        let path = self.named(found.path);
        let found = Found { path: &path, ..found };
        if !self.wants(found.path) {
            return;
        }
        if found.version.len() > LONGEST_VERSION {
            return self.bad.add(found.path, "its version is too long");
        }
        if found.size > layout::LARGEST {
            return self.bad.add(found.path, "it is larger than any file can be");
        }
        let what = if found.executable { What::Program } else { What::File };
        let Found { path, size, version, ref sha256, .. } = found;
        self.take(path, what, size, found.mtime, sha256.as_ref(), version);
    }

    /// Takes a directory, which may be empty; the root where `path` is. It is kept if there are no patterns, or
    /// something selected is below it.
    pub fn directory(&mut self, path: &[u8], mtime: (i64, u32)) {
        let path = &*self.named(path);
        let all = self.selection.patterns().all();
        if let Err(why) = name::path(path)
            && !path.is_empty()
        {
            // Whatever is selected below a bad name has a bad path of its own.
            if all {
                self.bad.add(path, why);
            }
            return;
        }
        let mtime = time(mtime);
        self.branch.enter(&record::key(path), &mut self.sorter);
        self.branch.date(mtime);
        if all {
            self.branch.keep(mtime);
        }
    }

    /// Takes a symbolic link.
    pub fn symlink(&mut self, path: &[u8], target: &[u8], mtime: (i64, u32)) {
        let path = &*self.named(path);
        if !self.wants(path) {
            return;
        }
        match name::target(target) {
            Ok(()) => self.take(path, What::Symlink, 0, mtime, None, target),
            Err(why) => self.bad.add(path, why),
        }
    }

    /// Takes what is at `path`, a good one.
    fn take(
        &mut self,
        path: &[u8],
        what: What,
        size: u64,
        mtime: (i64, u32),
        sha256: Option<&[u8; 32]>,
        tail: &[u8],
    ) {
        let (path, mtime) = (record::key(path), time(mtime));
        let name = path.iter().rev().take_while(|b| **b != 0).count();
        let directory = &path[..(path.len() - name).saturating_sub(1)];
        self.branch.enter(directory, &mut self.sorter);
        self.branch.keep(mtime);
        let depth = record::depth(&path);
        let (path, dated, kept) = (&path[..], true, true);
        self.sorter.take(&Record { path, depth, what, size, mtime, dated, kept, sha256, tail });
    }

    /// Notes that what is at `path` can't be an entry, and why: a socket, an object whose key is no path. Like a bad
    /// name, it is told when the listing is finished, if it is selected.
    pub fn refuse(&mut self, path: &[u8], why: &str) {
        let path = &*self.named(path);
        self.told += 1;
        if self.selection.select(path) {
            self.taken += 1;
            self.bad.add(path, why);
        }
    }

    /// Whether the file at `path` is selected. An origin that has to ask for what its listing doesn't tell need not do
    /// so for others.
    pub fn selects(&self, path: &[u8]) -> bool {
        self.selection.patterns().select(path)
    }

    /// The patterns that no path has matched so far, each worth a warning.
    pub fn unmatched(&self) -> Vec<&str> {
        self.selection.unmatched()
    }

    /// Whether what is at `path` is selected and can be an entry; if only the former, that is noted.
    fn wants(&mut self, path: &[u8]) -> bool {
        self.told += 1;
        if !self.selection.select(path) {
            return false;
        }
        self.taken += 1;
        if let Err(why) = name::path(path) {
            self.bad.add(path, why);
            return false;
        }
        true
    }

    /// Writes the manifest and answers with its digest.
    ///
    /// # Errors
    /// [`Kind::Invalid`] that names what can't be an entry, [`Kind::NotFound`] when there is no file or none is
    /// selected, [`Kind::Disk`] and [`Kind::NoSpace`] from `out`, which is taken to lie where the records do.
    pub fn finish(mut self, out: &mut dyn Write) -> Result<Digest> {
        let origin = &self.origin;
        if origin.len() > LONGEST_VERSION {
            return Err(Error::new(Kind::Invalid, format!("a source's name has {} bytes", origin.len())));
        }
        self.branch.close(&mut self.sorter);
        let run =
            order(self.sorter, &self.scratch, self.escape, &mut self.bad).map_err(|e| e.within(origin))?;
        self.bad.check(origin)?;
        if self.taken == 0 {
            let (told, patterns) = (self.told, self.selection.patterns());
            return Err(Error::new(
                Kind::NotFound,
                match told {
                    0 => format!("{origin} holds no file"),
                    1 => format!("the only file of {origin} is not selected by the patterns ({patterns})"),
                    _ => format!(
                        "none of the {told} files of {origin} is selected by the patterns ({patterns})"
                    ),
                },
            ));
        }
        encode(&Ordered { source: origin, run }, out).map_err(|e| e.on_disk(&self.scratch).within(origin))
    }
}

/// The records of `sorter` that become entries, in their order. Where two have one path, the second is told to be bad, or
/// gets another name.
fn order(sorter: Sorter, scratch: &Path, escape: bool, bad: &mut Bad) -> Result<Run> {
    let mut beside = Sorter::new(scratch);
    let run = sorter.finish(&mut Twins::default().find(|record, directory| {
        if escape && directory {
            let parent = &record.path[..record.path.len() - record.name().len()];
            let path = [parent, &escape::beside(record.name())[..]].concat();
            beside.take(&Record { path: &path, ..*record });
            return false;
        }
        bad.add(&record::path(record.path), if directory { BOTH } else { TWICE });
        true
    }))?;
    if beside.is_empty() {
        return Ok(run);
    }
    beside.take_run(run);
    beside.finish(&mut Twins::default().find(|record, directory| {
        bad.add(&record::path(record.path), if directory { BOTH } else { TWICE });
        true
    }))
}

const BOTH: &str = "a file has the same path";
const TWICE: &str = "it is there twice";

/// Finds what has the path of another.
#[derive(Default)]
struct Twins {
    /// The path of the last record, and whether it was a directory.
    last: (Vec<u8>, bool),
    count: u32,
}

impl Twins {
    /// Wants what is kept. What has the path of what came before it, a directory or not, is wanted if `twin` says so.
    fn find(
        mut self,
        mut twin: impl FnMut(&Record<'_>, bool) -> bool,
    ) -> impl FnMut(&Record<'_>) -> Result<bool> {
        move |record| {
            if !record.kept {
                return Ok(false);
            }
            if self.count == MOST {
                let text = "there are more entries than a manifest can hold";
                return Err(Error::new(Kind::Invalid, text));
            }
            let (path, directory) = &mut self.last;
            if self.count > 0 && path == record.path && !twin(record, *directory) {
                return Ok(false);
            }
            path.clear();
            path.extend_from_slice(record.path);
            *directory = record.what == What::Directory;
            self.count += 1;
            Ok(true)
        }
    }
}

/// `mtime` with an origin's odd nanoseconds cut to what a time can have.
fn time(mtime: (i64, u32)) -> (i64, u32) {
    (mtime.0, mtime.1.min(999_999_999))
}
