//! The disk writer: changes the cache's disk on threads of its own, so that no caller blocks on a disk that does not answer.
//!
//! A frozen file system, or a device that hangs, blocks a writing thread for as long as it likes, and no signal ends that.
//! A caller waits for its write no longer than [`WRITE_TICKS`]. While something is late the disk is *stalled*:
//! nothing more is handed to it. What is late is not taken back, and counts when the disk answers after all.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::{mem, thread};

use crossbeam::channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Kind, Result};
use crate::timeout::TICK;

/// The number of ticks that a caller waits for its write: a second. A block takes milliseconds; a disk that is only busy answers
/// others meanwhile.
const WRITE_TICKS: u32 = 10;
/// The number of writing threads per core: as many as hash and write blocks at once.
const THREADS_PER_CORE: usize = 2;

type Write = Box<dyn FnOnce() + Send>;

/// The threads that write, and their queue.
pub struct DiskWriter {
    queue: Sender<Write>,
    /// The number of writes that are late.
    late: Arc<AtomicUsize>,
}

impl fmt::Debug for DiskWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskWriter, {} writes late", self.late.load(SeqCst))
    }
}

/// The state of a write.
enum WriteState<T> {
    Pending,
    Done(Result<T>),
    /// Its caller has given it up.
    Late,
}

impl DiskWriter {
    /// Starts the threads. They end when this is dropped, and with their last write.
    ///
    /// # Errors
    /// [`Kind::Disk`] when there are no threads for it.
    pub fn start() -> Result<Self> {
        let threads = THREADS_PER_CORE * thread::available_parallelism().map_or(2, usize::from);
        let (queue, writes) = bounded::<Write>(threads);
        for _ in 0..threads {
            let writes: Receiver<Write> = writes.clone();
            thread::Builder::new()
                .name("bdnfs-write".into())
                .spawn(move || writes.iter().for_each(|write| write()))
                .map_err(|e| Error::with(Kind::Disk, "cannot start a thread that writes to the cache", e))?;
        }
        Ok(Self { queue, late: Arc::default() })
    }

    /// Whether the disk is stalled.
    pub fn is_stalled(&self) -> bool {
        self.late.load(SeqCst) > 0
    }

    /// Runs `write`, and waits for it.
    ///
    /// # Errors
    /// Those of `write`; [`Kind::Busy`] while the disk is stalled.
    pub fn run<T: Send + 'static>(&self, write: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        if self.is_stalled() {
            return Err(stalled());
        }
        // A condition variable sleeps at once. A channel spins first, on cores that a small machine needs for the write itself.
        let write_state = Arc::new((Mutex::new(WriteState::Pending), Condvar::new()));
        let (caller_state, late) = (write_state.clone(), self.late.clone());
        let work = move || {
            let outcome = write();
            let (state, done) = &*write_state;
            if matches!(mem::replace(&mut *state.lock(), WriteState::Done(outcome)), WriteState::Late)
                && late.fetch_sub(1, SeqCst) == 1
            {
                tracing::warn!("the cache's disk answers again");
            }
            done.notify_one();
        };
        self.enqueue(Box::new(work))?;
        let (state, done) = &*caller_state;
        let mut state = state.lock();
        let mut ticks = 0;
        while matches!(*state, WriteState::Pending) && ticks < WRITE_TICKS {
            ticks += u32::from(done.wait_for(&mut state, TICK).timed_out());
        }
        if let WriteState::Done(outcome) = mem::replace(&mut *state, WriteState::Late) {
            return outcome;
        }
        if self.late.fetch_add(1, SeqCst) == 0 {
            tracing::warn!("the cache's disk does not answer: nothing is written to it until it does");
        }
        Err(stalled())
    }

    /// Waits until a thread can take `write`.
    fn enqueue(&self, mut write: Write) -> Result<()> {
        for _ in 0..WRITE_TICKS {
            match self.queue.send_timeout(write, TICK) {
                Ok(()) => return Ok(()),
                Err(refused) => write = refused.into_inner(),
            }
        }
        Err(stalled())
    }
}

fn stalled() -> Error {
    Error::new(Kind::Busy, format!("the cache's disk did not answer within {:?}", TICK * WRITE_TICKS))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn disk_writer_with_a_late_write_refuses_others_until_it_is_done() {
        let writer = DiskWriter::start().expect("threads");
        assert_eq!(writer.run(|| Ok(5)).expect("written"), 5);
        let (thaw, frozen) = bounded::<()>(0);
        let began = Instant::now();
        let error = writer.run(move || Ok(frozen.recv().is_ok())).expect_err("late");
        assert_eq!(error.kind(), Kind::Busy);
        // A machine that is busy makes ticks longer.
        assert!((1..5).contains(&began.elapsed().as_secs()), "it was given up after {:?}", began.elapsed());
        assert!(writer.is_stalled());
        assert_eq!(writer.run(|| Ok(())).expect_err("the disk is stalled").kind(), Kind::Busy);
        thaw.send(()).expect("it waits");
        while writer.is_stalled() {
            thread::yield_now();
        }
        writer.run(|| Ok(())).expect("the disk answers again");
    }
}
