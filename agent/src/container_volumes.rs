//! Volumes of containers: a directory of a project or a team that a container, pod or task writes to.
//!
//! ```text
//!  PUT key ────> ContainerVolumes ── checkpoints: a directory of its own, with a saver ──> bind
//!                     │              cache: the home of the project or team ───────────> bind
//!                     └─ records: what is published, and what is still saved; the next agent goes on with it
//!
//!  DELETE key ─> unbind ─> wait until no container has it ─> save what is left ─> remove what is saved
//! ```
//!
//! They are the directories that jobs have ([`crate::volumes`]), and are saved the same way. A request ends when the bind is made
//! or gone: what comes after that is the agent's.

mod cache_use;
mod checkpoint_volume;
pub(crate) mod container_volume;
mod end_of_use;
mod restore;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::boot;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::source::tenant;
use bdnfs::task::{blocking, join_error};
use chrono::Utc;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::api::container_volume::{ContainerVolumeKind, ContainerVolumeRequest, ContainerVolumeStatus};
use crate::api::publication::check_publication_key;
use crate::api::{ApiResult, Failure, MirrorRequest};
use crate::deploy::{AdmissionQueue, home_use};
use crate::lifecycle::Lifecycle;
use crate::mounts::MountManager;
use crate::publications::PublicationConfig;
use crate::publications::bind::BindTarget;
use crate::records::Records;
use crate::saver;
use crate::telemetry::scrape::SavingScrape;
use crate::volumes::Volumes;
use cache_use::CacheUse;
use container_volume::{ContainerVolume, ContainerVolumeRecord, WritableDirectory};

/// The time that an unpublish waits for a volume of an earlier run whose directory can't be opened yet: less than runtimes wait for
/// an answer.
const UNPUBLISH_TIMEOUT: Duration = Duration::from_secs(30);

/// All volumes of containers of an agent.
#[derive(Debug)]
pub struct ContainerVolumes {
    /// The directories below which targets lie.
    targets: Vec<PathBuf>,
    /// The kinds that any author may ask for.
    inline: Vec<ContainerVolumeKind>,
    volumes: Arc<Volumes>,
    mounts: Arc<MountManager>,
    admission: Arc<AdmissionQueue>,
    lifecycle: Arc<Lifecycle>,
    records: Arc<Records<ContainerVolumeRecord>>,
    boot: String,
    table: Mutex<BTreeMap<String, Arc<ContainerVolume>>>,
}

