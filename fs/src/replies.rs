//! Replies to requests, and the pending ones, which a task will send. Each request gets exactly one reply, whatever happens to its
//! task.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::{AbortHandle, Abortable};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tracing::{Instrument, field};
use zerocopy::{Immutable, IntoBytes};

use crate::device::Device;
use crate::metrics::{self, RequestMetrics};
use crate::request_table::RequestTable;

/// The reply to a request.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A structure or other bytes.
    Body(Vec<u8>),
    /// Bytes of a file, piece by piece.
    Pieces(Vec<Bytes>),
    /// Success, with nothing to send.
    Done,
    /// No reply now: the request has none, or a task will send it.
    Nothing,
}

impl Reply {
    /// A structure.
    pub(crate) fn of(body: &(impl IntoBytes + Immutable)) -> Self {
        Self::Body(body.as_bytes().to_vec())
    }
}

/// A request: how to reply to it, and what to count for it.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    /// The descriptor that the request was read from.
    pub(crate) device: Arc<Device>,
    /// The request's number.
    pub(crate) unique: u64,
    /// The number of its operation, see [`metrics::operation_number`].
    pub(crate) operation: usize,
    /// When it was read.
    pub(crate) since: Instant,
    /// The metrics that count the request.
    pub(crate) metrics: Arc<RequestMetrics>,
}

impl RequestContext {
    /// The name of its operation.
    fn operation_name(&self) -> &'static str {
        metrics::operation_name(self.operation)
    }

    /// Sends the reply that `work` makes. A panic becomes EIO: neither the caller nor others may wait for ever.
    pub(crate) fn reply_with(&self, work: impl FnOnce() -> Result<Reply, Errno>) {
        self.reply(catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::IO)));
    }

    /// Sends the reply.
    pub(crate) fn reply(&self, reply: Result<Reply, Errno>) {
        if !matches!(reply, Ok(Reply::Nothing)) {
            self.metrics.record_reply(self.operation, self.since.elapsed(), reply.as_ref().err().copied());
        }
        let sent = match reply {
            Ok(Reply::Body(bytes)) => self.device.reply_body(self.unique, &bytes),
            Ok(Reply::Pieces(pieces)) => self.device.reply(self.unique, &pieces),
            Ok(Reply::Done) => self.device.reply(self.unique, &[]),
            Ok(Reply::Nothing) => Ok(()),
            Err(error) => self.device.reply_error(self.unique, error),
        };
        if let Err(error) = sent {
            // The mount has gone, or the reply was bad and the kernel has made EIO of it: no caller waits any
            // more.
            tracing::debug!(unique = self.unique, %error, "a reply was not taken");
        }
    }
}

/// The requests that tasks will reply to.
#[derive(Debug)]
pub(crate) struct PendingReplies {
    runtime: Handle,
    pending: Arc<RequestTable<Task>>,
    /// Whether another process will answer what isn't answered here.
    handed_over: Arc<AtomicBool>,
}

/// A task, and the request that it will reply to.
#[derive(Debug)]
struct Task {
    abort: AbortHandle,
    request: RequestContext,
}

impl PendingReplies {
    /// A table without pending requests, whose tasks run on `runtime`.
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, pending: Arc::new(RequestTable::new()), handed_over: Arc::default() }
    }

    /// Hands the requests that are pending when this process ends over to the next one.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// Whether they were [handed over](Self::hand_over).
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed)
    }

    /// Replies to `request` with the result of `work`, which runs as a task.
    pub(crate) fn spawn(
        &self,
        request: &RequestContext,
        work: impl Future<Output = Result<Reply, Errno>> + Send + 'static,
    ) -> Result<Reply, Errno> {
        let (abort, registration) = AbortHandle::new_pair();
        if !self.pending.begin(request.unique, Task { abort, request: request.clone() }) {
            return Err(Errno::INTR);
        }
        let (pending, handed_over) = (self.pending.clone(), self.handed_over.clone());
        let guard = ReplyGuard { pending, handed_over, unique: request.unique };
        // The request's log lines name it; it costs nothing where they are off.
        let span = tracing::debug_span!("request", id = field::Empty, operation = request.operation_name());
        if !span.is_disabled() {
            span.record("id", request.metrics.next_trace_id());
        }
        let task = async move { guard.reply(work.await) }.instrument(span);
        self.runtime.spawn(Abortable::new(task, registration));
        Ok(Reply::Nothing)
    }

    /// Aborts the task of the request `unique` and replies EINTR, unless it was answered already.
    pub(crate) fn interrupt(&self, unique: u64) {
        if let Some(task) = self.pending.interrupt(unique) {
            task.abort.abort();
            task.request.reply(Err(Errno::INTR));
        }
    }
}

