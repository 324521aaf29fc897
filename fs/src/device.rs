//! The device: `/dev/fuse`, from which requests are read and to which replies are written.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bdnfs::error::{Error, Kind, Result};
use bytes::Bytes;
use rustix::fs::{FileType, major, minor};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use zerocopy::IntoBytes;

use crate::wire::abi::{BackingMap, InvalEntryOut, InvalInodeOut, OutHeader};
use crate::wire::flags::notify;

/// The path of the device.
const DEVICE_PATH: &str = "/dev/fuse";
/// The number of the device, major and minor (admin-guide/devices.txt).
const DEVICE_NUMBER: (u32, u32) = (10, 229);
/// The most pieces of one `writev`: `UIO_MAXIOV` of the kernel.
const MAX_IOVECS: usize = 1024;
/// Makes an open device another queue of a connection (`FUSE_DEV_IOC_CLONE`).
const IOC_CLONE: Opcode = opcode::read::<u32>(229, 0);
/// Registers a file as a backing file (`FUSE_DEV_IOC_BACKING_OPEN`).
const IOC_BACKING_OPEN: Opcode = opcode::write::<BackingMap>(229, 1);
/// Unregisters a backing file (`FUSE_DEV_IOC_BACKING_CLOSE`).
const IOC_BACKING_CLOSE: Opcode = opcode::write::<u32>(229, 2);

/// One open descriptor of the device. The kernel expects the answer to a request on the one that it was read
/// from.
#[derive(Debug)]
pub(crate) struct Device {
    fd: OwnedFd,
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Device {
    /// Opens the device; it has no mount yet.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] where the machine has none, [`Kind::Refused`] where it may not be used.
    pub(crate) fn open() -> Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).open(DEVICE_PATH).map_err(|e| match e.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::with(
                    Kind::Unsupported,
                    format!(
                        "{DEVICE_PATH} not found: run `modprobe fuse`, or start the container with `--device {DEVICE_PATH}`"
                    ),
                    e,
                ),
                _ => Error::with(
                    Kind::Refused,
                    format!("cannot open {DEVICE_PATH}: run as root, or let other users open it with `chmod 666 {DEVICE_PATH}`"),
                    e,
                ),
            })?;
        // A container may have got any file under this name, and the mount would fail with "Invalid argument".
        let stat = rustix::fs::fstat(&file)
            .map_err(|e| Error::disk(format!("cannot stat {DEVICE_PATH}"), e.into()))?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if !is_device || (major(stat.st_rdev), minor(stat.st_rdev)) != DEVICE_NUMBER {
            let text = format!(
                "{DEVICE_PATH} is not the FUSE device (a character device {}:{}): start the container with `--device {DEVICE_PATH}`",
                DEVICE_NUMBER.0, DEVICE_NUMBER.1
            );
            return Err(Error::new(Kind::Unsupported, text));
        }
        Ok(Self { fd: file.into() })
    }

    /// Opens another queue of the same mount, so that two threads don't wait for one another.
    pub(crate) fn duplicate(&self) -> Result<Self> {
        let other = Self::open()?;
        let fd = self.fd.as_raw_fd();
        // SAFETY: both descriptors are open for the whole call, and the kernel only reads the number behind
        // the pointer.
        check(unsafe { libc::ioctl(other.fd.as_raw_fd(), IOC_CLONE as _, &raw const fd) })
            .map_err(|e| Error::with(Kind::Unsupported, "cannot open a second queue of the mount", e))?;
        Ok(other)
    }

    /// Waits for a request and reads it into `buffer`.
    pub(crate) fn read<'a>(&self, buffer: &'a mut [u8]) -> rustix::io::Result<&'a [u8]> {
        let len = rustix::io::read(&self.fd, &mut *buffer)?;
        Ok(&buffer[..len])
    }

    /// Answers the request `unique` with `pieces`, one after the other, by one call and without gathering
    /// them first.
    pub(crate) fn reply(&self, unique: u64, pieces: &[Bytes]) -> rustix::io::Result<()> {
        if pieces.len() >= MAX_IOVECS {
            return self.send(unique, 0, &[&pieces.concat()]);
        }
        let slices: Vec<&[u8]> = pieces.iter().map(Bytes::as_ref).collect();
        self.send(unique, 0, &slices)
    }

    /// Answers the request `unique` with the structure or the bytes `body`.
    pub(crate) fn reply_body(&self, unique: u64, body: &[u8]) -> rustix::io::Result<()> {
        self.send(unique, 0, &[body])
    }

    /// Answers the request `unique` with an error.
    pub(crate) fn reply_error(&self, unique: u64, error: Errno) -> rustix::io::Result<()> {
        self.send(unique, -error.raw_os_error(), &[])
    }

    /// Makes the kernel forget the entry `name` of the directory `parent`, and look it up anew. It may wait for
    /// requests on that directory that are under way, so no lock may be held, and no device thread may call it.
    pub(crate) fn invalidate_dentry(&self, parent: u64, name: &[u8]) -> rustix::io::Result<()> {
        let head = InvalEntryOut { parent, namelen: name.len() as u32, flags: 0 };
        self.send(0, notify::INVAL_ENTRY, &[head.as_bytes(), name, b"\0"])
    }

    /// Makes the kernel drop the cached pages of `node`, also those that are mapped. It may wait for reads
    /// that are under way, as [`invalidate_dentry`](Self::invalidate_dentry) does for other requests.
    pub(crate) fn invalidate_pages(&self, node: u64) -> rustix::io::Result<()> {
        // From the first byte to the end, which is what a length of 0 means.
        let range = InvalInodeOut { node, offset: 0, len: 0 };
        self.send(0, notify::INVAL_INODE, &[range.as_bytes()])
    }

    /// Invalidates the entry `name` of the directory `node`, or the pages of `node` where the name is empty.
    pub(crate) fn invalidate(&self, node: u64, name: &[u8]) -> rustix::io::Result<()> {
        if name.is_empty() { self.invalidate_pages(node) } else { self.invalidate_dentry(node, name) }
    }

    /// Makes the kernel send again all requests that were read, by this process or one before it, and not answered.
    pub(crate) fn resend(&self) -> rustix::io::Result<()> {
        self.send(0, notify::RESEND, &[])
    }

    /// Registers `file` as a backing file, with which an OPEN can be answered.
    pub(crate) fn register(self: &Arc<Self>, file: &impl AsFd) -> io::Result<BackingFile> {
        let map = BackingMap { fd: file.as_fd().as_raw_fd(), flags: 0, _unused: 0 };
        // SAFETY: both descriptors are open for the whole call, and the kernel only reads the structure
        // behind the pointer, which has the layout that it expects.
        let id = check(unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_BACKING_OPEN as _, &raw const map) })?;
        Ok(BackingFile { device: self.clone(), id: id as u32 })
    }

    /// Writes a reply or a notification: its header and its parts.
    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> rustix::io::Result<()> {
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error, unique };
        let mut slices = Vec::with_capacity(parts.len() + 1);
        slices.push(IoSlice::new(header.as_bytes()));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        rustix::io::writev(&self.fd, &slices).map(|_| ())
    }
}

