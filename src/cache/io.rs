//! Positioned reads and writes of whole ranges.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};

use bytes::{Bytes, BytesMut};
use rustix::fs::{Advice, AtFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

/// The timestamps that mark a file as used now: its time of modification stays.
const USED_NOW: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
};

/// Reads `len` bytes at `offset`.
///
/// # Errors
/// The disk's own, and `UnexpectedEof` when the file is shorter.
pub fn read(file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
    let mut buffer = BytesMut::with_capacity(len);
    fill(file, offset, &mut buffer, len)?;
    Ok(buffer.freeze())
}

/// Reads `len` bytes at `offset` from the disk, as far as the kernel drops its pages of them.
///
/// # Errors
/// Those of [`read`].
pub fn read_anew(file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
    // Best effort: pages that are mapped stay.
    let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(len as u64), Advice::DontNeed);
    read(file, offset, len)
}

/// Has the kernel drop its pages of `file`, as far as they are neither dirty nor in use.
pub fn forget_pages(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
}

/// Reads `len` bytes at `offset` into `buffer`, which is empty and has room for them.
///
/// # Errors
/// The disk's own, and `UnexpectedEof` when the file is shorter.
pub fn fill(file: &File, offset: u64, buffer: &mut BytesMut, len: usize) -> io::Result<()> {
    fill_at_least(file, offset, buffer, len..=len)
}

/// Reads `len` bytes at `offset` into `buffer`, which is empty and has room for the most: no fewer than its start unless it fails.
///
/// # Errors
/// The disk's own, and `UnexpectedEof` when the file is shorter than that.
pub fn fill_at_least(
    file: &File,
    offset: u64,
    buffer: &mut BytesMut,
    len: RangeInclusive<usize>,
) -> io::Result<()> {
    while buffer.len() < *len.start() {
        let (at, left) = (offset + buffer.len() as u64, len.end() - buffer.len());
        let got = rustix::io::retry_on_intr(|| {
            let spare = &mut buffer.spare_capacity_mut()[..left];
            rustix::io::pread(file, spare, at).map(|(filled, _)| filled.len())
        })?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the kernel has just written `got` bytes at the start of the spare capacity, which it was given the
        // bounds of; so that many bytes behind the present length are there and initialised.
        unsafe { buffer.set_len(buffer.len() + got) };
    }
    Ok(())
}

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// The disk's own.
pub fn write(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Asks the kernel to begin writing `len` dirty bytes at `offset` to the disk, without waiting for it. A hint: that it
/// fails changes nothing.
pub fn begin_writeback(file: impl AsFd, offset: u64, len: u64) {
    use std::os::fd::AsRawFd;
    let file = file.as_fd();
    // SAFETY: sync_file_range takes a descriptor, which `file` keeps open during the call, and numbers; it touches no
    // memory of this process.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), offset as i64, len as i64, libc::SYNC_FILE_RANGE_WRITE);
    }
}

/// Waits until what of `file` the kernel is writing to the disk is written, without asking for more.
///
/// # Errors
/// What kept the kernel from writing any of it since the file was opened, or since it was last told through this descriptor.
pub fn await_writeback(file: impl AsFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let file = file.as_fd();
    // SAFETY: as in `begin_writeback`.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Marks `file` as used now. Best effort: a failure makes eviction a little less fair.
pub fn touch(file: &File) {
    log_failure(rustix::fs::futimens(file, &USED_NOW));
}

/// Updates the access time of the file `name` in `directory`, which need not be open.
pub fn touch_at(directory: &OwnedFd, name: &str) {
    log_failure(rustix::fs::utimensat(directory, name, &USED_NOW, AtFlags::SYMLINK_NOFOLLOW));
}

fn log_failure(touched: rustix::io::Result<()>) {
    if let Err(error) = touched {
        tracing::debug!(%error, "cannot mark a blob as used");
    }
}
