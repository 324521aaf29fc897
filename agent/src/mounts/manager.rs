//! The mount manager: the table of all mounts, and what is done with them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bdnfs::error::{Kind, Result};
use bdnfs::snapshot::Snapshot;
use bdnfs::source::Access;
use bdnfs::task::{blocking, join_error};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::attachment::Attachment;
use super::handover::Handover;
use super::mount::ManagedMount;
use super::mounter::Mounter;
use super::record::{FailedMount, MountRecord, MountRecords};
use super::reservation::{MountpointReservation, MountpointReservations};
use super::resolved_snapshot::ResolvedSnapshot;
use crate::api::{ApiResult, Failure, LostMount, MountInfo, MountRequest, StageStatus};
use crate::lifecycle::{KeepAlive, Lifecycle};

/// The time for which the progress of a stage is held back: its end is answered at once, and progress as often as is smooth to the
/// eye.
const STAGE_POLL_TIMEOUT: Duration = Duration::from_millis(200);
/// The time that an unmount waits: a mount ends at once unless it was detached (`umount -l`) in use.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a mount waits for a disk that does not answer: as long as any operation may take. An overloaded one does by then.
const DISK_TIMEOUT: Duration = Duration::from_secs(30);

/// All mounts of one agent.
#[derive(Debug)]
pub struct MountManager {
    pub(super) mounter: Mounter,
    pub(super) records: MountRecords,
    pub(super) handover: Handover,
    pub(super) lifecycle: Arc<Lifecycle>,
    reservations: MountpointReservations,
    table: Mutex<MountTable>,
}

#[derive(Debug, Default)]
pub(super) struct MountTable {
    pub(super) mounts: BTreeMap<u64, Arc<ManagedMount>>,
    /// Mounts of the last run that could not be restored.
    pub(super) failed: BTreeMap<u64, FailedMount>,
    /// The highest id of a mount so far.
    pub(super) last: u64,
}

