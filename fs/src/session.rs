//! The session: the handshake with the kernel, and the threads that read its requests.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use bdnfs::error::{Error, Kind, Result};
use rustix::io::Errno;
use tokio::sync::watch;
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::metrics;
use crate::ops::{Filesystem, MAX_READ_BYTES};
use crate::replies::RequestContext;
use crate::stalled_requests;
use crate::wire::abi::InitOut;
use crate::wire::flags::{MAJOR, MIN_MINOR, MINOR, init};
use crate::wire::request::{Operation, Request};

/// The longest request that can be read, in bytes. There are no writes, so requests are short; but one may be a batch of
/// forgotten nodes, and a longer batch is a shorter walk through a large tree.
const REQUEST_BUFFER_BYTES: usize = 128 << 10;
/// The longest write that the kernel may send, in bytes: its own minimum. [`REQUEST_BUFFER_BYTES`] must be longer by
/// a page.
const MAX_WRITE_BYTES: u32 = 4096;
/// The number of readahead requests that may be under way, of all readers together: enough to keep the network busy with requests
/// of 1 MiB, at 64 MiB of the page cache.
const MAX_BACKGROUND: u16 = 64;
/// The INIT flags that are accepted wherever the kernel offers them. ALLOW_IDMAP needs `default_permissions`, which every mount
/// has.
const ACCEPTED_FLAGS: u64 = init::ASYNC_READ
    | init::DO_READDIRPLUS
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HAS_RESEND
    | init::ALLOW_IDMAP
    | init::EXT;

/// The features that the kernel offered and the handshake accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelFeatures {
    /// The kernel takes backing files.
    pub(crate) passthrough: bool,
    /// The kernel sends requests again, so that another process can continue.
    pub(crate) resend: bool,
}

/// Performs the INIT handshake; with `passthrough`, that is accepted where it is offered.
///
/// # Errors
/// [`Kind::Unsupported`] when the kernel is too old.
pub(crate) fn handshake(device: &Device, passthrough: bool) -> Result<KernelFeatures> {
    let lost = |error: Errno| {
        Error::with(Kind::Disk, "the kernel ended the mount during its handshake", io::Error::from(error))
    };
    let mut buffer = vec![0; REQUEST_BUFFER_BYTES];
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
        return Err(Error::new(Kind::Unsupported, "the kernel's first request is not INIT"));
    };
    if major != MAJOR || minor < MIN_MINOR {
        let _ = device.reply_error(unique, Errno::PROTO);
        return Err(Error::new(
            Kind::Unsupported,
            format!(
                "the kernel has FUSE {major}.{minor}; bdnfs needs {MAJOR}.{MIN_MINOR} (Linux 4.20) or later"
            ),
        ));
    }
    let accepted = flags & if passthrough { ACCEPTED_FLAGS | init::PASSTHROUGH } else { ACCEPTED_FLAGS };
    device.reply_body(unique, init_reply(minor, max_readahead, accepted).as_bytes()).map_err(lost)?;
    Ok(KernelFeatures {
        passthrough: accepted & init::PASSTHROUGH != 0,
        resend: accepted & init::HAS_RESEND != 0,
    })
}

/// The reply to INIT, given the kernel's version and readahead and the flags that are accepted.
fn init_reply(minor: u32, max_readahead: u32, accepted: u64) -> InitOut {
    InitOut {
        major: MAJOR,
        minor: minor.min(MINOR),
        max_readahead,
        flags: accepted as u32,
        flags2: (accepted >> 32) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        max_write: MAX_WRITE_BYTES,
        time_gran: 1,
        max_pages: u16::try_from(MAX_READ_BYTES / rustix::param::page_size()).unwrap_or(u16::MAX),
        // 1: backing files lie on a disk's own file system, and an overlay may still be laid over this mount.
        max_stack_depth: u32::from(accepted & init::PASSTHROUGH != 0),
        ..InitOut::default()
    }
}

