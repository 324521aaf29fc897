//! Probes whether a file has a writer, by asking the kernel for a lease.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

/// Whether a file is open for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// No writer: no descriptor and no shared mapping.
    None,
    /// There is a writer.
    Some,
    /// The file system can't tell, as with NFS.
    Unknown,
}

/// Tests whether a process can write to the open `file`, by a lease that is given back at once: the kernel
/// refuses it exactly while there is a writer or a shared writable mapping (fcntl(2), F_SETLEASE). An open
/// for writing in between makes the kernel send SIGIO to this process, which must ignore it.
pub fn probe_writers(file: &OwnedFd) -> Writers {
    // SAFETY: the call takes numbers, and the descriptor is open.
    let set = |lease: libc::c_int| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, lease) };
    if set(libc::F_RDLCK) == 0 {
        set(libc::F_UNLCK);
        return Writers::None;
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::AGAIN) => Writers::Some,
        _ => Writers::Unknown,
    }
}

/// Makes this process ignore the signal that a probe may cause (SIGIO).
pub fn ignore_lease_signal() {
    // SAFETY: a signal that is ignored calls nothing.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A file, opened for reading and writing.
    fn file() -> (tempfile::NamedTempFile, OwnedFd) {
        ignore_lease_signal();
        let writer = tempfile::NamedTempFile::new().expect("a file");
        writer.as_file().set_len(4096).expect("a length");
        let reader = File::open(writer.path()).expect("a file").into();
        (writer, reader)
    }

    #[test]
    fn probe_sees_a_writer_until_it_is_gone() {
        let (writer, reader) = file();
        assert_eq!(probe_writers(&reader), Writers::Some);
        let path = writer.into_temp_path();
        assert_eq!(probe_writers(&reader), Writers::None);
        // The probe leaves nothing that a writer would have to wait for.
        let again = File::options().write(true).open(&path).expect("at once");
        assert_eq!(probe_writers(&reader), Writers::Some);
        drop(again);
    }

    #[test]
    fn probe_sees_a_shared_writable_mapping_without_a_descriptor() {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        let (writer, reader) = file();
        // SAFETY: the address is the kernel's choice, and nothing reads through the mapping.
        let map = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, writer.as_file(), 0)
        };
        let map = map.expect("a mapping");
        let _path = writer.into_temp_path();
        assert_eq!(probe_writers(&reader), Writers::Some);
        // SAFETY: it was mapped above, and no pointer into it is held.
        unsafe { munmap(map, 4096) }.expect("unmapped");
        assert_eq!(probe_writers(&reader), Writers::None);
    }
}
