//! Invalidations that the fd store was asked for and has not acknowledged.
//!
//! One that was only sent may never be done: the fd store may be killed before, or be stopped. The kernel would go on showing
//! damaged pages, so the mount waits for the acknowledgement, and invalidates by itself where none comes.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::wire::{self, Message};

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

    /// Records acknowledgements until the fd store has ended. It sends nothing else unless it is asked, and that answer is read
    /// elsewhere.
    pub(super) async fn receive_until_end(&self, link: &AsyncFd<OwnedFd>) {
        while let Ok(mut ready) = link.readable().await {
            match ready.try_io(|link| wire::try_receive(link.as_fd())) {
                Ok(Ok(Some((message, _)))) => self.record(&message),
                Ok(_) => return,
                // Nothing was there.
                Err(_) => {}
            }
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
