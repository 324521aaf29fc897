//! Removed files: damaged files that have lost their name, for as long as a program has one open or mapped.
//!
//! The kernel reads whole files for programs by itself, and a program goes on reading what it has, whichever agent opened that.
//! Of what it has mapped and closed, no agent knows. So the kernel is asked: a record `removed/<blob>.<inode>` has the file's
//! handle (name_to_handle_at(2)), by which the kernel finds a file without a name while it is open or mapped, and no longer.
//! Records are not made durable: nothing is open after the machine was booted.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, OFlags};
use rustix::io::Errno;

use crate::blob::Key;
use crate::error::Result;

use super::directory::CacheDirectory;

/// The longest handle that the kernel gives (MAX_HANDLE_SZ, linux/fcntl.h), in bytes.
const MAX_HANDLE_BYTES: usize = 128;

/// The records of one tenant's removed files.
#[derive(Debug)]
pub(super) struct RemovedFiles {
    directory: CacheDirectory,
    /// Held while a file loses its name after it was recorded: until then its record looks like that of another file.
    removing: Mutex<()>,
}

/// The kernel's handle of a file: `struct file_handle` (linux/fs.h).
#[derive(Debug)]
#[repr(C)]
struct InodeHandle {
    len: u32,
    kind: i32,
    bytes: [u8; MAX_HANDLE_BYTES],
}

impl RemovedFiles {
    /// The records in `directory`.
    pub(super) fn new(directory: CacheDirectory) -> Self {
        Self { directory, removing: Mutex::default() }
    }

    /// Records `file` of `key`, which is damaged, and removes its name with `remove`. Without a record, which some file systems
    /// don't allow, it is only removed.
    ///
    /// # Errors
    /// Those of `remove`.
    pub(super) fn remove(&self, key: &Key, file: &File, remove: impl FnOnce() -> Result<()>) -> Result<()> {
        let _removing = self.removing.lock();
        match self.record(key, file) {
            Err(error) if Errno::from_io_error(&error) != Some(Errno::OPNOTSUPP) => {
                tracing::warn!(%key, %error, "cannot note that a damaged file may be open: the next agent does not name it");
            }
            _ => {}
        }
        remove()
    }

    fn record(&self, key: &Key, file: &File) -> io::Result<()> {
        let handle = InodeHandle::of(file)?;
        let name = format!("{key}.{}", rustix::fs::fstat(file)?.st_ino);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        self.directory.file(name, flags)?.write_all(&handle.to_bytes())
    }

    /// The blobs whose removed file is open or mapped. The records of others are removed. `disk` is a directory of the file system
    /// that the files are on.
    ///
    /// # Errors
    /// The disk's own.
    pub(super) fn in_use(&self, disk: &OwnedFd) -> io::Result<Vec<Key>> {
        let _removing = self.removing.lock();
        let mut in_use = Vec::new();
        for entry in Dir::read_from(self.directory.descriptor())? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let key: Option<Key> = name.to_str().and_then(|name| name.split_once('.')?.0.parse().ok());
            match self.is_in_use(name, disk) {
                Ok(true) => in_use.extend(key),
                // It may be in use.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => in_use.extend(key),
                // This process may not know (CAP_DAC_READ_SEARCH); the next one may.
                Err(Errno::PERM | Errno::NOSYS) => {}
                Ok(false) | Err(_) => {
                    let _ = rustix::fs::unlinkat(self.directory.descriptor(), name, AtFlags::empty());
                }
            }
        }
        Ok(in_use)
    }

    /// Whether the file whose record is called `name` is in use without a name.
    fn is_in_use(&self, name: &OsStr, disk: &OwnedFd) -> rustix::io::Result<bool> {
        let mut bytes = Vec::new();
        let read = self.directory.file(name, OFlags::RDONLY);
        let read = read.and_then(|file| file.take(MAX_HANDLE_BYTES as u64 + 5).read_to_end(&mut bytes));
        read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let mut handle = InodeHandle::from_bytes(&bytes).ok_or(Errno::INVAL)?;
        // One with a name was not removed, but is repaired, or is another one that has its number.
        Ok(rustix::fs::fstat(handle.open(disk)?)?.st_nlink == 0)
    }
}