/// The queues for `count` threads, `device` among them: each has one of its own where the kernel allows it.
pub(crate) fn queues(device: Arc<Device>, count: usize) -> Vec<Arc<Device>> {
    let more: Vec<_> = (1..count).map_while(|_| device.duplicate().ok()).map(Arc::new).collect();
    std::iter::once(device).chain(more).collect()
}

/// The fewest threads that serve a mount: with one, opens are a third slower, and one slow disk read stops all others.
const MIN_THREADS: usize = 2;

/// For how many requests a mount gets another thread, though one waits: where many small files are read one by one, eight threads
/// reply 6 % faster than two on two processors.
const REQUESTS_PER_THREAD: u64 = 512;

/// The threads that serve a mount: few at first, since most of the mounts of a node are idle.
struct ServerThreads {
    filesystem: Arc<Filesystem>,
    queues: Vec<Arc<Device>>,
    demand: ThreadDemand,
    /// The number of them that are left.
    running: watch::Sender<usize>,
}

/// Starts the threads that serve the mount, each from one of `queues`: two, and more as it is used, up to `limit`. Returns the
/// number of threads that are left: they end when the kernel lets the mount go.
pub(crate) fn start(
    filesystem: &Arc<Filesystem>,
    queues: &[Arc<Device>],
    limit: usize,
) -> Result<watch::Receiver<usize>> {
    let (running, left) = watch::channel(0);
    let demand = ThreadDemand::new(limit.max(MIN_THREADS));
    let (filesystem, queues) = (filesystem.clone(), queues.to_vec());
    let threads = Arc::new(ServerThreads { filesystem, queues, demand, running });
    for number in 0..MIN_THREADS {
        threads.start(number).map_err(|e| Error::disk("cannot start a thread", e))?;
    }
    let replace = replace_late(Arc::downgrade(&threads), threads.filesystem.late.replaced());
    threads.filesystem.runtime.spawn(replace);
    Ok(left)
}

/// Starts a thread for each of `threads` that waits for a disk that hangs, and is to be replaced.
async fn replace_late(threads: Weak<ServerThreads>, mut late: watch::Receiver<usize>) {
    let mut replaced = 0;
    while late.changed().await.is_ok() {
        let late = *late.borrow_and_update();
        for number in replaced..late {
            let Some(threads) = threads.upgrade() else { return };
            if let Err(error) = threads.start(number) {
                tracing::warn!(%error, "cannot start a thread: a mount is served by fewer");
            }
        }
        replaced = late;
    }
}

impl ServerThreads {
    fn start(self: &Arc<Self>, number: usize) -> io::Result<()> {
        let counted = RunningThread::new(self.clone());
        let device = self.queues[number % self.queues.len()].clone();
        let thread = std::thread::Builder::new().name(format!("fuse-{number}"));
        thread.spawn(move || counted.serve(&device)).map(drop)
    }

    /// Takes a thread off the count, if there are enough others.
    fn leave(&self) -> bool {
        self.running.send_if_modified(|count| {
            let may_leave = *count > MIN_THREADS;
            *count -= usize::from(may_leave);
            may_leave
        })
    }

    /// Reads requests and replies to them until the mount is gone, or handed over: what is read afterwards is left to the next
    /// process, which gets it again. True where the thread has taken itself off the count, as another has its place.
    fn serve(self: &Arc<Self>, device: &Arc<Device>) -> bool {
        let mut buffer = vec![0; REQUEST_BUFFER_BYTES];
        loop {
            self.demand.begin_wait();
            let read = device.read(&mut buffer);
            let needed = self.demand.end_wait();
            match read {
                Ok(_) if self.filesystem.replies.is_handed_over() => return false,
                Ok(bytes) => {
                    if let Some(Err(error)) = needed.map(|number| self.start(number)) {
                        tracing::warn!(%error, "cannot start a thread: a mount is served by fewer");
                    }
                    serve_request(&self.filesystem, device, bytes);
                    if stalled_requests::is_replaced() && self.leave() {
                        return true;
                    }
                }
                // NOENT: the request was aborted before it was read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return false,
                Err(error) => {
                    tracing::error!(%error, "cannot read requests of a mount");
                    return false;
                }
            }
        }
    }
}

