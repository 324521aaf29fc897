//! Requests of the agent to the fd store to invalidate dentries in the kernel, for the mounts.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::task::blocking;
use bdnfs_fs::handover::{DentryInvalidator, StartedInvalidation};
use rustix::process::{Signal, pidfd_send_signal};
use tokio::sync::oneshot;

use super::client::FdStore;
use super::heartbeat::signal_peer;
use super::wire::Message;

/// The time in which the fd store must acknowledge an invalidation before it is continued, in case that a signal has stopped it.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout of an invalidation in all. Longer than any request of a mount, for which the kernel may make it wait.
const INVALIDATION_TIMEOUT: Duration = Duration::from_secs(40);

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
            let (store, link) = (Arc::clone(&self), self.link.borrow().clone());
            let continued = blocking(move || {
                store.continue_process(link.as_deref());
                Ok(())
            });
            let _ = continued.await;
        }
    }

    /// Continues the fd store, which is at the other end of `link`, where a signal has stopped it. One that runs, or in another
    /// container, is left as it is.
    pub(super) fn continue_process(&self, link: Option<&OwnedFd>) {
        if self.service.is_some() {
            let _ = link.is_some_and(|link| signal_peer(link, Signal::CONT));
        } else if let Ok(Err(owner)) = self.lock.take()
            && let Some(process) = self.lock.find_process(&owner)
        {
            let _ = pidfd_send_signal(&process, Signal::CONT);
        }
    }
}
