//! How a host ends: everything is taken down, or left to the next agent, by what its [holder](crate::fdstore) holds.

use std::sync::Arc;

use crate::mounts::host::{Host, blocking};
use crate::mounts::hosted::Hosted;

impl Host {
    /// Has a mount held. Where that fails it ends with this process, and comes back with the next. Blocks.
    pub(crate) fn have_held(&self, hosted: &Hosted) {
        let Some(keeper) = self.keeper.as_ref().filter(|keeper| keeper.holds()) else { return };
        let give = || -> anyhow::Result<bool> {
            let Some(held) = hosted.mount().descriptors()? else { return Ok(false) };
            keeper.keep(hosted.id(), serde_json::to_string(hosted.request())?, &held)?;
            Ok(true)
        };
        hosted.set_held(give().unwrap_or_else(|error| {
            let (at, error) = (hosted.mountpoint().display(), crate::text::line(error.as_ref()));
            tracing::warn!("the mount at {at} ends with this agent, and comes back with the next: {error}");
            false
        }));
    }

    /// Has a mount held no more.
    pub(crate) async fn no_longer_held(&self, id: u64) {
        let Some(keeper) = self.keeper.clone() else { return };
        let forget = move || {
            keeper.forget(id);
            Ok(())
        };
        let _ = blocking(forget).await;
    }

    /// Has all mounts held by another holder whenever the one that there was is lost. Never ends.
    pub(crate) async fn watch_holder(self: Arc<Self>) {
        let Some(keeper) = self.keeper.clone() else { return };
        loop {
            keeper.lost().await;
            tracing::warn!("the holder of this agent's mounts has ended");
            let host = Arc::clone(&self);
            let hold = move || {
                let mounts: Vec<_> = host.table().mounts.values().cloned().collect();
                mounts.iter().for_each(|hosted| host.have_held(hosted));
                let held = mounts.iter().filter(|hosted| hosted.is_held()).count();
                tracing::info!("{held} of {} mounts are held by another one", mounts.len());
                Ok(())
            };
            let _ = blocking(hold).await;
        }
    }

    /// Refuses mounts from now on, and leaves all that are held to the next agent; the others are unmounted.
    pub async fn leave_all(self: &Arc<Self>) {
        let mounts = self.close_up();
        for hosted in mounts {
            if hosted.is_held() {
                tracing::info!("the mount at {} is left to the next agent", hosted.mountpoint().display());
                hosted.mount().hand_over();
            } else {
                self.take_down(hosted.id()).await;
            }
        }
    }

    /// Refuses mounts from now on, and unmounts all that there are: what is in use is taken out of sight.
    pub async fn unmount_all(self: &Arc<Self>) {
        for hosted in self.close_up() {
            if !hosted.is_detached() {
                self.take_down(hosted.id()).await;
            }
            // Who still uses it is told so at once, and not when nobody has come for it.
            self.no_longer_held(hosted.id()).await;
        }
    }

    /// Whether something is left to the next agent, or may be.
    pub fn has_left(&self) -> bool {
        if self.keeper.is_some() && !self.is_ready() {
            return true;
        }
        self.table().mounts.values().any(|hosted| hosted.mount().is_handed_over())
    }

    /// Refuses mounts from now on; all that there are.
    fn close_up(&self) -> Vec<Arc<Hosted>> {
        let table = self.table();
        self.closing.send_replace(true);
        table.mounts.values().cloned().collect()
    }

    async fn take_down(self: &Arc<Self>, id: u64) {
        let Err(failure) = self.unmount(id, false).await else { return };
        tracing::warn!("{failure}; detaching it");
        if let Err(failure) = self.unmount(id, true).await {
            tracing::warn!("{failure}");
        }
    }
}
