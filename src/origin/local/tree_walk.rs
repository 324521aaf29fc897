//! Listing a local directory.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat};
use rustix::io::Errno;
use tokio::sync::mpsc::{Sender, channel};

use crate::task::blocking;

use super::{LocalRoot, failure, version};
use crate::error::Result;
use crate::manifest::{ListedFile, Listing};
use crate::origin::display_path;
use crate::source::Patterns;

/// The number of entries that the walking thread sends at once: enough that sending costs nothing.
const BATCH_ENTRIES: usize = 1024;
/// The number of batches that may wait. The walk pauses while the listing can't keep up.
const BATCH_QUEUE_LENGTH: usize = 4;

/// An entry of the tree.
struct WalkEntry {
    path: Vec<u8>,
    mtime: (i64, u32),
    what: EntryKind,
}

enum EntryKind {
    File { size: u64, executable: bool, version: String },
    Directory,
    Symlink(Vec<u8>),
    Other(&'static str),
}

/// Lists all that is below `root` into `listing`.
pub(super) async fn list(path: &str, root: Arc<LocalRoot>, listing: &mut Listing) -> Result<()> {
    let (sender, mut batches) = channel(BATCH_QUEUE_LENGTH);
    let patterns = listing.patterns().clone();
    let mut walk =
        TreeWalk { path: path.into(), root, patterns, sender, batch: Vec::new(), todo: Vec::new() };
    let walked = blocking(move || walk.run());
    let taken = async {
        while let Some(batch) = batches.recv().await {
            batch.into_iter().for_each(|entry| take(listing, entry));
        }
    };
    futures_util::future::join(walked, taken).await.0
}

fn take(listing: &mut Listing, entry: WalkEntry) {
    let WalkEntry { path, mtime, what } = entry;
    match what {
        EntryKind::File { size, executable, version } => listing.file(ListedFile {
            path: &path,
            size,
            mtime,
            executable,
            version: version.as_bytes(),
            sha256: None,
        }),
        EntryKind::Directory => listing.directory(&path, mtime),
        EntryKind::Symlink(target) => listing.symlink(&path, &target, mtime),
        EntryKind::Other(why) => listing.skip(&path, why),
    }
}

/// A walk under way. It ends when nothing receives its batches any more.
struct TreeWalk {
    /// The root's, for messages.
    path: String,
    root: Arc<LocalRoot>,
    patterns: Patterns,
    sender: Sender<Vec<WalkEntry>>,
    batch: Vec<WalkEntry>,
    /// Directories still to be read.
    todo: Vec<Vec<u8>>,
}

impl TreeWalk {
    fn run(&mut self) -> Result<()> {
        match self.root.only.clone() {
            Some(name) => self.entry(&self.root.clone().directory, name.clone(), &name)?,
            None => self.todo.push(Vec::new()),
        }
        while let Some(path) = self.todo.pop() {
            self.directory(&path)?;
            if self.sender.is_closed() {
                return Ok(());
            }
        }
        self.hand_over();
        Ok(())
    }

    fn directory(&mut self, path: &[u8]) -> Result<()> {
        let name = display_path(&self.path, path);
        let fd = match self.root.at(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            // Removed, or replaced by something else, since its parent was read: it is not there any more.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !path.is_empty() => return Ok(()),
            Err(Errno::ACCESS) if !path.is_empty() && !self.patterns.may_select_below(path) => {
                // So that the pattern that ignores it is known to be of use.
                let below = [path, b"/"].concat();
                let what = EntryKind::Other("it can't be read");
                self.add_entry(WalkEntry { path: below, mtime: (0, 0), what });
                return Ok(());
            }
            opened => opened.map_err(|e| failure(&name, e))?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| failure(&name, e))?;
        self.add_entry(WalkEntry { path: path.to_vec(), mtime: mtime(&stat), what: EntryKind::Directory });
        for child in Dir::read_from(&fd).map_err(|e| failure(&name, e))? {
            let child = child.map_err(|e| failure(&name, e))?;
            let name = child.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                let below = if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
                self.entry(&fd, below, name)?;
            }
        }
        Ok(())
    }

    /// Adds the entry `name` of `parent`; its path below the root is `path`.
    fn entry(&mut self, parent: &OwnedFd, path: Vec<u8>, name: &[u8]) -> Result<()> {
        let stat = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            found => found.map_err(|e| failure(&display_path(&self.path, &path), e))?,
        };
        let what = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                self.todo.push(path);
                return Ok(());
            }
            FileType::RegularFile => EntryKind::File {
                size: stat.st_size.unsigned_abs(),
                executable: stat.st_mode & 0o111 != 0,
                version: version(&stat),
            },
            FileType::Symlink => match rustix::fs::readlinkat(parent, name, Vec::new()) {
                Ok(target) => EntryKind::Symlink(target.into_bytes()),
                Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
                Err(error) => return Err(failure(&display_path(&self.path, &path), error)),
            },
            FileType::Socket => EntryKind::Other("it is a socket"),
            FileType::Fifo => EntryKind::Other("it is a fifo"),
            _ => EntryKind::Other("it is a device"),
        };
        self.add_entry(WalkEntry { path, mtime: mtime(&stat), what });
        Ok(())
    }

    /// Adds an entry to the batch, and sends a full batch.
    fn add_entry(&mut self, entry: WalkEntry) {
        self.batch.push(entry);
        if self.batch.len() >= BATCH_ENTRIES {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        // An error means that the listing was given up; the walk notices after its directory.
        let _ = self.sender.blocking_send(std::mem::take(&mut self.batch));
    }
}

fn mtime(stat: &Stat) -> (i64, u32) {
    (stat.st_mtime, stat.st_mtime_nsec as u32)
}