impl InodeHandle {
    /// The handle of `file`.
    fn of(file: &File) -> io::Result<Self> {
        let mut handle = Self { len: MAX_HANDLE_BYTES as u32, kind: 0, bytes: [0; MAX_HANDLE_BYTES] };
        let mut mount: libc::c_int = 0;
        // SAFETY: `handle` has room for as many bytes as its length says, `mount` for a number, and the path ends with a zero; all
        // live during the call. The descriptor is open.
        let done = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file.as_raw_fd(),
                c"".as_ptr(),
                &raw mut handle,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if done == 0 { Ok(handle) } else { Err(io::Error::last_os_error()) }
    }

    /// Opens the file, without the right to read it, by any directory of its file system.
    fn open(&mut self, directory: &OwnedFd) -> rustix::io::Result<OwnedFd> {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        // SAFETY: the handle has as many bytes as its length says and lives during the call. The descriptor is open.
        let opened = unsafe {
            libc::syscall(libc::SYS_open_by_handle_at, directory.as_raw_fd(), &raw mut *self, flags)
        };
        if opened < 0 {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        // SAFETY: the kernel has just opened it, and nothing else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(opened as RawFd) })
    }

    /// The content of its record: its kind, and its bytes.
    fn to_bytes(&self) -> Vec<u8> {
        [&self.kind.to_le_bytes(), &self.bytes[..(self.len as usize).min(MAX_HANDLE_BYTES)]].concat()
    }

    /// The handle whose record contains `content`; `None` where it is not one.
    fn from_bytes(content: &[u8]) -> Option<Self> {
        let (kind, handle) = content.split_first_chunk()?;
        let mut bytes = [0; MAX_HANDLE_BYTES];
        bytes.get_mut(..handle.len())?.copy_from_slice(handle);
        Some(Self { len: handle.len() as u32, kind: i32::from_le_bytes(*kind), bytes })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::digest::Digest;

    /// The records in the directory `home`, and its descriptor.
    fn removed_files(home: &Path) -> (RemovedFiles, OwnedFd) {
        let directory = CacheDirectory::open(home).expect("a directory");
        (
            RemovedFiles::new(directory.subdirectory("removed").expect("a directory")),
            directory.descriptor().try_clone().expect("a descriptor"),
        )
    }

    #[test]
    fn removed_file_is_in_use_while_it_is_open_or_mapped() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("file");
        let records = || std::fs::read_dir(home.path().join("removed")).expect("a directory").count();
        let (files, disk) = removed_files(home.path());
        let key = Key::Content(Digest::of(b"1"));
        for is_mapped in [false, true] {
            std::fs::write(&path, [7; 5000]).expect("written");
            let file = File::open(&path).expect("a file");
            files.remove(&key, &file, || Ok(())).expect("nothing to do");
            assert_eq!(files.in_use(&disk).expect("read"), [], "it has its name");
            assert_eq!(records(), 0);
            let remove = || {
                std::fs::remove_file(&path).expect("removed");
                Ok(())
            };
            files.remove(&key, &file, remove).expect("removed");
            // SAFETY: nothing changes the file, and what is mapped is not read.
            let mapped = is_mapped.then(|| unsafe { memmap2::Mmap::map(&file) }.expect("a mapping"));
            let file = Some(file).filter(|_| !is_mapped);
            // Another process.
            let (next, disk) = removed_files(home.path());
            assert_eq!(next.in_use(&disk).expect("read"), [key], "mapped: {is_mapped}");
            drop((file, mapped));
            assert_eq!(next.in_use(&disk).expect("read"), [], "mapped: {is_mapped}");
            assert_eq!(records(), 0);
        }
    }

    #[test]
    fn record_that_is_no_handle_is_removed() {
        let home = tempfile::tempdir().expect("a directory");
        let (files, disk) = removed_files(home.path());
        for content in [&[][..], &[1, 0, 0], &[1, 0, 0, 0], &[1; 12], &[1; 500]] {
            let record = home.path().join("removed").join(format!("{}.7", Key::Origin(Digest::of(b"1"))));
            std::fs::write(&record, content).expect("written");
            assert_eq!(files.in_use(&disk).expect("read"), []);
            assert!(!record.exists(), "{content:?}");
        }
    }
}
