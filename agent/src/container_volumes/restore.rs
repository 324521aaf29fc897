//! Volumes after a restart of the agent, and every few minutes: records against the mount table.

use std::sync::Arc;

use bdnfs::error::Error;
use bdnfs::task::blocking;
use rustix::fs::FlockOperation;
use tokio::time::sleep;

use super::ContainerVolumes;
use super::container_volume::{ContainerVolume, ContainerVolumeRecord, WritableDirectory};
use crate::publications::bind::BindTarget;
use crate::publications::reconcile::RECONCILE_INTERVAL;
use crate::volumes::SPACE_CHECK_INTERVAL;

impl ContainerVolumes {
    /// Goes on with the volumes of an earlier run. Those that have lost their containers are ended.
    pub async fn restore(self: &Arc<Self>) {
        let volumes = Arc::clone(self);
        let found = blocking(move || {
            let records = volumes.records.all()?;
            Ok(records
                .into_iter()
                .filter_map(|(key, record)| volumes.restore_one(key, record))
                .collect::<Vec<_>>())
        });
        match found.await {
            Err(error) => tracing::error!("volumes of containers cannot be restored: {error}"),
            Ok(found) => {
                for volume in found {
                    volume.set_published();
                    self.table.lock().insert(volume.key.clone(), Arc::clone(&volume));
                    tokio::spawn(Arc::clone(self).carry(volume));
                }
            }
        }
    }

    /// A volume of an earlier run. Blocks on the local disk.
    fn restore_one(&self, key: String, record: ContainerVolumeRecord) -> Option<Arc<ContainerVolume>> {
        let is_same_boot = record.boot == self.boot;
        let wanted = record.request.target.clone();
        let target = wanted.as_ref().and_then(|target| BindTarget::locate(target, &self.targets).ok());
        let is_bound = match (&wanted, &target) {
            (None, _) => true,
            (_, target) => {
                target.as_ref().is_some_and(|target| target.mounted().is_ok_and(|at| at.is_some()))
            }
        };
        let tenant = record.request.tenant.clone();
        let tenant = tenant.unwrap_or_else(|| self.mounts.mounter().engine.tenant().to_owned());
        let directory = WritableDirectory::new(&self.volumes, &tenant, &record.request);
        let lock = match &directory {
            WritableDirectory::Checkpoints(own) => own
                .lock(FlockOperation::NonBlockingLockShared)
                .map_err(|e| Error::disk(own.path().display().to_string(), e)),
            WritableDirectory::Cache(home) => home.create(),
        };
        let lock = match lock {
            Ok(lock) => lock,
            Err(error) => {
                if self.volumes.is_empty() {
                    tracing::warn!(
                        "volume {key} is not served: nothing lies in {}; mount its disk before the agent starts: {error}",
                        self.volumes.directory().display()
                    );
                    return None;
                }
                tracing::warn!("volume {key} is lost: {error}");
                let _ = self.records.remove(&key);
                return None;
            }
        };
        let volume = ContainerVolume::new(key, record, tenant, target, directory);
        volume.hold(volume.directory.path(), lock);
        if !is_same_boot || !is_bound {
            volume.end();
        }
        Some(Arc::new(volume))
    }

    /// Has the cache, and homes that are not in use, make way for what containers write, as for jobs. Never ends.
    pub async fn keep_room(self: Arc<Self>) {
        loop {
            sleep(SPACE_CHECK_INTERVAL).await;
            if self.all().is_empty() {
                continue;
            }
            let volumes = Arc::clone(&self);
            let evicted = blocking(move || Ok(volumes.volumes.make_room()));
            for home in evicted.await.into_iter().flatten() {
                tracing::info!("{home}");
            }
        }
    }

    /// Ends volumes whose target was unmounted from outside, every few minutes. Never ends.
    pub async fn watch(self: Arc<Self>) {
        loop {
            sleep(RECONCILE_INTERVAL).await;
            for volume in self.all().into_iter().filter(|volume| volume.end_time().is_none()) {
                let own = Arc::clone(&volume);
                let is_bound = blocking(move || {
                    let Some(target) = &own.target else { return Ok(true) };
                    Ok(target.mounted()?.is_some() && !target.is_unwanted())
                });
                if let Ok(false) = is_bound.await {
                    tracing::info!(
                        "volume {}: its target was unmounted or is not wanted any more",
                        volume.key
                    );
                    let _ = self.unpublish(&volume.key).await;
                }
            }
        }
    }
}
