//! Directories of a cache, in which nothing is reached through a symbolic link.
//!
//! An agent often is root, and what it finds in its cache may have been put there by another user before the
//! directory was its own. So a cache directory that others may write is refused, and what lies in it is
//! opened below a descriptor of it, with openat2(2) and RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result};

/// The permission bits with which others than the owner write.
const WRITABLE_BY_OTHERS: Mode = Mode::WGRP.union(Mode::WOTH);

/// A directory of a cache, held open.
#[derive(Debug)]
pub struct CacheDirectory {
    path: PathBuf,
    descriptor: OwnedFd,
}

impl CacheDirectory {
    /// Opens the cache directory at `path`, which may lead there through links: its user has named it.
    ///
    /// # Errors
    /// [`Kind::Invalid`] where it belongs to another user, or others may write in it; [`Kind::Disk`].
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fault = |e: Errno| Error::disk(format!("cannot use {} as the cache", path.display()), e.into());
        let descriptor = rustix::fs::open(path, flags, Mode::empty()).map_err(fault)?;
        let stat = rustix::fs::fstat(&descriptor).map_err(fault)?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        let invalid = |text: String| Err(Error::new(Kind::Invalid, text));
        if !is_own(stat.st_uid) {
            return invalid(format!(
                "the cache directory {} belongs to user {}, who could put anything there; name a directory of your own",
                path.display(),
                stat.st_uid
            ));
        }
        if mode.intersects(WRITABLE_BY_OTHERS) {
            return invalid(format!(
                "the cache directory {0} has mode {1:04o}, but only its owner may write there; run chmod go-w {0}",
                path.display(),
                mode.bits()
            ));
        }
        Ok(Self { path: path.to_owned(), descriptor })
    }

    /// The directory at `relative`, made where it is missing, for its owner alone.
    ///
    /// # Errors
    /// The disk's own; one that says so where a part of it is a symbolic link or another user's.
    pub fn subdirectory(&self, relative: impl AsRef<Path>) -> io::Result<Self> {
        let relative = relative.as_ref();
        let mut below = PathBuf::new();
        for part in relative.components() {
            let Component::Normal(part) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
            let above = if below.as_os_str().is_empty() { None } else { Some(self.directory(&below)?) };
            match rustix::fs::mkdirat(above.as_ref().unwrap_or(&self.descriptor), part, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => below.push(part),
                Err(error) => return Err(error.into()),
            }
        }
        let descriptor = self.directory(relative)?;
        let stat = rustix::fs::fstat(&descriptor)?;
        if !is_own(stat.st_uid) {
            let text = format!("{} belongs to user {}: remove it", self.path_of(relative), stat.st_uid);
            return Err(io::Error::other(text));
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.intersects(WRITABLE_BY_OTHERS) {
            // An earlier version made directories with a lax umask.
            rustix::fs::fchmod(&descriptor, mode.difference(WRITABLE_BY_OTHERS))?;
        }
        Ok(Self { path: self.path.join(relative), descriptor })
    }

    fn directory(&self, relative: &Path) -> io::Result<OwnedFd> {
        self.open_below(relative, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Opens the regular file at `relative`; with [`OFlags::CREATE`] it is made for its owner alone.
    ///
    /// # Errors
    /// The disk's own; one that says so where a part of the path is a symbolic link, or it is no regular file.
    pub fn file(&self, relative: impl AsRef<Path>, flags: OFlags) -> io::Result<File> {
        let relative = relative.as_ref();
        let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
        // The open of a pipe would wait for its other end.
        let file = self.open_below(relative, flags | OFlags::NONBLOCK, mode)?;
        if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
            let text = format!("{} is not a regular file: remove it", self.path_of(relative));
            return Err(io::Error::other(text));
        }
        Ok(file.into())
    }

    fn open_below(&self, relative: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let opened = rustix::fs::openat2(&self.descriptor, relative, flags | OFlags::CLOEXEC, mode, beneath);
        opened.map_err(|error| match error {
            Errno::LOOP => io::Error::other(format!(
                "{} is or lies behind a symbolic link, and none is followed in a cache: remove it",
                self.path_of(relative)
            )),
            error => error.into(),
        })
    }

    fn path_of(&self, relative: &Path) -> impl std::fmt::Display {
        self.path.join(relative).display().to_string()
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor of the directory, through which its entries may be renamed and removed.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Makes the names in it durable.
    ///
    /// # Errors
    /// The disk's own.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.descriptor)?)
    }
}

/// Whether only this process's user and root can change a directory of the user `owner`.
fn is_own(owner: u32) -> bool {
    owner == 0 || owner == rustix::process::geteuid().as_raw()
}
