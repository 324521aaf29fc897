//! Handover: the descriptors of mounts go to the [fd store](crate::fdstore), so that the next agent can go on serving them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::error::Result;
use bdnfs::task::blocking;

use super::mount::ManagedMount;
use crate::context::Context;
use crate::fdstore::{FDSTORE_RESTART_PAUSE, FdStore};

/// The interval at which it is checked whether the fd store has all mounts.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The time that an ending agent waits for an absent fd store. Without the store, the agent's mounts end.
pub(super) const LAST_STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// The fd store of a persistent agent; another one has none.
#[derive(Clone, Debug)]
pub struct Handover(Option<Arc<FdStore>>);

impl Handover {
    /// Descriptors go to `store`.
    pub fn new(store: Option<Arc<FdStore>>) -> Self {
        Self(store)
    }

    /// Whether there is an fd store, though it may hold nothing.
    pub fn is_possible(&self) -> bool {
        self.0.is_some()
    }

    /// Stores the descriptors of a mount. Where that fails it is [tried again](Self::watch). Blocks.
    pub fn store(&self, managed: &ManagedMount) {
        if let Err(error) = self.try_store(managed) {
            let at = managed.mountpoint().display();
            tracing::warn!(
                "the mount at {at} ends with this agent, unless the fd store takes it later: {error}"
            );
        }
    }

    fn try_store(&self, managed: &ManagedMount) -> Result<()> {
        let Some(store) = &self.0 else { return Ok(()) };
        let attachment = managed.attachment();
        if attachment.is_native() {
            // The kernel has it.
            managed.set_stored(true);
            return Ok(());
        }
        let put = || -> Result<Option<Arc<OwnedFd>>> {
            let Some(descriptors) = attachment.descriptors()? else { return Ok(None) };
            let request = serde_json::to_string(managed.request()).context("cannot write the request")?;
            store.put(managed.id(), request, &descriptors).map(Some)
        };
        let sent = if store.is_enabled() { put() } else { Ok(None) };
        let link = sent.as_ref().ok().and_then(Option::as_ref);
        managed.set_stored(link.is_some());
        // Its loss may have been noted before that.
        if link.is_some_and(|link| !store.is_current(link)) {
            managed.set_stored(false);
        }
        sent.map(drop)
    }

    /// Stores those of `mounts` that are not. Returns whether all that can be stored are.
    async fn store_missing(&self, mounts: Vec<Arc<ManagedMount>>) -> bool {
        let Some(store) = self.0.clone().filter(|store| store.is_enabled()) else { return true };
        if mounts.iter().all(|managed| managed.is_stored()) {
            return true;
        }
        let handover = self.clone();
        let put = move || {
            store.connect_or_start()?;
            let stored = || mounts.iter().filter(|managed| managed.is_stored()).count();
            let before = stored();
            let mut failure = None;
            for managed in mounts.iter().filter(|managed| !managed.is_stored()) {
                if let Err(error) = handover.try_store(managed) {
                    tracing::debug!("the mount at {} is not stored: {error}", managed.mountpoint().display());
                    failure = Some(error);
                }
            }
            if stored() > before {
                tracing::info!("another fd store has {} of {} mounts", stored(), mounts.len());
            }
            failure.map_or(Ok(()), Err)
        };
        let done = blocking(put).await;
        done.inspect_err(|error| tracing::debug!("the fd store lacks mounts: {error}")).is_ok()
    }

    /// Stores those of `mounts` that are not, before this agent ends: waits for an fd store that is away, until `deadline`.
    pub async fn store_last(&self, mounts: &[Arc<ManagedMount>], deadline: Instant) {
        while !self.store_missing(mounts.to_vec()).await && Instant::now() < deadline {
            tokio::time::sleep(FDSTORE_RESTART_PAUSE).await;
        }
    }

    /// Removes the descriptors of the mount `id`.
    pub async fn remove(&self, id: u64) {
        let Some(store) = self.0.clone() else { return };
        let remove = move || {
            store.remove(id);
            Ok(())
        };
        let _ = blocking(remove).await;
    }

    /// Stores the descriptors of all `mounts` again whenever the fd store has ended, as soon as there is another. Never ends.
    pub async fn watch(self, mounts: impl Fn() -> Vec<Arc<ManagedMount>>) {
        let Some(store) = self.0.clone() else { return };
        // An fd store that was taken over is told by its greeting to expect none, so that a debugger may stop this agent.
        if store.is_enabled() {
            let heartbeat_store = Arc::clone(&store);
            tokio::spawn(async move { heartbeat_store.send_heartbeats().await });
        }
        loop {
            let is_lost = tokio::select! {
                biased;
                () = store.await_loss() => true,
                () = tokio::time::sleep(STORE_RETRY_INTERVAL) => false,
            };
            if is_lost {
                tracing::warn!("the fd store of this agent has ended");
                mounts().iter().for_each(|managed| managed.set_stored(managed.attachment().is_native()));
                tokio::time::sleep(FDSTORE_RESTART_PAUSE).await;
            }
            self.store_missing(mounts()).await;
        }
    }
}