/// Replies EIO to a request whose task ends without a reply, by a panic or with its runtime: a process that
/// waits for ever could not be killed. But not where another process will reply.
struct ReplyGuard {
    pending: Arc<RequestTable<Task>>,
    handed_over: Arc<AtomicBool>,
    unique: u64,
}

impl ReplyGuard {
    fn reply(&self, reply: Result<Reply, Errno>) {
        if let Some(task) = self.pending.take(self.unique) {
            task.request.reply(reply);
        }
    }
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        if !self.handed_over.load(Ordering::Relaxed) {
            self.reply(Err(Errno::IO));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::time::Duration;

    use super::*;

    /// The replies that `run` causes, as (unique, error) pairs. A pipe stands in place of the device.
    fn replies(
        run: impl FnOnce(&tokio::runtime::Runtime, &PendingReplies, &dyn Fn(u64) -> RequestContext),
    ) -> Vec<(u64, i32)> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        let device = Arc::new(Device::from(write));
        let pending = PendingReplies::new(runtime.handle().clone());
        run(&runtime, &pending, &|unique| RequestContext {
            device: device.clone(),
            unique,
            operation: 0,
            since: Instant::now(),
            metrics: Arc::default(),
        });
        runtime.shutdown_timeout(Duration::from_secs(60));
        drop((pending, device));
        let mut bytes = Vec::new();
        File::from(read).read_to_end(&mut bytes).expect("read");
        let number = |part: &[u8]| part.try_into().map(i32::from_le_bytes).expect("4 bytes");
        bytes.chunks(16).map(|reply| (u64::from(reply[8]), number(&reply[4..8]))).collect()
    }

    #[test]
    fn reply_from_a_task_is_sent_once() {
        let replies = replies(|runtime, pending, request| {
            let (done, wait) = tokio::sync::oneshot::channel();
            let work = async move {
                let _ = done.send(());
                Ok(Reply::Done)
            };
            assert!(matches!(pending.spawn(&request(2), work), Ok(Reply::Nothing)));
            runtime.block_on(wait).expect("the task has run");
        });
        assert_eq!(replies, [(2, 0)]);
    }

    #[test]
    fn reply_interrupted_is_eintr_at_once() {
        let replies = replies(|_, pending, request| {
            assert!(pending.spawn(&request(2), std::future::pending()).is_ok());
            pending.interrupt(2);
            pending.interrupt(2);
            pending.interrupt(4);
            assert!(matches!(pending.spawn(&request(4), std::future::pending()), Err(Errno::INTR)));
        });
        assert_eq!(replies, [(2, -libc::EINTR)]);
    }

    #[test]
    fn reply_guard_dropped_after_handover_sends_nothing() {
        let replies = replies(|_, pending, request| {
            assert!(pending.spawn(&request(2), std::future::pending()).is_ok());
            pending.hand_over();
        });
        assert_eq!(replies, []);
    }

    #[test]
    fn reply_guard_dropped_without_a_reply_sends_eio() {
        let replies = replies(|_, pending, request| {
            assert!(pending.spawn(&request(2), async { panic!("on purpose") }).is_ok());
            assert!(pending.spawn(&request(4), std::future::pending()).is_ok());
        });
        let mut replies = replies;
        replies.sort_unstable();
        assert_eq!(replies, [(2, -libc::EIO), (4, -libc::EIO)]);
    }
}
