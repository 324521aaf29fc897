//! The asynchronous runtimes: a small one for a command, a full one for an agent.

use std::ffi::CStr;
use std::io;
use std::time::Duration;

use bdnfs::error::Error;
use tokio::runtime::Builder;

/// The time that work on the disk may still take when an agent ends; what it doesn't finish is fetched again.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of threads for an agent's blocking work, the disk's mostly: enough to keep any disk busy, a fraction of the memory
/// and the switching that the usual five hundred cost.
const BLOCKING_THREADS: usize = 64;

/// The least priority, as of nice(1): a hundredth of a processor where others keep all of them busy.
const LEAST_PRIORITY: i32 = 19;

/// Sets the name of this process, as `ps` and `top` show it.
///
/// # Errors
/// [`Kind::Disk`](bdnfs::error::Kind::Disk) where the kernel refuses it.
pub fn set_process_name(name: &CStr) -> Result<(), Error> {
    rustix::thread::set_name(name).map_err(|e| Error::disk("cannot set the process name", e.into()))
}

/// Runs `work` on this thread. What it gave up waiting for, such as a silent name server, is not waited for at its end.
///
/// # Errors
/// Those of `work`, and of the kernel where it has no epoll for a runtime.
pub fn block_on<T, E: From<io::Error>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// Runs `work` on as many threads as there are processors.
///
/// # Errors
/// Those of `work`, and of the kernel where it has no threads for a runtime.
pub fn block_on_threads<T, E: From<io::Error>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let runtime = Builder::new_multi_thread().max_blocking_threads(BLOCKING_THREADS).enable_all().build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    done
}

/// Lowers the priority of this thread to the least, on the processors (sched(7)) and on the disk. Best effort.
pub fn lower_priority() {
    let _ = rustix::process::setpriority_process(None, LEAST_PRIORITY);
    // IOPRIO_WHO_PROCESS, this thread, IOPRIO_CLASS_IDLE (linux/ioprio.h).
    // SAFETY: the system call takes numbers, and touches no memory.
    unsafe {
        libc::syscall(libc::SYS_ioprio_set, 1, 0, 3 << 13);
    }
}

/// Lowers the priority of this process to the least before it has other threads, as [`lower_priority`], and that of its session.
/// Best effort.
pub fn lower_session_priority() {
    lower_priority();
    // Where the kernel groups processes by session, as desktops and servers do, nice values count within a session only.
    let _ = std::fs::write("/proc/self/autogroup", LEAST_PRIORITY.to_string());
}

/// Gives freed memory back to the kernel that the allocator keeps for more of the same: of a long listing, about a quarter of what
/// it took at its peak. It looks through all of the heap, so it is for the end of what took much, on a thread that may wait.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
