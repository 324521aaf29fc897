//! Invalidation: removes names (dentries) and pages of a mount from the kernel's caches.

use std::os::fd::AsFd;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::device::Device;
use crate::handover::DentryInvalidator;

/// Makes the kernel forget what it caches of one mount.
#[derive(Debug)]
pub(crate) struct KernelCache {
    runtime: Handle,
    device: Arc<Device>,
    /// Invalidates in place of this process.
    invalidator: Option<Arc<dyn DentryInvalidator>>,
    /// One at a time: it may wait, and the runtime has few threads for what blocks.
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
        let (device, invalidator) = (self.device.clone(), self.invalidator.clone());
        let Ok(_turn) = self.turn.acquire().await else { return };
        let forget = move || {
            if !invalidator.is_some_and(|invalidator| invalidator.invalidate(device.as_fd(), node, &name)) {
                // An error means that the kernel doesn't know it, or has let the mount go.
                let _ = device.invalidate(node, &name);
            }
        };
        let _ = self.runtime.spawn_blocking(forget).await;
    }
}