/// The error of an ioctl, if there was one.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A file that the kernel reads in our place, registered until this is dropped.
#[derive(Debug)]
pub(crate) struct BackingFile {
    device: Arc<Device>,
    id: u32,
}

impl BackingFile {
    /// The file that a previous process registered under the number `id`.
    pub(crate) fn adopt(device: Arc<Device>, id: u32) -> Self {
        Self { device, id }
    }

    /// The number on this mount.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for BackingFile {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open, and the kernel only reads the number behind the pointer. A failure
        // means that the mount has gone, and the number with it.
        unsafe { libc::ioctl(self.device.fd.as_raw_fd(), IOC_BACKING_CLOSE as _, &raw const self.id) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn ioctl_numbers_are_those_of_the_kernel() {
        assert_eq!([IOC_CLONE, IOC_BACKING_OPEN, IOC_BACKING_CLOSE], [0x8004_e500, 0x4010_e501, 0x4004_e502]);
    }

    /// A pipe in place of the device: what is sent is what can be read at its other end.
    fn sent(send: impl FnOnce(&Device)) -> Vec<u8> {
        let (read, write) = rustix::pipe::pipe().expect("pipe");
        send(&Device::from(write));
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut File::from(read), &mut bytes).expect("read");
        bytes
    }

    #[test]
    fn reply_pieces_follow_their_header() {
        let pieces = [Bytes::from_static(b"ab"), Bytes::from_static(b"c")];
        let bytes = sent(|device| device.reply(6, &pieces).expect("sent"));
        assert_eq!(bytes, b"\x13\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0abc");
        let many = vec![Bytes::from_static(b"x"); 3 * MAX_IOVECS];
        assert_eq!(sent(|device| device.reply(6, &many).expect("sent")).len(), 16 + many.len());
    }

    #[test]
    fn reply_error_is_negative_and_notification_is_a_code() {
        let bytes = sent(|device| device.reply_error(6, Errno::ROFS).expect("sent"));
        assert_eq!(bytes, b"\x10\0\0\0\xe2\xff\xff\xff\x06\0\0\0\0\0\0\0");
        let bytes = sent(|device| device.invalidate_dentry(3, b"n").expect("sent"));
        assert_eq!(bytes[4..16], [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sent(|device| device.resend().expect("sent")), b"\x10\0\0\0\x07\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(
            sent(|device| device.invalidate(5, b"").expect("sent"))[4..24],
            [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(bytes[16..], *b"\x03\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0n\0");
    }
}
