//! The end of the use of a volume: runtimes may forget containers that run on.

use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::task::blocking;
use bdnfs_fs::mounts;
use tokio::time::sleep;

use super::container_volume::{ContainerVolume, WritableDirectory};
use super::{ContainerVolumes, checkpoint_volume};

/// How often it is checked whether a container still has a volume that was ended.
const USE_POLL_INTERVAL: Duration = Duration::from_secs(1);

impl ContainerVolumes {
    /// Waits until a volume is ended and no container has it bound, and tells its saver.
    pub(super) async fn await_unused(self: &Arc<Self>, volume: &Arc<ContainerVolume>) {
        volume.await_end().await;
        loop {
            let (volumes, own) = (Arc::clone(self), Arc::clone(volume));
            match blocking(move || volumes.is_unused(&own)).await {
                Ok(true) => return volume.set_unused(),
                Ok(false) => {}
                Err(error) => tracing::warn!("volume {}: {error}", volume.key),
            }
            sleep(USE_POLL_INTERVAL).await;
        }
    }

    /// Whether no container has the directory of a volume that was ended. Touches the local disk.
    fn is_unused(&self, own: &ContainerVolume) -> Result<bool> {
        if self.is_shared_with_others(own) {
            return Ok(true);
        }
        if mounts::is_bound_anywhere(&own.directory.path())? {
            return Ok(false);
        }
        match &own.directory {
            WritableDirectory::Checkpoints(volume) if volume.path().exists() => {
                checkpoint_volume::write_end(volume)?;
            }
            WritableDirectory::Checkpoints(_) | WritableDirectory::Cache(_) => {}
        }
        Ok(true)
    }

    /// Whether another volume shows the same cache, and goes on holding its home: whose binds there are can't be told then.
    fn is_shared_with_others(&self, own: &ContainerVolume) -> bool {
        let WritableDirectory::Cache(home) = &own.directory else { return false };
        self.all().iter().any(|other| {
            other.key != own.key
                && other.is_published()
                && other.end_time().is_none()
                && matches!(&other.directory, WritableDirectory::Cache(other) if other.path() == home.path())
        })
    }
}
