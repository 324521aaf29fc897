//! Volumes after a restart of the agent, and every few minutes: records against the mount table.

use std::sync::Arc;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::task::{blocking, join_error};
use tokio::time::sleep;

use super::ContainerVolumes;
use super::container_volume::{ContainerVolume, ContainerVolumeRecord, WritableDirectory};
use crate::api::Failure;
use crate::api::publication::is_publication_key;
use crate::publications::bind::BindTarget;
use crate::publications::reconcile::RECONCILE_INTERVAL;
use crate::volumes::SPACE_CHECK_INTERVAL;

impl ContainerVolumes {
    /// Goes on with the volumes of an earlier run. Those that have lost their containers are ended. What can't be opened now, or
    /// lies on a file system that nodes share, which may hang, is tried in the background: no other volume, job or mount waits for
    /// it.
    pub async fn restore(self: &Arc<Self>) {
        let volumes = Arc::clone(self);
        let found = blocking(move || {
            let records = volumes.records.all()?;
            Ok(records.into_iter().map(|(key, record)| volumes.locate(key, record)).collect::<Vec<_>>())
        });
        match found.await {
            Err(error) => tracing::error!("volumes of containers cannot be restored: {error}"),
            Ok(found) => {
                for (volume, is_lost) in found {
                    self.table.lock().insert(volume.key.clone(), Arc::clone(&volume));
                    self.resume_or_retry(volume, is_lost).await;
                }
            }
        }
    }

    /// The volume `key`, also one of an earlier run whose record could not be read when the agent was started. `None` where there
    /// is none.
    ///
    /// # Errors
    /// [`Kind::Busy`] where its record still can't be read: what is bound where is not known, and must not be taken for gone.
    pub(super) async fn find_or_restore(self: &Arc<Self>, key: &str) -> Result<Option<Arc<ContainerVolume>>> {
        let known = self.table.lock().get(key).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let (volumes, key) = (Arc::clone(self), key.to_owned());
        // In a task: who asked may give up half-way.
        tokio::spawn(async move { volumes.restore_one(key).await }).await.map_err(join_error)?
    }

    async fn restore_one(self: &Arc<Self>, key: String) -> Result<Option<Arc<ContainerVolume>>> {
        let volumes = Arc::clone(self);
        let found = blocking(move || {
            let read = || if is_publication_key(&key) { volumes.records.get(&key) } else { Ok(None) };
            let advice =
                "unmount its volume, save checkpoints with `bdnfs checkpoint push`, and remove the record";
            // Busy: a kubelet takes other errors for the end of the volume.
            let unknown = |error: Error| Error::new(Kind::Busy, error.advise(advice).to_string());
            let record = read().map_err(unknown)?;
            Ok(record.map(|record| volumes.locate(key, record)))
        });
        let Some((new, is_lost)) = found.await? else { return Ok(None) };
        let volume = Arc::clone(self.table.lock().entry(new.key.clone()).or_insert_with(|| Arc::clone(&new)));
        // Another request may have found it first.
        if Arc::ptr_eq(&new, &volume) {
            self.resume_or_retry(Arc::clone(&volume), is_lost).await;
        }
        Ok(Some(volume))
    }

    /// Goes on with a volume of an earlier run that is in the table, now or in the background.
    async fn resume_or_retry(self: &Arc<Self>, volume: Arc<ContainerVolume>, is_lost: bool) {
        let is_shared = matches!(&volume.directory, WritableDirectory::Cache(home) if home.is_shared());
        if is_shared || !self.resume(&volume, is_lost).await {
            let volumes = Arc::clone(self);
            tokio::spawn(async move {
                while !volumes.resume(&volume, is_lost).await {
                    sleep(RECONCILE_INTERVAL).await;
                }
            });
        }
    }

    /// A volume of an earlier run, and whether it has lost its container. Blocks on the local disk.
    fn locate(&self, key: String, mut record: ContainerVolumeRecord) -> (Arc<ContainerVolume>, bool) {
        // It keeps the home that it has, also where caches have been moved to a file system that nodes share.
        record.volumes.get_or_insert_with(|| self.volumes.directory().to_owned());
        let is_same_boot = record.boot == self.boot;
        let wanted = record.request.target.clone();
        // The configured targets may have changed, and what is bound is still written to, and to be unbound.
        let locate = |path| BindTarget::locate(path, &self.targets).unwrap_or_else(|_| BindTarget::at(path));
        let target = wanted.as_deref().map(locate);
        let is_bound = target.as_ref().is_none_or(|target| target.mounted().is_ok_and(|at| at.is_some()));
        target.iter().for_each(BindTarget::adopt);
        let tenant = record.request.tenant.clone();
        let tenant = tenant.unwrap_or_else(|| self.mounts.mounter().engine.tenant().to_owned());
        let directory = WritableDirectory::new(&self.volumes, &tenant, &record);
        let mut volume = ContainerVolume::new(key, record, tenant, target, directory);
        volume.is_restored = true;
        (Arc::new(volume), !is_same_boot || !is_bound)
    }

    /// Holds the directory of a volume of an earlier run, and goes on with it. False where it is to be tried again: its containers
    /// may write to it.
    async fn resume(self: &Arc<Self>, volume: &Arc<ContainerVolume>, is_lost: bool) -> bool {
        let own = Arc::clone(volume);
        let hold = move || {
            own.hold(own.directory.path(), own.directory.hold()?);
            Ok(())
        };
        let held = match &volume.directory {
            WritableDirectory::Checkpoints(_) => blocking(hold).await,
            WritableDirectory::Cache(home) => self.volumes.on_disk_of(home, move |_| hold()).await,
        };
        let (key, directory) = (&volume.key, self.volumes.directory().display());
        match held {
            Ok(()) => {
                if is_lost {
                    volume.end();
                }
                volume.set_published();
                tokio::spawn(Arc::clone(self).carry(Arc::clone(volume)));
                true
            }
            Err(error) if error.kind() != Kind::NotFound => {
                tracing::warn!("volume {key} is tried again in {} s: {error}", RECONCILE_INTERVAL.as_secs());
                false
            }
            Err(error) => {
                tracing::warn!(
                    "volume {key} is not served: {error}; where nothing lies in {directory}, mount its disk before the agent starts"
                );
                // One that is still bound stays until it is unpublished.
                if is_lost {
                    self.forget_lost(volume).await;
                }
                // Busy: a kubelet that publishes it again takes other errors for its end.
                volume.set_failed(Failure::new(Kind::Busy, error.to_string()));
                true
            }
        }
    }

    /// Forgets a volume whose directory does not exist. Where no directory does, its disk is not mounted: its record stays for an
    /// agent that finds it.
    pub(super) async fn forget_lost(&self, volume: &Arc<ContainerVolume>) {
        let volumes = Arc::clone(&self.volumes);
        if blocking(move || Ok(volumes.is_empty())).await.unwrap_or(true) {
            self.table.lock().remove(&volume.key);
        } else {
            self.forget(volume).await;
        }
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
            for note in evicted.await.into_iter().flat_map(|evicted| evicted.notes().collect::<Vec<_>>()) {
                tracing::info!("{note}");
            }
        }
    }

    /// Ends volumes whose target was unmounted from outside, every few minutes. Never ends.
    pub async fn watch(self: Arc<Self>) {
        loop {
            sleep(RECONCILE_INTERVAL).await;
            for volume in self.all().into_iter().filter(|one| one.is_published() && one.end_time().is_none())
            {
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
