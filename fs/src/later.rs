//! Answers that come later, from a task; each request gets exactly one, whatever happens to its task.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::future::{AbortHandle, Abortable};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tracing::{Instrument, field};

use crate::device::Device;
use crate::ops::Answer;
use crate::pending::Pending;
use crate::served::{self, Served};

/// Who waits for an answer, and where.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The descriptor that the request was read from.
    pub(crate) device: Arc<Device>,
    /// The request's number.
    pub(crate) unique: u64,
    /// What it asks for, as [`served`](crate::served) numbers it.
    pub(crate) operation: usize,
    /// When it was read.
    pub(crate) since: Instant,
    /// What counts it.
    pub(crate) served: Arc<Served>,
}

impl Caller {
    /// What its request is for.
    fn name(&self) -> &'static str {
        served::name(self.operation)
    }

    /// Sends the answer.
    pub(crate) fn reply(&self, answer: Result<Answer, Errno>) {
        if !matches!(answer, Ok(Answer::Nothing)) {
            self.served.answered(self.operation, self.since.elapsed(), answer.as_ref().err().copied());
        }
        let sent = match answer {
            Ok(Answer::Body(bytes)) => self.device.reply_body(self.unique, &bytes),
            Ok(Answer::Pieces(pieces)) => self.device.reply(self.unique, &pieces),
            Ok(Answer::Done) => self.device.reply(self.unique, &[]),
            Ok(Answer::Nothing) => Ok(()),
            Err(error) => self.device.reply_error(self.unique, error),
        };
        if let Err(error) = sent {
            // The mount has gone, or the reply was bad and the kernel has made EIO of it: nobody waits any
            // more.
            tracing::debug!(unique = self.unique, %error, "a reply was not taken");
        }
    }
}

/// The tasks that have answers to give.
#[derive(Debug)]
pub(crate) struct Later {
    runtime: Handle,
    pending: Arc<Pending<Task>>,
    /// Whether another process will answer what isn't answered here.
    left: Arc<AtomicBool>,
}

/// A task, and who waits for it.
#[derive(Debug)]
struct Task {
    abort: AbortHandle,
    caller: Caller,
}

impl Later {
    /// Tasks will run on `runtime`.
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, pending: Arc::new(Pending::new()), left: Arc::default() }
    }

    /// Leaves what will not have been answered when this process ends to the next one.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Whether that was said.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Answers `caller` with what `work` will come to.
    pub(crate) fn answer(
        &self,
        caller: &Caller,
        work: impl Future<Output = Result<Answer, Errno>> + Send + 'static,
    ) -> Result<Answer, Errno> {
        let (abort, registration) = AbortHandle::new_pair();
        if !self.pending.begin(caller.unique, Task { abort, caller: caller.clone() }) {
            return Err(Errno::INTR);
        }
        let (pending, left) = (self.pending.clone(), self.left.clone());
        let duty = Duty { pending, left, unique: caller.unique };
        // Whatever is done for the request says so; it costs nothing where nobody asks for that.
        let span = tracing::debug_span!("request", id = field::Empty, operation = caller.name());
        if !span.is_disabled() {
            span.record("id", caller.served.follow());
        }
        let task = async move { duty.fulfil(work.await) }.instrument(span);
        self.runtime.spawn(Abortable::new(task, registration));
        Ok(Answer::Nothing)
    }

    /// The request `unique` is no longer wanted: gives its task up and answers it, if it isn't answered yet.
    pub(crate) fn interrupt(&self, unique: u64) {
        if let Some(task) = self.pending.interrupt(unique) {
            task.abort.abort();
            task.caller.reply(Err(Errno::INTR));
        }
    }
}

/// The duty to answer a request. When its task ends without an answer, by a panic or with its runtime, the
/// caller gets EIO; nobody could end a process that waits for ever. But not where another process is to answer.
struct Duty {
    pending: Arc<Pending<Task>>,
    left: Arc<AtomicBool>,
    unique: u64,
}

impl Duty {
    fn fulfil(self, answer: Result<Answer, Errno>) {
        self.reply(answer);
    }

    fn reply(&self, answer: Result<Answer, Errno>) {
        if let Some(task) = self.pending.take(self.unique) {
            task.caller.reply(answer);
        }
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        if !self.left.load(Ordering::Relaxed) {
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

    /// What `run` makes be sent, as (unique, error) pairs. A pipe stands in place of the device.
    fn sent(run: impl FnOnce(&tokio::runtime::Runtime, &Later, &dyn Fn(u64) -> Caller)) -> Vec<(u64, i32)> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        let device = Arc::new(Device::from(write));
        let later = Later::new(runtime.handle().clone());
        run(&runtime, &later, &|unique| Caller {
            device: device.clone(),
            unique,
            operation: 0,
            since: Instant::now(),
            served: Arc::default(),
        });
        runtime.shutdown_timeout(Duration::from_secs(60));
        drop((later, device));
        let mut bytes = Vec::new();
        File::from(read).read_to_end(&mut bytes).expect("read");
        let number = |part: &[u8]| part.try_into().map(i32::from_le_bytes).expect("4 bytes");
        bytes.chunks(16).map(|reply| (u64::from(reply[8]), number(&reply[4..8]))).collect()
    }

    #[test]
    fn a_task_answers_once() {
        let replies = sent(|runtime, later, caller| {
            let (done, wait) = tokio::sync::oneshot::channel();
            let work = async move {
                let _ = done.send(());
                Ok(Answer::Done)
            };
            assert!(matches!(later.answer(&caller(2), work), Ok(Answer::Nothing)));
            runtime.block_on(wait).expect("the task has run");
        });
        assert_eq!(replies, [(2, 0)]);
    }

    #[test]
    fn an_interrupted_task_is_answered_at_once() {
        let replies = sent(|_, later, caller| {
            assert!(later.answer(&caller(2), std::future::pending()).is_ok());
            later.interrupt(2);
            later.interrupt(2);
            later.interrupt(4);
            assert!(matches!(later.answer(&caller(4), std::future::pending()), Err(Errno::INTR)));
        });
        assert_eq!(replies, [(2, -libc::EINTR)]);
    }

    #[test]
    fn a_task_that_is_left_is_not_answered_when_it_is_lost() {
        let replies = sent(|_, later, caller| {
            assert!(later.answer(&caller(2), std::future::pending()).is_ok());
            later.leave();
        });
        assert_eq!(replies, []);
    }

    #[test]
    fn a_task_that_is_lost_is_answered() {
        let replies = sent(|_, later, caller| {
            assert!(later.answer(&caller(2), async { panic!("on purpose") }).is_ok());
            assert!(later.answer(&caller(4), std::future::pending()).is_ok());
        });
        let mut replies = replies;
        replies.sort_unstable();
        assert_eq!(replies, [(2, -libc::EIO), (4, -libc::EIO)]);
    }
}