impl MountManager {
    /// A manager without mounts. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn new(mounter: Mounter, handover: Handover, lifecycle: Arc<Lifecycle>) -> Result<Self> {
        let records = MountRecords::open(&mounter.cache, lifecycle.is_persistent())?;
        let (reservations, table) = Default::default();
        Ok(Self { mounter, records, handover, lifecycle, reservations, table })
    }

    /// The mounter, which makes its mounts.
    pub fn mounter(&self) -> &Mounter {
        &self.mounter
    }

    /// Mounts a source. Dropping the future, as when the client has gone, gives it up.
    pub async fn mount(self: &Arc<Self>, request: MountRequest) -> ApiResult<MountInfo> {
        let mountpoint = request.weights.mountpoint.clone();
        if self.mounter.hides_cache(&mountpoint) {
            let at = mountpoint.display();
            let text =
                format!("the cache lies below {at}, so the mount would hide it; choose another directory");
            return Err(Failure::new(Kind::Invalid, text));
        }
        let reservation = self.reservations.reserve(&mountpoint, self.lifecycle.begin()?)?;
        self.check_disk().await?;
        tokio::select! {
            biased;
            () = self.lifecycle.await_closing() => Err(Failure::closing()),
            mounted = self.make(request, reservation) => mounted,
        }
    }

    async fn make(
        self: &Arc<Self>,
        request: MountRequest,
        reservation: MountpointReservation,
    ) -> ApiResult<MountInfo> {
        // Ids and mount points of restored mounts go first.
        self.lifecycle.ready().await;
        let found = self.mounter.resolve(&request).await?;
        let manager = Arc::clone(self);
        let (answer, answered) = oneshot::channel();
        // In a task: the client may go away while the record is written, which takes seconds on a disk that is busy.
        let task = tokio::spawn(async move {
            let _reservation = reservation;
            let mounted = manager.mount_resolved(request, found).await;
            if let Err(Ok(unwanted)) = answer.send(mounted)
                && !manager.lifecycle.is_closing()
            {
                // Nobody wants it, whoever looks into it at that moment.
                manager.unmount_or_detach(unwanted.id).await;
            }
        });
        match answered.await {
            Ok(mounted) => mounted,
            Err(_) => Err(task.await.map_or_else(|error| join_error(error).into(), |()| Failure::closing())),
        }
    }

    /// Mounts a snapshot that was resolved for `request`. Dropping the future leaves a mount, or none.
    pub async fn mount_resolved(
        self: &Arc<Self>,
        request: MountRequest,
        found: ResolvedSnapshot,
    ) -> ApiResult<MountInfo> {
        let ResolvedSnapshot { snapshot, resolved, note } = found;
        let (bare, lacks_secrets) = request.without_secrets()?;
        let record = MountRecord {
            id: 0,
            since: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            request: bare,
            lacks_secrets,
            snapshot: snapshot.id().to_string(),
            resolved,
            staged: false,
            lease_until: None,
        };
        let mount = self.mounter.attach(&snapshot, &request).await?;
        let warnings = self.mounter.warnings(&snapshot, &mount, &request).into_iter().chain(note).collect();
        let managed = self.register(snapshot, Attachment::Fuse(mount), record, request).await?;
        Ok(MountInfo { warnings, ..managed.info() })
    }

    /// Takes a mount into the table, and writes its record; one without an id gets its id here.
    pub(super) async fn register(
        self: &Arc<Self>,
        snapshot: Arc<Snapshot>,
        attachment: Attachment,
        record: MountRecord,
        request: MountRequest,
    ) -> ApiResult<Arc<ManagedMount>> {
        let manager = Arc::clone(self);
        // In one task: dropping the future leaves a mount, or none.
        let registered = blocking(move || {
            let is_new = record.id == 0;
            let id = if is_new { manager.next_id() } else { record.id };
            let record = MountRecord { id, ..record };
            let managed = Arc::new(ManagedMount::new(snapshot, attachment, record, request));
            if is_new {
                manager.records.put(&managed.record())?;
            }
            let mut table = manager.table();
            if manager.lifecycle.is_closing() {
                drop(table);
                // A restored one comes back at the next start. Dropping the mount unmounts it, unless it is handed over.
                if is_new {
                    manager.records.remove(id);
                }
                if managed.attachment().is_resumed() {
                    managed.attachment().hand_over();
                }
                return Ok(None);
            }
            let superseded: Vec<u64> = table.failed_at(managed.mountpoint()).collect();
            table.mounts.insert(id, Arc::clone(&managed));
            table.failed.retain(|id, _| !superseded.contains(id));
            drop(table);
            superseded.into_iter().for_each(|id| manager.records.remove(id));
            manager.handover.store(&managed);
            let (source, at) = (managed.snapshot().manifest().source(), managed.mountpoint().display());
            tracing::info!("mounted {source} at {at}");
            let alive = manager.lifecycle.keep_alive();
            tokio::spawn(manager.watch(Arc::clone(&managed), alive));
            Ok(Some(managed))
        });
        registered.await?.ok_or_else(Failure::closing)
    }

    /// Forgets a mount when it has ended. Until then it keeps the agent running.
    async fn watch(self: Arc<Self>, managed: Arc<ManagedMount>, _alive: KeepAlive) {
        loop {
            let attachment = managed.attachment();
            attachment.await_end().await;
            managed.await_conversion().await;
            if Arc::ptr_eq(&attachment, &managed.attachment()) {
                break;
            }
        }
        if managed.attachment().is_handed_over() {
            return;
        }
        let id = managed.id();
        managed.snapshot().release().await;
        self.handover.remove(id).await;
        // A mount that ends with the agent is to come back with it, if the agent does.
        if !self.lifecycle.is_closing() || !self.lifecycle.is_persistent() {
            let _ = self.remove_record(id).await;
        }
        self.table().mounts.remove(&id);
        tracing::info!("unmounted {}", managed.mountpoint().display());
        managed.set_gone();
    }

    /// Makes sure that the cache's disk takes changes: one that is frozen would keep a mount waiting until it is not.
    async fn check_disk(&self) -> ApiResult<()> {
        let touched = tokio::time::timeout(DISK_TIMEOUT, self.mounter.history.touch()).await;
        let frozen = || {
            let text =
                format!("the cache's disk did not answer within {DISK_TIMEOUT:?}, so nothing can be mounted");
            Failure::new(Kind::Busy, text)
        };
        Ok(touched.map_err(|_| frozen())??)
    }

    fn next_id(&self) -> u64 {
        let mut table = self.table();
        table.last += 1;
        table.last
    }

    pub(super) async fn remove_record(&self, id: u64) -> Result<()> {
        let records = self.records.clone();
        let remove = move || {
            records.remove(id);
            Ok(())
        };
        blocking(remove).await
    }

    /// Unmounts a mount and waits until it is gone. `lazy`: detaches it and doesn't wait for the processes that use it.
    pub async fn unmount(&self, id: u64, lazy: bool) -> ApiResult<()> {
        if self.table().failed.remove(&id).is_some() {
            return Ok(self.remove_record(id).await?);
        }
        let managed = self.find(id)?;
        let leaving = Arc::clone(&managed);
        blocking(move || if lazy { leaving.detach() } else { leaving.unmount() }).await?;
        let forgotten = async {
            if !lazy {
                managed.await_removal().await;
            } else if !self.lifecycle.is_closing() {
                let _ = self.remove_record(id).await;
            }
        };
        // After the timeout the mount ends with its last user, or its record goes when the cache's disk answers.
        if tokio::time::timeout(UNMOUNT_TIMEOUT, forgotten).await.is_err() {
            let at = managed.mountpoint().display();
            let why = if lazy { "the cache's disk does not answer" } else { "its files are still in use" };
            tracing::warn!("{at} is unmounted, but its record is kept: {why}");
        }
        Ok(())
    }

    /// Unmounts a mount; detaches one that is in use. A failure is logged.
    pub(super) async fn unmount_or_detach(&self, id: u64) {
        let Err(failure) = self.unmount(id, false).await else { return };
        tracing::warn!("{failure}; detaching it");
        if let Err(failure) = self.unmount(id, true).await {
            tracing::warn!("{failure}");
        }
    }

    /// Forgets the mounts of the last run at `mountpoint` that could not be restored, with their leases.
    pub async fn forget_failed(&self, mountpoint: &Path) {
        let ids: Vec<_> = self.table().failed_at(mountpoint).collect();
        for id in ids {
            if let Err(failure) = self.unmount(id, true).await {
                tracing::warn!("{} may be mounted again: {failure}", mountpoint.display());
            }
        }
    }

    /// Waits until a mount has ended, or the agent is about to.
    pub async fn await_end(&self, id: u64) -> ApiResult<()> {
        let managed = self.find(id)?;
        tokio::select! {
            () = managed.await_removal() => {}
            () = self.lifecycle.await_closing() => {}
        }
        Ok(())
    }

    /// Starts to stage a mount, for good: it is staged again after a restart. `verify`: what is local already is verified, too.
    pub async fn stage(self: &Arc<Self>, id: u64, verify: bool) -> ApiResult<StageStatus> {
        let (manager, managed) = (Arc::clone(self), self.find(id)?);
        let staged = blocking(move || {
            if managed.mark_staged() {
                manager.records.put(&managed.record()).inspect_err(|_| managed.unmark_staged())?;
            }
            Ok(manager.stage_and_convert(&managed, verify))
        });
        Ok(staged.await?)
    }

    /// Goes on with staging a mount of the last run.
    pub fn stage_restored(self: &Arc<Self>, managed: &Arc<ManagedMount>) {
        self.stage_and_convert(managed, false);
    }

    /// Replaces the secret that came with a mount's request by that of `access`, for this agent and the next. Not by one of another
    /// identity: the token of a pod is no access key, nor is it for another role.
    pub async fn renew_secret(&self, managed: Arc<ManagedMount>, access: Access) {
        let own = &managed.request().weights.access;
        if !own.has_same_identity(&access) {
            return;
        }
        let newer = access.given_secret().and_then(|(name, secrets)| secrets.get(name));
        if let (Some((name, secrets)), Some(newer)) = (own.given_secret(), newer)
            && secrets.replace(name, newer)
        {
            tracing::info!("{} has a new secret", managed.mountpoint().display());
            let (handover, managed) = (self.handover.clone(), Arc::clone(&managed));
            let stored = move || {
                handover.store(&managed);
                Ok(())
            };
            let _ = blocking(stored).await;
        }
    }

    /// The progress of a stage, at its end or after a moment.
    pub async fn staging(&self, id: u64) -> ApiResult<StageStatus> {
        let staging = self.find(id)?.staging(STAGE_POLL_TIMEOUT).await;
        staging.ok_or_else(|| Failure::new(Kind::NotFound, format!("mount {id} is not being staged")))
    }

    /// All mounts, oldest first.
    pub fn all(&self) -> Vec<Arc<ManagedMount>> {
        self.table().mounts.values().cloned().collect()
    }

    /// All mounts but those that are detached, oldest first.
    pub fn attached(&self) -> Vec<Arc<ManagedMount>> {
        self.table().mounts.values().filter(|managed| !managed.is_detached()).cloned().collect()
    }

    /// The mounts of the last run that could not be restored.
    pub fn lost(&self) -> Vec<LostMount> {
        self.table().failed.values().map(|failed| failed.lost.clone()).collect()
    }

    /// The mounted snapshots, as tenant, snapshot id, mount point; those included that could not be restored.
    pub fn users(&self) -> Vec<(String, String, PathBuf)> {
        let table = self.table();
        let mounted = table.mounts.values().map(|managed| managed.record());
        let records = mounted.chain(table.failed.values().filter_map(|failed| failed.record.clone()));
        let own = self.mounter.engine.tenant();
        records
            .map(|MountRecord { request, snapshot, .. }| {
                (request.tenant.unwrap_or_else(|| own.to_owned()), snapshot, request.weights.mountpoint)
            })
            .collect()
    }

    /// The mount with this id.
    pub fn find(&self, id: u64) -> ApiResult<Arc<ManagedMount>> {
        let missing = || Failure::new(Kind::NotFound, format!("no such mount: {id}"));
        self.table().mounts.get(&id).cloned().ok_or_else(missing)
    }

    /// The mount at `mountpoint`.
    pub fn at(&self, mountpoint: &Path) -> Option<Arc<ManagedMount>> {
        let is_at = |managed: &&Arc<ManagedMount>| managed.is_at(mountpoint);
        self.table().mounts.values().rfind(is_at).cloned()
    }

    /// The ids of all mounts at `mountpoint`, those included that could not be restored.
    pub fn ids_at(&self, mountpoint: &Path) -> Vec<u64> {
        let table = self.table();
        let mounted = table.mounts.values().filter(|managed| managed.is_at(mountpoint));
        mounted.map(|managed| managed.id()).chain(table.failed_at(mountpoint)).collect()
    }

    pub(super) fn table(&self) -> MutexGuard<'_, MountTable> {
        self.table.lock()
    }
}

impl MountTable {
    /// The ids of the mounts at `mountpoint` that could not be restored.
    fn failed_at<'a>(&'a self, mountpoint: &'a Path) -> impl Iterator<Item = u64> + 'a {
        let is_there = move |failed: &FailedMount| failed.lost.mountpoint == mountpoint;
        self.failed.iter().filter(move |(_, failed)| is_there(failed)).map(|(id, _)| *id)
    }
}
