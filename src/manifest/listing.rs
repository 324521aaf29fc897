//! Listings: what an origin holds, as it tells it, page by page.

use std::borrow::Cow;
use std::io::Write;

use super::encode::encode;
use super::name::{self, Shown};
use super::order::Ordered;
use super::tree::{Item, Tree, What};
use super::{escape, layout};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::source::{Patterns, Selection};

/// How many bad names an error tells; more would help nobody.
const TOLD: usize = 20;
/// The most entries a manifest can have: the last number stands for none.
const MOST: usize = u32::MAX as usize - 1;
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

/// Gathers what an origin lists, in any order, and becomes a manifest.
///
/// What can't be an entry is not told at once: all of it is told together when the listing is finished.
#[derive(Debug)]
pub struct Listing {
    origin: String,
    selection: Selection,
    tree: Tree,
    bad: Bad,
    /// Files and links that the origin told of.
    told: u64,
    /// Those of them that were selected.
    taken: u64,
    escape: bool,
}

impl Listing {
    /// An empty listing of what `origin` names, which takes only what `patterns` select.
    pub fn new(origin: &str, patterns: Patterns) -> Self {
        Self {
            origin: origin.into(),
            selection: Selection::new(patterns),
            tree: Tree::new(),
            bad: Bad::default(),
            told: 0,
            taken: 0,
            escape: false,
        }
    }

    /// Has what can't be a name percent-encoded from now on, and not refused. Every `%` is encoded then, so decoding a
    /// path has back what the origin calls it, once `%/` is taken out of it, where a name that is too long goes on
    /// below itself. A file at the path of a directory has its first letter encoded. Patterns are for encoded paths.
    pub fn escape(&mut self) {
        self.escape = true;
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
        let item = self.tree.add(found.path, what, found.sha256, found.version);
        item.size = found.size;
        date(item, found.mtime);
    }

    /// Takes a directory, which may be empty; the root where `path` is. It is kept if there are no patterns, or
    /// something selected is below it.
    pub fn directory(&mut self, path: &[u8], mtime: (i64, u32)) {
        let path = &*self.named(path);
        let all = self.selection.patterns().all();
        let why = match name::path(path) {
            Err(why) if !path.is_empty() => Some(why),
            _ => self.full(),
        };
        if let Some(why) = why {
            // Whatever is selected below a bad name has a bad path of its own.
            if all {
                self.bad.add(path, why);
            }
            return;
        }
        let number = self.tree.directory(path);
        if all {
            self.tree.keep(number);
        }
        let directory = &mut self.tree.directories[number as usize];
        directory.dated = true;
        date(&mut self.tree.items[directory.item as usize], mtime);
    }

    /// Takes a symbolic link.
    pub fn symlink(&mut self, path: &[u8], target: &[u8], mtime: (i64, u32)) {
        let path = &*self.named(path);
        if !self.wants(path) {
            return;
        }
        match name::target(target) {
            Ok(()) => date(self.tree.add(path, What::Symlink, None, target), mtime),
            Err(why) => self.bad.add(path, why),
        }
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
        let why = name::path(path).err().or_else(|| self.full());
        if let Some(why) = why {
            self.bad.add(path, why);
        }
        why.is_none()
    }

    /// Why nothing more can be taken, if that is so. A path may need as many new directories as it has parts.
    fn full(&self) -> Option<&'static str> {
        let full = self.tree.items.len() > MOST - name::LONGEST_PATH;
        full.then_some("there are more entries than a manifest can hold")
    }

    /// Writes the manifest and answers with its digest.
    ///
    /// # Errors
    /// [`Kind::Invalid`] that names what can't be an entry, [`Kind::NotFound`] when there is no file or none is
    /// selected, [`Kind::Disk`] and [`Kind::NoSpace`] from `out`.
    pub fn finish(mut self, out: &mut dyn Write) -> Result<Digest> {
        let origin = &self.origin;
        if origin.len() > LONGEST_VERSION {
            return Err(Error::new(Kind::Invalid, format!("a source's name has {} bytes", origin.len())));
        }
        if self.escape {
            self.tree.part(escape::beside);
        }
        let ordered = Ordered::new(origin, self.tree, |tree, item| {
            let directory = item.what == What::Directory;
            self.bad.add(
                &tree.path(item),
                if directory { "a file has the same path" } else { "it is there twice" },
            );
        });
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
        encode(&ordered, out)
    }
}

/// Sets the time of `item`. An origin's odd nanoseconds are cut to what a time can have.
fn date(item: &mut Item, mtime: (i64, u32)) {
    item.seconds = mtime.0;
    item.nanoseconds = mtime.1.min(999_999_999);
}

/// What can't be an entry: the first ones, and how many there are.
#[derive(Debug, Default)]
struct Bad {
    told: Vec<String>,
    count: u64,
}

impl Bad {
    fn add(&mut self, path: &[u8], why: &str) {
        self.count += 1;
        if self.told.len() < TOLD {
            self.told.push(format!("{}: {why}", Shown(path)));
        }
    }

    fn check(&self, origin: &str) -> Result<()> {
        let more = match self.count - self.told.len() as u64 {
            0 if self.told.is_empty() => return Ok(()),
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let told = self.told.join("; ");
        let text = format!(
            "{origin} holds what can't be mounted; rename it, or leave it out by a pattern: {told}{more}"
        );
        Err(Error::new(Kind::Invalid, text))
    }
}
