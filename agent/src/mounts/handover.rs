//! Handover: the descriptors of mounts go to the [fd store](crate::fdstore), so that the next agent can go on serving them.

use std::sync::Arc;

use bdnfs::error::Result;
use bdnfs::task::blocking;

use super::mount::ManagedMount;
use crate::context::Context;
use crate::fdstore::FdStore;

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

    /// Stores the descriptors of a mount. Where that fails it ends with this process, and is mounted again by the next.
    /// Blocks.
    pub fn store(&self, managed: &ManagedMount) {
        let Some(store) = self.0.as_ref().filter(|store| store.is_enabled()) else { return };
        let put = || -> Result<bool> {
            let Some(descriptors) = managed.attachment().descriptors()? else { return Ok(false) };
            let request = serde_json::to_string(managed.request()).context("cannot write the request")?;
            store.put(managed.id(), request, &descriptors)?;
            Ok(true)
        };
        managed.set_stored(put().unwrap_or_else(|error| {
            let at = managed.mountpoint().display();
            tracing::warn!(
                "the mount at {at} ends with this agent and is mounted again by the next: {error}"
            );
            false
        }));
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

    /// Stores the descriptors of all `mounts` again whenever the fd store has ended. Never ends.
    pub async fn watch(self, mounts: impl Fn() -> Vec<Arc<ManagedMount>>) {
        let Some(store) = self.0.clone() else { return };
        let heartbeat_store = Arc::clone(&store);
        tokio::spawn(async move { heartbeat_store.send_heartbeats().await });
        loop {
            store.await_loss().await;
            tracing::warn!("the fd store of this agent has ended");
            let (mounts, handover) = (mounts(), self.clone());
            let put = move || {
                mounts.iter().for_each(|managed| handover.store(managed));
                let stored = mounts.iter().filter(|managed| managed.is_stored()).count();
                tracing::info!("another fd store has {stored} of {} mounts", mounts.len());
                Ok(())
            };
            let _ = blocking(put).await;
        }
    }
}
