//! FLUSH: disabled for a stateless mount, by answering the first one with ENOSYS before the mount is used.
//!
//! The kernel sends FLUSH when a file is closed that was opened without an OPEN request, until one FLUSH was answered with
//! ENOSYS. It waits for that answer even on behalf of a process that is killed: if the server is stopped or gone just then,
//! the process stays until there is a server again. So we close a file of the mount ourselves, right after mounting.
//!
//! A child process does it, since this one could not be killed, either, while it waits for its own answer. The child holds no
//! descriptor of the device: if this process is killed, the mount ends, and with it the child's wait.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bdnfs::manifest::{Manifest, Node};
use rustix::process::{Pid, WaitOptions, waitpid};

/// Makes the kernel send its one FLUSH on the mount of `manifest` at `mountpoint`, by closing the first file.
pub(crate) fn disable_flush(mountpoint: &Path, manifest: &Manifest) {
    let is_file = |index: &u32| manifest.entry(*index).is_ok_and(|entry| matches!(entry.node, Node::File(_)));
    let path = (0..manifest.entries()).find(is_file).and_then(|index| manifest.path(index).ok());
    // Where there is no file, none can be closed.
    let Some(path) = path else { return };
    if let Err(error) = close_in_child(&mountpoint.join(OsStr::from_bytes(&path))) {
        tracing::warn!(%error, mountpoint = %mountpoint.display(), "the kernel still sends FLUSH on a mount");
    }
}

/// Opens and closes `file` in a child process, and waits for it.
fn close_in_child(file: &Path) -> io::Result<()> {
    let path = CString::new(file.as_os_str().as_bytes())?;
    // SAFETY: the child of a process with several threads may only make system calls; it does nothing else until it exits.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => open_close_exit(&path),
        child => {
            rustix::io::retry_on_intr(|| waitpid(Pid::from_raw(child), WaitOptions::empty()))?;
            Ok(())
        }
    }
}

/// The child's work, by system calls alone. If it can't close the device's descriptors it skips the rest.
fn open_close_exit(path: &CStr) -> ! {
    // SAFETY: every descriptor is the child's own copy, and the path is a string that lives in its copy of the memory.
    unsafe {
        if libc::close_range(0, libc::c_uint::MAX, 0) == 0 {
            libc::close(libc::open(path.as_ptr(), libc::O_RDONLY));
        }
        libc::_exit(0)
    }
}
