//! Walking a directory that is being written to.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::skip_reason::SkipReason;
use crate::error::{Error, Kind, Result};
use crate::origin::file_version;

/// The most entries that a directory may have. A checkpoint of a million files is none.
const MAX_SCANNED_ENTRIES: usize = 1 << 20;
/// The most bytes that their paths and what its links hold may have together, all in memory: 128 for each where there are most.
const MAX_SCANNED_PATH_BYTES: usize = 128 << 20;

/// The longest path that can be opened, in bytes: the kernel's is one longer, with its end.
const MAX_PATH_BYTES: usize = 4095;

/// A time of a file: seconds and nanoseconds since 1970.
pub type FileTime = (i64, u32);
/// The entries that are left out of a directory, and why.
pub type SkippedEntries = BTreeMap<Vec<u8>, SkipReason>;

/// A directory that is walked, held open.
#[derive(Debug)]
pub struct VolumeDirectory {
    path: PathBuf,
    directory: OwnedFd,
    device: u64,
}

/// A regular file as a walk found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScannedFile {
    /// The version of its content: device, inode, size and times.
    pub version: String,
    /// The size in bytes.
    pub size: u64,
    /// When it was last written: seconds and nanoseconds since 1970.
    pub mtime: FileTime,
    /// Whether it is executable.
    pub executable: bool,
}

/// The result of a walk, by paths below the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The regular files.
    pub files: BTreeMap<Vec<u8>, ScannedFile>,
    /// The directories, without the one that was walked, and when each was last changed.
    pub directories: BTreeMap<Vec<u8>, FileTime>,
    /// The directories that were themselves renamed, or given other permissions, after they were last changed, and when. One that
    /// was changed since is not among them.
    pub renamed: BTreeMap<Vec<u8>, FileTime>,
    /// When the directory that was walked was last changed, or given other permissions.
    pub root: FileTime,
    /// The directories that lost one to a removal or renaming while they were walked.
    pub shrunk: BTreeSet<Vec<u8>>,
    /// The directories that are not there, and are to stay in the next snapshot.
    pub kept_directories: BTreeSet<Vec<u8>>,
    /// The symbolic links: what each holds, and when it was made.
    pub links: BTreeMap<Vec<u8>, (Vec<u8>, FileTime)>,
    /// The entries that are left out, and why.
    pub skipped: SkippedEntries,
}

/// A walk under way.
struct Walk {
    scan: Scan,
    /// The directories that are to be read.
    todo: Vec<Vec<u8>>,
    /// The number of entries that it may still find.
    entries: usize,
    /// The number of bytes that their paths may still have, and what links hold.
    path_bytes: usize,
}

impl Walk {
    /// Takes room for bytes of a path or a link; `None` where there is not so much.
    fn take_bytes(&mut self, bytes: usize) -> Option<()> {
        self.path_bytes = self.path_bytes.checked_sub(bytes)?;
        Some(())
    }

    /// Takes room for an entry.
    fn take(&mut self, path: &[u8]) -> Option<()> {
        self.entries = self.entries.checked_sub(1)?;
        self.take_bytes(path.len())
    }
}

impl VolumeDirectory {
    /// Opens the directory at `path`. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn open(path: &Path) -> Result<Self> {
        let fault = |e: Errno| Error::disk(format!("cannot open {}", path.display()), e.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(fault)?;
        let device = rustix::fs::fstat(&directory).map_err(fault)?.st_dev;
        Ok(Self { path: path.to_owned(), directory, device })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.directory
    }