impl ContainerVolumes {
    /// The volumes of the cache, whose lock the caller holds; those of an earlier run are [restored](Self::restore) later. Touches
    /// the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn open(
        config: &PublicationConfig,
        volumes: Arc<Volumes>,
        mounts: Arc<MountManager>,
        lifecycle: Arc<Lifecycle>,
        admission: Arc<AdmissionQueue>,
    ) -> Result<Self> {
        let records = Arc::new(Records::<ContainerVolumeRecord>::open(&mounts.mounter().cache, "volumes")?);
        let boot = boot::id()?;
        let (targets, inline) = (config.targets.clone(), config.inline_volumes.clone());
        Ok(Self {
            targets,
            inline,
            volumes,
            mounts,
            admission,
            lifecycle,
            records,
            boot,
            table: Mutex::default(),
        })
    }

    /// Publishes a volume; it is no error where it is published. Dropping the future does not end it.
    ///
    /// # Errors
    /// Why it can't be; then nothing of it is left. [`Failure::EXISTS`] where something else is published under the key or at the
    /// target; [`Kind::Busy`] while what was written there before is saved.
    pub async fn publish(
        self: &Arc<Self>,
        key: &str,
        request: ContainerVolumeRequest,
    ) -> ApiResult<ContainerVolumeStatus> {
        // Restored volumes go first.
        self.lifecycle.ready().await;
        let alive = self.lifecycle.begin()?;
        let (volumes, key) = (Arc::clone(self), key.to_owned());
        let publish = async move {
            let _alive = alive;
            volumes.find_or_publish(key, request).await
        };
        tokio::spawn(publish).await.map_err(join_error)?
    }

    async fn find_or_publish(
        self: &Arc<Self>,
        key: String,
        request: ContainerVolumeRequest,
    ) -> ApiResult<ContainerVolumeStatus> {
        let volume = match self.find(&key, &request).await? {
            Some(found) => found,
            None => {
                let new = Arc::new(self.check(key, request).await?);
                let volume = self.insert(&new)?;
                if Arc::ptr_eq(&new, &volume) {
                    self.prepare(&volume).await;
                }
                volume
            }
        };
        volume.await_publication().await?;
        // The target may have been unmounted from outside.
        let again = Arc::clone(&volume);
        let bind = move || match &again.target {
            Some(target) if target.mounted()?.is_none() => target.bind_writable(&again.directory.path()),
            _ => Ok(()),
        };
        blocking(bind).await?;
        // It may have been ended meanwhile, and unbound before that bind.
        if let Err(ended) = volume.await_publication().await {
            let own = Arc::clone(&volume);
            blocking(move || own.target.as_ref().map_or(Ok(()), BindTarget::unbind_writable)).await?;
            return Err(ended);
        }
        Ok(volume.status())
    }

    /// The volume with this key. One that could not be saved is forgotten when its directory is gone.
    async fn find(
        self: &Arc<Self>,
        key: &str,
        request: &ContainerVolumeRequest,
    ) -> ApiResult<Option<Arc<ContainerVolume>>> {
        let Some(found) = self.find_or_restore(key).await? else { return Ok(None) };
        if found.is_unsaved() {
            let directory = found.directory.clone();
            if blocking(move || Ok(!directory.path().exists())).await? {
                self.forget(&found).await;
                return Ok(None);
            }
        }
        if found.is_same(request) { Ok(Some(found)) } else { Err(exists(&found)) }
    }

    /// Refuses what can never be published, before anything is done.
    async fn check(
        self: &Arc<Self>,
        key: String,
        request: ContainerVolumeRequest,
    ) -> ApiResult<ContainerVolume> {
        if !self.lifecycle.is_persistent() {
            let text = "volumes of containers need the agent of the node; start `bdnfs agent`";
            return Err(Failure::new(Kind::Unsupported, text));
        }
        let volumes = Arc::clone(self);
        Ok(blocking(move || volumes.check_now(key, request)).await?)
    }

    fn check_now(&self, key: String, request: ContainerVolumeRequest) -> Result<ContainerVolume> {
        let kind = request.kind;
        check_publication_key(&key)?;
        if !request.trusted && !self.inline.contains(&kind) {
            let text = format!(
                "{kind}: only an administrator may set it, unless inline_volumes in [publications] of the agent has {kind}"
            );
            return Err(Error::new(Kind::Refused, text));
        }
        request.check()?;
        let tenant =
            request.tenant.clone().unwrap_or_else(|| self.mounts.mounter().engine.tenant().to_owned());
        tenant::check(&tenant)?;
        if kind == ContainerVolumeKind::Checkpoints && self.mirror(&tenant)?.is_none() {
            return Err(saver::no_mirror());
        }
        let target = request.target.as_ref().map(|target| BindTarget::locate(target, &self.targets));
        let boot = self.boot.clone();
        let record = ContainerVolumeRecord { request, boot, began: Utc::now(), ended: None, volumes: None };
        let directory = WritableDirectory::new(&self.volumes, &tenant, &record);
        Ok(ContainerVolume::new(key, record, tenant, target.transpose()?, directory))
    }

    /// Takes a volume into the table, unless the same is there, and returns the one that is.
    fn insert(&self, new: &Arc<ContainerVolume>) -> ApiResult<Arc<ContainerVolume>> {
        let mut table = self.table.lock();
        if let Some(found) = table.get(&new.key) {
            return if found.is_same(&new.request) { Ok(Arc::clone(found)) } else { Err(exists(found)) };
        }
        if let Some(other) = table.values().find(|other| other.holds_target_of(new)) {
            return Err(exists(other));
        }
        table.insert(new.key.clone(), Arc::clone(new));
        Ok(Arc::clone(new))
    }

    /// Makes the directory and binds it; of one that fails nothing is left.
    async fn prepare(self: &Arc<Self>, volume: &Arc<ContainerVolume>) {
        let prepared = async {
            let locks = match volume.directory.clone() {
                WritableDirectory::Checkpoints(own) => {
                    vec![blocking(move || checkpoint_volume::create(&own)).await?]
                }
                WritableDirectory::Cache(home) => {
                    let user = CacheUse { volumes: Arc::clone(self), volume: Arc::clone(volume) };
                    tokio::select! {
                        biased;
                        () = volume.cancelled() => {
                            return Err(Error::new(Kind::Busy, "the volume was unpublished meanwhile; publish it again"));
                        }
                        locks = user.begin(&home) => locks?,
                    }
                }
            };
            let (volumes, own) = (Arc::clone(self), Arc::clone(volume));
            let publish = move || {
                own.hold(own.directory.path(), locks);
                // Written first, so that no bind is without a record.
                volumes.records.put(&own.key, &own.record(&volumes.boot))?;
                own.target.as_ref().map_or(Ok(()), |target| target.bind_writable(&own.directory.path()))
            };
            let published = blocking(publish).await;
            if published.is_err() {
                let own = Arc::clone(volume);
                let discard = move || {
                    own.release();
                    if let WritableDirectory::Checkpoints(own) = &own.directory {
                        own.retire(true);
                    }
                    Ok(())
                };
                let _ = blocking(discard).await;
            }
            published
        };
        match prepared.await {
            Ok(()) => {
                tracing::info!(
                    "published {} of {} ({})",
                    volume.request.kind,
                    volume.request.name,
                    volume.key
                );
                volume.set_published();
                tokio::spawn(Arc::clone(self).carry(Arc::clone(volume)));
            }
            Err(error) => {
                volume.set_failed(error.into());
                self.forget(volume).await;
                if let WritableDirectory::Cache(home) = volume.directory.clone() {
                    let user = CacheUse { volumes: Arc::clone(self), volume: Arc::clone(volume) };
                    // No runtime waits for the mirror.
                    tokio::spawn(async move { home_use::abandon(&user, &home).await });
                }
            }
        }
    }

    /// Ends a volume: when this returns, the bind is gone, and what was written is being saved. It is no error where there is none.
    ///
    /// # Errors
    /// [`Kind::Disk`] where it can't be unmounted; [`Kind::Busy`] while the directory of an earlier run can't be opened, or its
    /// record can't be read.
    pub async fn unpublish(self: &Arc<Self>, key: &str) -> ApiResult<()> {
        self.lifecycle.ready().await;
        let Some(volume) = self.find_or_restore(key).await? else { return Ok(()) };
        volume.cancel();
        let Ok(published) = timeout(UNPUBLISH_TIMEOUT, volume.await_publication()).await else {
            let kind = volume.request.kind;
            let text = format!("cannot end {kind}: its directory cannot be opened; see the agent's log");
            return Err(Failure::new(Kind::Busy, text));
        };
        let is_ended = volume.end_time().is_some();
        let is_unbound =
            if is_ended { self.is_taken(&volume) } else { published.is_err() && !volume.is_restored };
        if is_unbound {
            return Ok(());
        }
        let (volumes, own) = (Arc::clone(self), Arc::clone(&volume));
        let unbind = move || {
            own.target.as_ref().map_or(Ok(()), BindTarget::unbind_writable)?;
            if is_ended {
                // A publish that came too late may have bound it again; the record may be gone by now.
                return Ok(());
            }
            own.end();
            // Without it the next agent finds that nothing is bound.
            let stored = volumes.records.put(&own.key, &own.record(&volumes.boot));
            let _ = stored.inspect_err(|error| tracing::warn!("{error}"));
            Ok(())
        };
        blocking(unbind).await?;
        if published.is_err() && !is_ended {
            self.forget_lost(&volume).await;
        }
        Ok(())
    }

    /// Whether the target of a volume that was ended is another's by now.
    fn is_taken(&self, own: &ContainerVolume) -> bool {
        self.all().iter().any(|other| other.key != own.key && other.holds_target_of(own))
    }

    /// Carries a published volume to its end.
    async fn carry(self: Arc<Self>, volume: Arc<ContainerVolume>) {
        let saved = match &volume.directory {
            WritableDirectory::Checkpoints(own) => {
                tokio::join!(checkpoint_volume::save(&self, &volume, own), self.await_unused(&volume)).0
            }
            WritableDirectory::Cache(home) => {
                let user = CacheUse { volumes: Arc::clone(&self), volume: Arc::clone(&volume) };
                user.save(home, self.await_unused(&volume)).await;
                Ok(())
            }
        };
        match saved {
            Ok(()) => {
                let request = &volume.request;
                tracing::info!("ended {} of {} ({})", request.kind, request.name, volume.key);
                self.forget(&volume).await;
            }
            Err(failure) => volume.set_failed(failure),
        }
    }

    /// Removes a volume from the table, and its record.
    async fn forget(&self, volume: &Arc<ContainerVolume>) {
        let is_known = || self.table.lock().get(&volume.key).is_some_and(|known| Arc::ptr_eq(known, volume));
        if is_known() {
            // The record first: the next volume with this key writes its own.
            let (records, key) = (Arc::clone(&self.records), volume.key.clone());
            let removed = blocking(move || records.remove(&key)).await;
            let _ = removed.inspect_err(|error| tracing::warn!("{error}"));
        }
        self.table.lock().retain(|_, known| !Arc::ptr_eq(known, volume));
    }

    /// The status of a volume.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn status(&self, key: &str) -> ApiResult<ContainerVolumeStatus> {
        let missing = || Failure::new(Kind::NotFound, format!("no such volume: {key}"));
        self.table.lock().get(key).map(|volume| volume.status()).ok_or_else(missing)
    }

    /// The status of all volumes.
    pub fn list(&self) -> Vec<ContainerVolumeStatus> {
        self.all().iter().map(|volume| volume.status()).collect()
    }

    /// The state of the checkpoints of all volumes, for metrics.
    pub fn savings(&self) -> Vec<SavingScrape> {
        let saving = |volume: &Arc<ContainerVolume>| {
            let (began, project) = (volume.began.timestamp() as f64, volume.request.name.clone());
            Some(SavingScrape { id: volume.request.id.clone()?, project, began, report: volume.report()? })
        };
        self.all().iter().filter_map(saving).collect()
    }

    /// The mirror that what `tenant` writes is saved in. Reads secrets.
    fn mirror(&self, tenant: &str) -> Result<Option<MirrorRequest>> {
        self.mounts.mounter().mirror(None, Some(tenant))
    }

    fn all(&self) -> Vec<Arc<ContainerVolume>> {
        self.table.lock().values().cloned().collect()
    }
}

fn exists(found: &ContainerVolume) -> Failure {
    let (kind, name) = (found.request.kind, &found.request.name);
    let message = format!("{kind} of {name} is published as {} already; unpublish it first", found.key);
    Failure { kind: Failure::EXISTS.to_owned(), message }
}
