//! Invalidations that the fd store was asked for and has not acknowledged.
//!
//! One that was only sent may never be done: the fd store may be killed before, or be stopped. The kernel would go on showing damaged
//! pages, so the mount waits for the acknowledgement, and invalidates by itself where none comes.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::task::blocking;
use bdnfs_fs::handover::{DentryInvalidator, StartedInvalidation};
use parking_lot::Mutex;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::client::FdStore;
use super::heartbeat::signal_peer;
use super::wire::{self, Message};

/// How long the fd store may take to acknowledge an invalidation before it is continued, in case that a signal has stopped it.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an invalidation may take in all. Longer than any request of a mount, for which the kernel may make it wait.
const INVALIDATION_TIMEOUT: Duration = Duration::from_secs(40);

/// The invalidations that wait for the fd store.
#[derive(Debug, Default)]
pub struct PendingInvalidations {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    /// Whether the fd store that is connected is of a version that acknowledges nothing.
    is_older: bool,
    waiting: HashMap<u64, oneshot::Sender<()>>,
}

impl PendingInvalidations {
    /// Adds one, and returns its id and what resolves when it was acknowledged, or fails when it will not be. `None`: the fd store
    /// acknowledges nothing.
    pub fn add(&self) -> Option<(u64, oneshot::Receiver<()>)> {
        let mut state = self.state.lock();
        if state.is_older {
            return None;
        }
        state.last_id += 1;
        let (id, (sender, receiver)) = (state.last_id, oneshot::channel());
        state.waiting.insert(id, sender);
        Some((id, receiver))
    }

    /// Records what the fd store answered.
    pub fn record(&self, answer: &Message) {
        match answer {
            Message::Invalidated { id } => {
                if let Some(sender) = self.state.lock().waiting.remove(id) {
                    // It may have been given up.
                    let _ = sender.send(());
                }
            }
            Message::Unknown => {
                let mut state = self.state.lock();
                state.is_older = true;
                state.waiting.clear();
            }
            other => tracing::warn!("the fd store sent {other:?}, which was skipped"),
        }
    }

    /// Gives up the one with this `id`.
    pub fn give_up(&self, id: u64) {
        self.state.lock().waiting.remove(&id);
    }

    /// Gives up all: the fd store has ended.
    pub fn give_up_all(&self) {
        let mut state = self.state.lock();
        state.is_older = false;
        state.waiting.clear();
    }
}

impl DentryInvalidator for FdStore {
    fn invalidate(
        self: Arc<Self>,
        device: BorrowedFd<'_>,
        node: u64,
        name: &[u8],
    ) -> Option<StartedInvalidation> {
        let name = name.to_owned();
        let Some((id, done)) = self.pending.add() else {
            let sent = self.send(&Message::Expire { parent: node, name }, &[device]);
            return sent.then(|| Box::pin(std::future::ready(true)) as _);
        };
        if !self.send(&Message::Invalidate { id, node, name }, &[device]) {
            self.pending.give_up(id);
            return None;
        }
        Some(Box::pin(self.await_acknowledgement(id, done)))
    }
}

impl FdStore {
    /// Records acknowledgements until the fd store has ended. It sends nothing else unless it is asked, and that answer is read
    /// elsewhere.
    pub(super) async fn receive_until_end(&self, link: &AsyncFd<OwnedFd>) {
        while let Ok(mut ready) = link.readable().await {
            match ready.try_io(|link| wire::try_receive(link.as_fd())) {
                Ok(Ok(Some((message, _)))) => self.pending.record(&message),
                Ok(_) => return,
                // Nothing was there.
                Err(_) => {}
            }
        }
    }

    /// Waits for the acknowledgement of the invalidation `id`. False where it will not come.
    async fn await_acknowledgement(self: Arc<Self>, id: u64, mut done: oneshot::Receiver<()>) -> bool {
        let begin = Instant::now();
        loop {
            if let Ok(done) = tokio::time::timeout(ACKNOWLEDGEMENT_TIMEOUT, &mut done).await {
                return done.is_ok();
            }
            if begin.elapsed() > INVALIDATION_TIMEOUT {
                tracing::warn!("the fd store does not answer: the agent invalidates what the kernel caches");
                self.pending.give_up(id);
                return false;
            }
            let store = Arc::clone(&self);
            let continued = blocking(move || {
                store.continue_process();
                Ok(())
            });
            let _ = continued.await;
        }
    }

    /// Continues the fd store where a signal has stopped it. One that runs, or in another container, is left as it is.
    fn continue_process(&self) {
        if self.service.is_some() {
            let link = self.link.borrow().clone();
            let _ = link.is_some_and(|link| signal_peer(&link, Signal::CONT));
        } else if let Ok(Err(owner)) = self.lock.take()
            && let Some(process) = self.lock.find_process(&owner)
        {
            let _ = pidfd_send_signal(&process, Signal::CONT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalidation_resolves_when_it_is_acknowledged_and_fails_when_it_never_will_be() {
        let pending = PendingInvalidations::default();
        let (first, mut done) = pending.add().expect("it may be acknowledged");
        let (second, mut late) = pending.add().expect("it may be acknowledged");
        assert_ne!(first, second);
        pending.record(&Message::Invalidated { id: first });
        assert_eq!(done.try_recv(), Ok(()));
        assert_eq!(late.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        pending.give_up_all();
        assert_eq!(late.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        // An older version does not know the message.
        let (_, mut unknown) = pending.add().expect("it may be acknowledged");
        pending.record(&Message::Unknown);
        assert_eq!(unknown.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(pending.add().is_none());
        pending.give_up_all();
        assert!(pending.add().is_some(), "the next fd store may be newer");
    }
}