/// Counts a thread while it runs, unless it has taken itself off the count.
struct RunningThread {
    threads: Arc<ServerThreads>,
    is_counted: bool,
}

impl RunningThread {
    fn new(threads: Arc<ServerThreads>) -> Self {
        threads.running.send_modify(|count| *count += 1);
        Self { threads, is_counted: true }
    }

    fn serve(mut self, device: &Arc<Device>) {
        self.is_counted = !self.threads.serve(device);
    }
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        if self.is_counted {
            self.threads.running.send_modify(|count| *count -= 1);
        }
    }
}

/// Tells when another thread is needed: when none waits for the next request, and once in so many requests.
#[derive(Debug)]
struct ThreadDemand {
    limit: usize,
    started: AtomicUsize,
    waiting: AtomicUsize,
    requests: AtomicU64,
}

impl ThreadDemand {
    /// The demand of a mount that [`MIN_THREADS`] are started for, and at most `limit`.
    fn new(limit: usize) -> Self {
        Self {
            limit,
            started: AtomicUsize::new(MIN_THREADS),
            waiting: Default::default(),
            requests: Default::default(),
        }
    }

    /// Counts a thread that waits for a request.
    fn begin_wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a thread that has got one. Returns the number of the thread to be started, if any.
    fn end_wait(&self) -> Option<usize> {
        let is_due =
            self.requests.fetch_add(1, Ordering::Relaxed) % REQUESTS_PER_THREAD == REQUESTS_PER_THREAD - 1;
        if self.waiting.fetch_sub(1, Ordering::Relaxed) > 1 && !is_due {
            return None;
        }
        let one_more = |started| (started < self.limit).then_some(started + 1);
        self.started.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()
    }
}

/// Replies to one request.
fn serve_request(filesystem: &Filesystem, device: &Arc<Device>, bytes: &[u8]) {
    let since = Instant::now();
    let Some(request) = Request::decode(bytes) else {
        tracing::error!("the kernel sent {} bytes that are not a request", bytes.len());
        return;
    };
    let operation = metrics::operation_number(request.operation.as_ref());
    let metrics = filesystem.metrics.clone();
    let context =
        RequestContext { device: device.clone(), unique: request.unique, operation, since, metrics };
    context.reply_with(|| filesystem.handle(&context, &request));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_started_for_every_512_requests() {
        let demand = ThreadDemand::new(3);
        let started: Vec<_> = (0..2000)
            .filter_map(|_| {
                (0..2).for_each(|_| demand.begin_wait());
                let number = demand.end_wait();
                demand.waiting.store(0, Ordering::Relaxed);
                number
            })
            .collect();
        assert_eq!(started, [2], "there may be three");
    }

    #[test]
    fn thread_is_started_when_the_last_that_waited_has_a_request() {
        let demand = ThreadDemand::new(4);
        (0..2).for_each(|_| demand.begin_wait());
        assert_eq!(demand.end_wait(), None, "another waits");
        demand.begin_wait();
        assert_eq!([demand.end_wait(), demand.end_wait()], [None, Some(2)]);
        demand.begin_wait();
        assert_eq!(demand.end_wait(), Some(3));
        demand.begin_wait();
        assert_eq!(demand.end_wait(), None, "there are as many as there may be");
    }

    #[test]
    fn init_reply_accepts_only_what_was_offered() {
        let out = init_reply(45, 128 << 10, init::MAX_PAGES | init::EXT | init::PASSTHROUGH);
        assert_eq!((out.major, out.minor, out.max_stack_depth), (7, MINOR, 1));
        assert_eq!(out.flags, (init::MAX_PAGES | init::EXT) as u32);
        assert_eq!(out.flags2, 1 << 5);
        assert_eq!(usize::from(out.max_pages) * rustix::param::page_size(), MAX_READ_BYTES);
        assert_eq!(init_reply(31, 0, init::EXT).max_stack_depth, 0);
    }
}
