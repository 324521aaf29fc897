//! FLUSH: disabled for a stateless mount, by answering the first one with ENOSYS before the mount is used.
//!
//! The kernel sends FLUSH when a file is closed that was opened without an OPEN request, until one FLUSH was answered with
//! ENOSYS. It waits for that answer even on behalf of a process that is killed: if the server is stopped or gone just then,
//! the process stays until there is a server again. So we close a file of the mount ourselves, right after mounting.
//!
//! A child process does it, since this one could not be killed, either, while it waits for its own answer. The child holds no
//! descriptor of the device: if this process is killed, the mount ends, and with it the child's wait.

use std::ffi::{CString, OsStr, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bdnfs::manifest::{Manifest, Node};
use rustix::process::{Pid, WaitOptions, waitpid};

/// The stack of the child, in bytes: it calls a few functions of libc.
const CHILD_STACK_BYTES: usize = 64 << 10;

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

/// Opens and closes `file` in a child process, and waits for it. The child has its own descriptors, but this process's memory:
/// copying that of an agent with a thousand mounts would take 60 ms.
fn close_in_child(file: &Path) -> io::Result<()> {
    let path = CString::new(file.as_os_str().as_bytes())?;
    let mut stack = vec![0_u128; CHILD_STACK_BYTES / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let argument = path.as_ptr().cast_mut().cast();
    // SAFETY: the child has a stack of its own, which grows downwards from its aligned end, and this thread stands still until the
    // child has exited, so that stack and path outlive it. It only makes system calls, as a child of a process with several threads
    // must.
    let child = unsafe { libc::clone(open_and_close, stack.as_mut_ptr_range().end.cast(), flags, argument) };
    if child == -1 {
        return Err(io::Error::last_os_error());
    }
    rustix::io::retry_on_intr(|| waitpid(Pid::from_raw(child), WaitOptions::empty()))?;
    Ok(())
}

/// The child's work. If it can't close the device's descriptors it skips the rest.
extern "C" fn open_and_close(path: *mut c_void) -> c_int {
    // SAFETY: every descriptor is the child's own copy, and `path` is a string that the parent keeps.
    unsafe {
        if libc::close_range(0, libc::c_uint::MAX, 0) == 0 {
            libc::close(libc::open(path.cast(), libc::O_RDONLY));
        }
    }
    0
}
