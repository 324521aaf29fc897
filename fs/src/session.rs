//! Sessions: the handshake with the kernel, and the threads that take its requests.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use bdnfs::error::{Error, Kind, Result};
use rustix::io::Errno;
use tokio::sync::watch;
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::later::Caller;
use crate::ops::{Filesystem, LONGEST};
use crate::served;
use crate::wire::abi::InitOut;
use crate::wire::flags::{MAJOR, MINOR, MINOR_LEAST, init};
use crate::wire::request::{Operation, Request};

/// The longest request that is taken, in bytes. We are not written to, so requests are short; but one read
/// may bring a batch of forgotten nodes, and a longer batch is a shorter walk through a large tree.
const BUFFER: usize = 128 << 10;
/// The longest write that the kernel may send, in bytes: its own minimum. [`BUFFER`] must be longer by a
/// page.
const WRITE: u32 = 4096;
/// How many readaheads may be under way, of all readers together: enough to keep the network busy with
/// requests of 1 MiB, at 64 MiB of the page cache.
const BACKGROUND: u16 = 64;
/// What the kernel is asked for wherever it offers it.
const WANTED: u64 = init::ASYNC_READ
    | init::DO_READDIRPLUS
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HAS_RESEND
    | init::EXT;

/// What the kernel offers, and was taken up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    /// It takes backing files.
    pub(crate) passthrough: bool,
    /// It sends requests again, so that another process can go on.
    pub(crate) resend: bool,
}

/// Agrees with the kernel on how to talk; with `passthrough`, that is taken up where it is offered.
///
/// # Errors
/// [`Kind::Unsupported`] when the kernel is too old.
pub(crate) fn agree(device: &Device, passthrough: bool) -> Result<Agreed> {
    let lost =
        |error: Errno| Error::with(Kind::Disk, "the kernel broke off the mount", io::Error::from(error));
    let mut buffer = vec![0; BUFFER];
    let request = loop {
        match device.read(&mut buffer) {
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(error) => return Err(lost(error)),
            Ok(bytes) => break bytes.len(),
        }
    };
    let request = Request::decode(&buffer[..request]);
    let Some(Request {
        unique, operation: Some(Operation::Init { major, minor, max_readahead, flags }), ..
    }) = request
    else {
        return Err(Error::new(Kind::Unsupported, "the kernel began with something else than INIT"));
    };
    if major != MAJOR || minor < MINOR_LEAST {
        let _ = device.reply_error(unique, Errno::PROTO);
        return Err(Error::new(
            Kind::Unsupported,
            format!(
                "the kernel speaks FUSE {major}.{minor}; needed is {MAJOR}.{MINOR_LEAST}, Linux 4.20 or later"
            ),
        ));
    }
    let agreed = flags & if passthrough { WANTED | init::PASSTHROUGH } else { WANTED };
    device.reply_body(unique, reply(minor, max_readahead, agreed).as_bytes()).map_err(lost)?;
    Ok(Agreed { passthrough: agreed & init::PASSTHROUGH != 0, resend: agreed & init::HAS_RESEND != 0 })
}

/// Our side of the handshake, given the kernel's version and readahead and the flags agreed on.
fn reply(minor: u32, max_readahead: u32, agreed: u64) -> InitOut {
    InitOut {
        major: MAJOR,
        minor: minor.min(MINOR),
        max_readahead,
        flags: agreed as u32,
        flags2: (agreed >> 32) as u32,
        max_background: BACKGROUND,
        congestion_threshold: BACKGROUND / 4 * 3,
        max_write: WRITE,
        time_gran: 1,
        max_pages: u16::try_from(LONGEST / rustix::param::page_size()).unwrap_or(u16::MAX),
        // 1: backing files lie on a disk's own file system, and an overlay may still be laid over this mount.
        max_stack_depth: u32::from(agreed & init::PASSTHROUGH != 0),
        ..InitOut::default()
    }
}

/// The queues for `count` threads, `device` among them: each has one of its own where the kernel allows it.
pub(crate) fn queues(device: Arc<Device>, count: usize) -> Vec<Arc<Device>> {
    let more: Vec<_> = (1..count).map_while(|_| device.duplicate().ok()).map(Arc::new).collect();
    std::iter::once(device).chain(more).collect()
}

/// Starts threads that answer the mount's requests: one for each of the `queues`, and at least `least`. What is returned
/// counts the threads that are left: they end when the kernel lets the mount go.
pub(crate) fn start(
    filesystem: &Arc<Filesystem>,
    queues: &[Arc<Device>],
    least: usize,
) -> Result<watch::Receiver<usize>> {
    let (left, ended) = watch::channel(0);
    let left = Arc::new(left);
    let count = least.max(queues.len());
    for (number, own) in queues.iter().cycle().take(count).cloned().enumerate() {
        let (filesystem, thread) = (filesystem.clone(), Thread::new(left.clone()));
        std::thread::Builder::new()
            .name(format!("fuse-{number}"))
            .spawn(move || {
                let _counted = thread;
                serve(&filesystem, &own);
            })
            .map_err(|e| Error::disk("cannot start a thread", e))?;
    }
    Ok(ended)
}

/// One running thread, counted.
struct Thread(Arc<watch::Sender<usize>>);

impl Thread {
    fn new(left: Arc<watch::Sender<usize>>) -> Self {
        left.send_modify(|count| *count += 1);
        Self(left)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Takes requests and answers them until the mount is gone, or left to another process: that will get what is taken here
/// afterwards, and not answered.
fn serve(filesystem: &Filesystem, device: &Arc<Device>) {
    let mut buffer = vec![0; BUFFER];
    loop {
        match device.read(&mut buffer) {
            Ok(_) if filesystem.later.has_left() => return,
            Ok(bytes) => answer(filesystem, device, bytes),
            // NOENT: the request was given up before it was read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(Errno::NODEV | Errno::CONNABORTED) => return,
            Err(error) => {
                tracing::error!(%error, "cannot read requests any more");
                return;
            }
        }
    }
}

/// Answers one request. A panic on the way becomes EIO: the caller must not wait for ever, nor the others.
fn answer(filesystem: &Filesystem, device: &Arc<Device>, bytes: &[u8]) {
    let since = Instant::now();
    let Some(request) = Request::decode(bytes) else {
        tracing::error!("the kernel sent {} bytes that are no request", bytes.len());
        return;
    };
    let operation = served::number(request.operation.as_ref());
    let served = filesystem.served.clone();
    let caller = Caller { device: device.clone(), unique: request.unique, operation, since, served };
    let answer = catch_unwind(AssertUnwindSafe(|| filesystem.answer(&caller, &request)));
    caller.reply(answer.unwrap_or(Err(Errno::IO)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_offered_is_taken() {
        let out = reply(45, 128 << 10, init::MAX_PAGES | init::EXT | init::PASSTHROUGH);
        assert_eq!((out.major, out.minor, out.max_stack_depth), (7, MINOR, 1));
        assert_eq!(out.flags, (init::MAX_PAGES | init::EXT) as u32);
        assert_eq!(out.flags2, 1 << 5);
        assert_eq!(usize::from(out.max_pages) * rustix::param::page_size(), LONGEST);
        assert_eq!(reply(31, 0, init::EXT).max_stack_depth, 0);
    }
}
