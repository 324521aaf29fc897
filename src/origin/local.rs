//! Local files as an origin: a directory or a single file.
//!
//! The root is opened once; everything below it is opened beneath that descriptor without following a symbolic link,
//! so no path leaves the tree, even if another process swaps directories meanwhile.

mod pinned_file;
mod tree_walk;

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::display_path;
use crate::blob::Blob;
use crate::error::{Error, Kind, Result};
use crate::manifest::Listing;
use crate::source::Uri;
use crate::task::blocking;
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

/// A directory of this machine, or a single file of it.
#[derive(Debug)]
pub(super) struct LocalOrigin {
    name: String,
    /// The path in messages.
    path: String,
    root: Arc<LocalRoot>,
}

impl LocalOrigin {
    /// Opens the file or directory at `path`, which may be a symbolic link; only one that lies in a directory of `beneath`, where
    /// there are any.
    pub(super) async fn open(path: &Path, beneath: &[PathBuf]) -> Result<Self> {
        let (path, beneath) = (path.to_owned(), beneath.to_owned());
        let (real, root) = blocking(move || {
            let (real, root) = LocalRoot::open(&path)?;
            let lies_in =
                |directory: &PathBuf| directory.canonicalize().is_ok_and(|all| real.starts_with(all));
            if beneath.is_empty() || beneath.iter().any(lies_in) {
                return Ok((real, root));
            }
            let text = format!("{} leads out of the directories that everybody may name", path.display());
            Err(Error::new(Kind::Refused, text))
        })
        .await?;
        // A single file is named below the directory that is opened.
        let named = if root.only.is_some() { real.parent().unwrap_or(&real) } else { &real };
        let path = named.display().to_string();
        Ok(Self { name: Uri::File(real).to_string(), path, root: Arc::new(root) })
    }
}

impl Tier for LocalOrigin {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        let file = pinned_file::PinnedFile {
            root: self.root.clone(),
            path: blob.path.clone(),
            version: blob.version.clone(),
            name: display_path(&self.path, &blob.path),
        };
        async move { Ok(Some(pinned_file::stream(file, range).await?)) }.boxed()
    }
}

impl Origin for LocalOrigin {
    fn name(&self) -> &str {
        &self.name
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        tree_walk::list(&self.path, self.root.clone(), listing).boxed()
    }
}

/// The directory beneath which all files are opened.
#[derive(Debug)]
struct LocalRoot {
    directory: OwnedFd,
    /// The name of the file in it, where the source is a single file.
    only: Option<Vec<u8>>,
}

impl LocalRoot {
    /// Opens the root at `path`. Returns its path without symbolic links, too. Blocks.
    fn open(path: &Path) -> Result<(PathBuf, Self)> {
        let failed = |error| failure(&path.display().to_string(), error);
        let real =
            std::fs::canonicalize(path).map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        let kind = FileType::from_raw_mode(rustix::fs::stat(&real).map_err(failed)?.st_mode);
        let (directory, only) = match (kind, real.parent(), real.file_name()) {
            (FileType::Directory, ..) => (real.as_path(), None),
            (FileType::RegularFile, Some(parent), Some(name)) => (parent, Some(name.as_bytes().to_vec())),
            _ => {
                let text = format!("{} is neither a directory nor a regular file", path.display());
                return Err(Error::new(Kind::Invalid, text));
            }
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, directory, flags, Mode::empty()).map_err(failed)?;
        // Where that is, whatever another process has put in the place of a part of its path meanwhile.
        let opened = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let opened = opened.map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        let real = only.as_ref().map_or(opened.clone(), |name| opened.join(OsStr::from_bytes(name)));
        Ok((real, Self { directory, only }))
    }

    /// Opens what lies at `path` below the root; never what a symbolic link points at. Blocks.
    fn at(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let path = OsStr::from_bytes(if path.is_empty() { b"." } else { path });
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.directory, path, flags | OFlags::CLOEXEC, Mode::empty(), beneath)
    }
}

/// The version of a file: what changes with its content, as far as a local file system can tell.
pub(crate) fn version(stat: &Stat) -> String {
    let nanoseconds = |seconds: i64, rest: u64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    let modified = nanoseconds(stat.st_mtime, stat.st_mtime_nsec);
    let touched = nanoseconds(stat.st_ctime, stat.st_ctime_nsec);
    format!("{}-{}-{}-{modified}-{touched}", stat.st_dev, stat.st_ino, stat.st_size)
}

/// The error for a system call that failed on `what`.
fn failure(what: &str, error: Errno) -> Error {
    let (kind, text) = match error {
        Errno::NOENT | Errno::NOTDIR => (Kind::NotFound, format!("{what} does not exist")),
        Errno::ACCESS | Errno::PERM => (Kind::Refused, format!("permission denied: {what}")),
        _ => (Kind::Unavailable, format!("cannot read {what}")),
    };
    Error::with(kind, text, std::io::Error::from(error))
}
