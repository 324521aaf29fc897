//! Invalidation: removes names (dentries) and pages of a mount from the kernel's caches.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use crate::device::Device;
use crate::handover::DentryInvalidator;

/// Makes the kernel forget what it caches of one mount.
#[derive(Debug)]
pub(crate) struct KernelCache {
    runtime: Handle,
    device: Arc<Device>,
    /// Invalidates in place of this process.
    invalidator: Option<Arc<dyn DentryInvalidator>>,
    /// One at a time: each may wait, and take a thread meanwhile.
    turn: Semaphore,
}

impl KernelCache {
    /// The kernel's cache of the mount that is served on `device`.
    pub(crate) fn new(
        runtime: Handle,
        device: Arc<Device>,
        invalidator: Option<Arc<dyn DentryInvalidator>>,
    ) -> Arc<Self> {
        Arc::new(Self { runtime, device, invalidator, turn: Semaphore::new(1) })
    }

    /// Makes the kernel look up the entry `name` of the directory `parent` anew.
    pub(crate) async fn forget_name(&self, parent: u64, name: Vec<u8>) {
        self.forget(parent, name).await;
    }

    /// Makes the kernel read the pages of the file `node` anew, also those that are mapped.
    pub(crate) async fn forget_pages(&self, node: u64) {
        self.forget(node, Vec::new()).await;
    }

    async fn forget(&self, node: u64, name: Vec<u8>) {
        let Ok(_turn) = self.turn.acquire().await else { return };
        if !self.invalidate_elsewhere(node, &name).await {
            self.invalidate_here(node, name).await;
        }
    }

    /// Has the other process invalidate. False where there is none, or it did not.
    async fn invalidate_elsewhere(&self, node: u64, name: &[u8]) -> bool {
        let Some(invalidator) = self.invalidator.clone() else { return false };
        let (device, name) = (self.device.clone(), name.to_owned());
        let start = move || invalidator.invalidate(device.as_fd(), node, &name);
        match self.runtime.spawn_blocking(start).await {
            Ok(Some(started)) => started.await,
            _ => false,
        }
    }

    /// Invalidates on a thread of its own: it may wait for reads, and those for the runtime's threads for what blocks.
    async fn invalidate_here(&self, node: u64, name: Vec<u8>) {
        let (done, finished) = oneshot::channel::<()>();
        let device = self.device.clone();
        let invalidate = move || {
            // An error means that the kernel doesn't know it, or has let the mount go.
            let _ = device.invalidate(node, &name);
            drop(done);
        };
        match thread::Builder::new().name("bdnfs-forget".to_owned()).spawn(invalidate) {
            // Fails when it is done, which is what is waited for.
            Ok(_) => drop(finished.await),
            Err(error) => {
                tracing::error!(%error, "no thread to invalidate on: the kernel keeps what it caches")
            }
        }
    }
}