    /// Opens what lies at `path` below it for reading, on the same file system and through no link. A fifo there does not block.
    pub(super) fn at(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let path = OsStr::from_bytes(if path.is_empty() { b"." } else { path });
        let beneath = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), beneath)
    }

    /// Opens the regular file at `path` below it; `None` where that is something else now, or nothing. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn open_file(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        let fault = |e: Errno| Error::disk(format!("cannot open {}", self.name(path)), e.into());
        let opened = match self.at(path, OFlags::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NXIO) => return Ok(None),
            opened => opened.map_err(fault)?,
        };
        let stat = rustix::fs::fstat(&opened).map_err(fault)?;
        Ok((FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(opened))
    }

    /// The first bytes of the regular file at `path` below it, `most` of them at most; `None` where there is none. Touches the
    /// local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn read_small(&self, path: &[u8], most: u64) -> Result<Option<Vec<u8>>> {
        let Some(opened) = self.open_file(path)? else { return Ok(None) };
        let mut content = Vec::new();
        let read = File::from(opened).take(most).read_to_end(&mut content);
        read.map_err(|e| Error::disk(format!("cannot read {}", self.name(path)), e))?;
        Ok(Some(content))
    }

    /// The full path of `path` below it, for messages.
    pub(super) fn name(&self, path: &[u8]) -> String {
        self.path.join(OsStr::from_bytes(path)).display().to_string()
    }

    /// Finds all that is in it. What comes and goes meanwhile may be found or not. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`]; [`Kind::Invalid`] where it has more than a million entries, or their paths more than 128 MiB.
    pub fn walk(&self) -> Result<Scan> {
        self.walk_within(MAX_SCANNED_ENTRIES, MAX_SCANNED_PATH_BYTES)
    }

    fn walk_within(&self, entries: usize, path_bytes: usize) -> Result<Scan> {
        let mut walk = Walk { scan: Scan::default(), todo: vec![Vec::new()], entries, path_bytes };
        while let Some(path) = walk.todo.pop() {
            let opened = match self.at(&path, OFlags::DIRECTORY) {
                // Removed, or replaced by something else, since its parent was read.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) if !path.is_empty() => {
                    walk.scan.shrunk.insert(split(&path).0.to_owned());
                    continue;
                }
                opened => opened.map_err(|e| self.fault(&path, e))?,
            };
            let stat = rustix::fs::fstat(&opened).map_err(|e| self.fault(&path, e))?;
            for child in Dir::read_from(&opened).map_err(|e| self.fault(&path, e))? {
                let child = child.map_err(|e| self.fault(&path, e))?;
                let name = child.file_name().to_bytes();
                if !matches!(name, b"." | b"..") {
                    let below =
                        if path.is_empty() { name.to_vec() } else { [&path, &b"/"[..], name].concat() };
                    // As it is read: one directory alone may have more than fits.
                    walk.take(&below).ok_or_else(|| self.too_large())?;
                    self.entry(&opened, &stat, below, name, &mut walk)?;
                }
            }
            // Only now: what came and went while it was read is older than that.
            let stat = rustix::fs::fstat(&opened).map_err(|e| self.fault(&path, e))?;
            if path.is_empty() {
                walk.scan.root = ctime(&stat);
            } else {
                if ctime(&stat) > mtime(&stat) {
                    walk.scan.renamed.insert(path.clone(), ctime(&stat));
                }
                walk.scan.directories.insert(path, mtime(&stat));
            }
        }
        Ok(walk.scan)
    }

    /// Adds the entry `name` of the directory `parent`; its path below the root is `path`.
    fn entry(
        &self,
        parent: &OwnedFd,
        above: &Stat,
        path: Vec<u8>,
        name: &[u8],
        walk: &mut Walk,
    ) -> Result<()> {
        let stat = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            found => found.map_err(|e| self.fault(&path, e))?,
        };
        let why = match FileType::from_raw_mode(stat.st_mode) {
            _ if stat.st_dev != self.device => SkipReason::OtherFileSystem,
            FileType::Directory | FileType::RegularFile | FileType::Symlink
                if path.len() > MAX_PATH_BYTES =>
            {
                SkipReason::LongPath
            }
            FileType::Directory => {
                walk.todo.push(path);
                return Ok(());
            }
            // Another user's file that was linked here must not be given away.
            FileType::RegularFile
                if stat.st_nlink > 1 && stat.st_uid != above.st_uid && !is_shared_root(above, &path) =>
            {
                SkipReason::LinkedFile
            }
            FileType::RegularFile => {
                walk.scan.files.insert(path, ScannedFile::new(&stat));
                return Ok(());
            }
            FileType::Symlink => match rustix::fs::readlinkat(parent, name, Vec::new()) {
                Ok(target) => {
                    walk.take_bytes(target.as_bytes().len()).ok_or_else(|| self.too_large())?;
                    walk.scan.links.insert(path, (target.into_bytes(), mtime(&stat)));
                    return Ok(());
                }
                Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
                Err(error) => return Err(self.fault(&path, error)),
            },
            FileType::Socket => SkipReason::Socket,
            FileType::Fifo => SkipReason::Fifo,
            _ => SkipReason::Device,
        };
        walk.scan.skipped.insert(path, why);
        Ok(())
    }

    fn too_large(&self) -> Error {
        let text =
            format!("{} has more than {MAX_SCANNED_ENTRIES} entries, or too long paths", self.path.display());
        Error::new(Kind::Invalid, text)
    }

    fn fault(&self, path: &[u8], error: Errno) -> Error {
        Error::disk(format!("cannot read {}", self.name(path)), error.into())
    }
}

/// Whether `path` lies at the top, and that directory, `above`, is for every user, as that of a container is: its owner is none of
/// them. It is written through a bind mount, which no hard link crosses, so what is linked there was made there.
fn is_shared_root(above: &Stat, path: &[u8]) -> bool {
    above.st_mode & Mode::WOTH.as_raw_mode() != 0 && !path.contains(&b'/')
}

impl ScannedFile {
    /// A file as the kernel describes it.
    pub(super) fn new(stat: &Stat) -> Self {
        Self {
            version: file_version(stat),
            size: stat.st_size.unsigned_abs(),
            mtime: mtime(stat),
            executable: stat.st_mode & 0o111 != 0,
        }
    }

    /// When anything was last done to it, in nanoseconds since 1970: its version ends with that.
    pub(super) fn touched(&self) -> Option<i128> {
        self.version.rsplit('-').next()?.parse().ok()
    }

    /// The file behind a descriptor, as it is now.
    pub(super) fn of(file: impl AsFd) -> rustix::io::Result<Self> {
        rustix::fs::fstat(file).map(|stat| Self::new(&stat))
    }
}

fn mtime(stat: &Stat) -> FileTime {
    (stat.st_mtime, stat.st_mtime_nsec as u32)
}

fn ctime(stat: &Stat) -> FileTime {
    (stat.st_ctime, stat.st_ctime_nsec as u32)
}

/// The directory that a path lies in, and its name there.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
