//! The end of the use of a volume: runtimes may forget containers that run on.

use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::task::blocking;
use bdnfs_fs::mounts;
use tokio::time::sleep;

use super::container_volume::{ContainerVolume, WritableDirectory};
use super::{ContainerVolumes, checkpoint_volume};
use crate::volumes::cache_home::CacheHome;

/// The interval at which an ended volume is checked for use by its container: at first, and after a while. That reads the mount
/// tables of all processes.
const USE_POLL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_USE_POLL_INTERVAL: Duration = Duration::from_secs(8);

impl ContainerVolumes {
    /// Waits until a volume is ended and no container has it bound, and tells its saver.
    pub(super) async fn await_unused(self: &Arc<Self>, volume: &Arc<ContainerVolume>) {
        volume.await_end().await;
        let mut pause = USE_POLL_INTERVAL;
        loop {
            let (volumes, own) = (Arc::clone(self), Arc::clone(volume));
            match blocking(move || volumes.is_unused(&own)).await {
                Ok(true) => return volume.set_unused(),
                Ok(false) => {}
                Err(error) => tracing::warn!("volume {}: {error}", volume.key),
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_USE_POLL_INTERVAL);
        }
    }

    /// Whether no container has the directory of a volume that was ended. Touches the local disk.
    fn is_unused(&self, own: &ContainerVolume) -> Result<bool> {
        let path = own.directory.path();
        match &own.directory {
            WritableDirectory::Checkpoints(volume) => {
                if mounts::is_bound_anywhere(&path)? {
                    return Ok(false);
                }
                if volume.path().exists() {
                    checkpoint_volume::write_end(volume)?;
                }
            }
            WritableDirectory::Cache(home) => {
                if self.is_shared_with_others(own, home) {
                    return Ok(true);
                }
                // Not held where others hold it: a job that ends saves it.
                own.release();
                if mounts::is_bound_anywhere(&path)? {
                    if !home.is_locked() {
                        own.hold(path, home.create()?);
                    }
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether another volume that is published shows the same cache: it looks for what is bound when it ends, and saves then.
    fn is_shared_with_others(&self, own: &ContainerVolume, home: &CacheHome) -> bool {
        self.all().iter().any(|other| {
            other.key != own.key
                && other.is_published()
                && other.end_time().is_none()
                && matches!(&other.directory, WritableDirectory::Cache(other) if other.path() == home.path())
        })
    }
}
