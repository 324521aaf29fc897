//! Restore: the mounts of the last run come back when the agent starts.
//!
//! A mount whose descriptors the [fd store](crate::fdstore) has was never gone, and is served on.
//!
//! First all leases, from what the cache itself has: until then, and until native mounts have their packs, nothing is evicted. Then
//! the mounts, each in the place of the dead one. No network is needed. A mount that can't be restored keeps its lease and its
//! record, and is listed in the status. The mount of a job or publication that has ended is unmounted: its agent died while it did
//! that.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bdnfs::cache::eviction::EvictionPause;
use bdnfs::error::Kind;
use bdnfs::snapshot::Snapshot;
use bdnfs::source::SecretJsonError;
use bdnfs::task::blocking;
use bdnfs_fs::handover::MountDescriptors;
use bdnfs_fs::mounts;
use futures_util::{StreamExt, future, stream};

use super::attachment::Attachment;
use super::manager::MountManager;
use super::mount::ManagedMount;
use super::record::{FailedMount, MountRecord, REQUEST_SECRETS};
use crate::api::{ApiResult, Failure, LostMount, MountRequest};
use crate::fdstore::StoredMount;

/// The number of mounts that are restored at once: each waits for the kernel, and one whose mount point does not answer must not
/// hold up all.
const PARALLEL_RESTORES: usize = 16;

/// The time for which data that containers read before the machine's last boot is not evicted: so long a kubelet may take to start
/// them.
const LAST_BOOT_LEASE_DURATION: Duration = Duration::from_secs(10 * 60);

/// The time that a mount whose manifest the cache has lost waits for that of its mirror.
const MANIFEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The purpose of a mount of the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountPurpose {
    /// A client of the agent.
    Client,
    /// A job that runs or is deployed, or a publication.
    Deployment {
        /// Whether its sources are leased.
        admitted: bool,
    },
    /// A job or publication that has ended or is unknown.
    Ended,
    /// A publication that ended with the machine, and is likely to be asked for again.
    LastBoot,
}

/// A mount of the last run, with all that is left of it.
struct LastMount {
    record: MountRecord,
    /// The request that made the mount, with its secrets where they are known.
    request: MountRequest,
    descriptors: Option<MountDescriptors>,
    snapshot: ApiResult<Arc<Snapshot>>,
    purpose: MountPurpose,
    /// Dropped when all that it reads is leased.
    eviction_pause: Arc<EvictionPause>,
}

/// Restores the mounts of the last run: those of the records, of which the fd store has `stored`. `purpose` tells what the
/// mount at a mount point is for. Drops `eviction_pause` as soon as all leases are there, before it waits for the kernel. Returns
/// the mounts to stage.
pub async fn restore(
    manager: &Arc<MountManager>,
    eviction_pause: EvictionPause,
    stored: Vec<StoredMount>,
    purpose: impl Fn(&Path) -> MountPurpose,
) -> Vec<Arc<ManagedMount>> {
    let mut stored: HashMap<u64, StoredMount> =
        stored.into_iter().map(|stored| (stored.id, stored)).collect();
    let (records, unreadable) = manager.records.all().await;
    let ids = records.iter().map(|record| record.id).chain(unreadable.iter().map(|record| record.id));
    manager.table().last = ids.max().unwrap_or(0);
    for record in unreadable {
        // The fd store may know where it was, but not what its snapshot is.
        let request =
            stored.get(&record.id).map(|stored| serde_json::from_str::<MountRequest>(&stored.request));
        let mountpoint = request.and_then(Result::ok).map(|request| request.weights.mountpoint);
        add_failed(manager, FailedMount::unreadable(record, mountpoint));
    }
    let eviction_pause = Arc::new(eviction_pause);
    let mut last_mounts = Vec::new();
    for record in records {
        if let Some(until) = record.lease_until {
            lease_last_boot(manager, record, until).await;
            continue;
        }
        let (record, request, descriptors) = with_stored(record, &mut stored);
        let purpose = purpose(&request.weights.mountpoint);
        if matches!(purpose, MountPurpose::Ended | MountPurpose::LastBoot) {
            drop(descriptors);
            remove(manager, record.id, request.weights.mountpoint).await;
            if purpose == MountPurpose::LastBoot {
                lease_last_boot(manager, record, unix_seconds() + LAST_BOOT_LEASE_DURATION.as_secs()).await;
            }
            continue;
        }
        let snapshot = reopen(manager, &record, &request, purpose).await;
        let eviction_pause = Arc::clone(&eviction_pause);
        last_mounts.push(LastMount { record, request, descriptors, snapshot, purpose, eviction_pause });
    }
    drop(eviction_pause);
    // Mounts without a record were about to end.
    for (id, unknown) in stored {
        drop(unknown);
        manager.handover.remove(id).await;
    }
    stream::iter(last_mounts)
        .map(|last| restore_one(manager, last))
        .buffer_unordered(PARALLEL_RESTORES)
        .filter_map(future::ready)
        .collect()
        .await
}

/// Puts together what the record and the fd store have of a mount. The fd store has the secrets, too.
fn with_stored(
    record: MountRecord,
    stored: &mut HashMap<u64, StoredMount>,
) -> (MountRecord, MountRequest, Option<MountDescriptors>) {
    let mut bare = record.request.clone();
    if record.lacks_secrets {
        bare.weights.access.add_lost_secrets(REQUEST_SECRETS);
    }
    let Some(StoredMount { request, descriptors, .. }) = stored.remove(&record.id) else {
        return (record, bare, None);
    };
    match serde_json::from_str::<MountRequest>(&request).map_err(SecretJsonError::from) {
        Ok(request) => {
            // The agent that stored it may have lacked them already.
            let access = &request.weights.access;
            let lacks_secrets = record.lacks_secrets && access.lacks_given_secret(REQUEST_SECRETS);
            (MountRecord { lacks_secrets, ..record }, request, Some(descriptors))
        }
        Err(error) => {
            tracing::warn!("the secrets of {} are lost: {error}", bare.weights.mountpoint.display());
            (record, bare, Some(descriptors))
        }
    }
}

/// The snapshot of a mount, leased if it was.
async fn reopen(
    manager: &MountManager,
    record: &MountRecord,
    request: &MountRequest,
    purpose: MountPurpose,
) -> ApiResult<Arc<Snapshot>> {
    let snapshot = manager.mounter.reopen(record, request).await?;
    if record.staged
        || matches!(purpose, MountPurpose::Deployment { admitted: true } | MountPurpose::LastBoot)
    {
        let leased = Arc::clone(&snapshot);
        blocking(move || leased.hold()).await?;
    }
    Ok(snapshot)
}

/// The snapshot of a mount whose manifest the cache has lost: it was damaged, or removed for that. Its mirror has it, too; the
/// `failure` stays where it does not send it.
async fn reopen_from_mirror(
    manager: &MountManager,
    record: &MountRecord,
    request: &MountRequest,
    purpose: MountPurpose,
    failure: Failure,
) -> ApiResult<Arc<Snapshot>> {
    let fetch = manager.mounter.fetch_manifest(record, request);
    match tokio::time::timeout(MANIFEST_TIMEOUT, fetch).await {
        Ok(Ok(true)) => reopen(manager, record, request, purpose).await,
        Ok(Ok(false)) => Err(failure),
        Ok(Err(error)) => {
            tracing::warn!("{failure}: its mirror has not sent it: {error}");
            Err(failure)
        }
        Err(_) => {
            tracing::warn!("{failure}: its mirror has not sent it in time");
            Err(failure)
        }
    }
}

/// Leases what was published before the machine was started again, `until` a time in seconds since 1970, also for the next agent.
async fn lease_last_boot(manager: &Arc<MountManager>, mut record: MountRecord, until: u64) {
    let rest = Duration::from_secs(until.saturating_sub(unix_seconds())).min(LAST_BOOT_LEASE_DURATION);
    let (manager, id) = (Arc::clone(manager), record.id);
    let leased = match rest.is_zero() {
        true => None,
        false => reopen(&manager, &record, &record.request, MountPurpose::LastBoot).await.ok(),
    };
    let records = manager.records.clone();
    let Some(snapshot) = leased else {
        let removed = blocking(move || {
            records.remove(id);
            Ok(())
        });
        let _ = removed.await;
        return;
    };
    // No mount of this boot has that mount point, and an earlier version takes it for one of a publication that has ended.
    record.lease_until = Some(until);
    let directory = record.request.weights.mountpoint.with_file_name(format!("last-boot-{id}"));
    record.request.weights.mountpoint = directory;
    if let Err(error) = blocking(move || records.put(&record)).await {
        tracing::warn!("a lease of the last boot ends with this agent: {error}");
    }
    tokio::spawn(async move {
        tokio::time::sleep(rest).await;
        drop(snapshot);
        let _ = manager.remove_record(id).await;
    });
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Unmounts what is not used any more.
async fn remove(manager: &MountManager, id: u64, mountpoint: PathBuf) {
    tracing::info!("unmounting {}, which is no longer in use", mountpoint.display());
    manager.handover.remove(id).await;
    let records = manager.records.clone();
    let removed = blocking(move || {
        // The mount and its directory may be gone already.
        let _ = mounts::detach(&mountpoint);
        let _ = std::fs::remove_dir(&mountpoint);
        records.remove(id);
        Ok(())
    });
    let _ = removed.await;
}

/// Restores one mount; returns it if it is to be staged.
async fn restore_one(manager: &Arc<MountManager>, last: LastMount) -> Option<Arc<ManagedMount>> {
    let LastMount { record, request, descriptors, snapshot, purpose, eviction_pause } = last;
    let snapshot = match snapshot {
        Err(failure) if failure.is(Kind::NotFound) => {
            reopen_from_mirror(manager, &record, &request, purpose, failure).await
        }
        snapshot => snapshot,
    };
    let (staged, id) = (record.staged, record.id);
    let mounted = match &snapshot {
        Ok(snapshot) => resume_or_attach(manager, id, snapshot, &request, descriptors, eviction_pause).await,
        Err(failure) => {
            drop(descriptors);
            manager.handover.remove(id).await;
            Err(failure.clone())
        }
    };
    let why = match (mounted, snapshot.clone()) {
        (Ok(mount), Ok(snapshot)) => match manager.register(snapshot, mount, record.clone(), request).await {
            Ok(managed) => return staged.then_some(managed),
            Err(failure) => failure,
        },
        (Err(failure), _) | (_, Err(failure)) => failure,
    };
    add_failed(manager, FailedMount::new(record, why, snapshot.ok()));
    None
}

/// Lists a mount that can't be restored.
fn add_failed(manager: &MountManager, failed: FailedMount) {
    let LostMount { id, source, mountpoint, why } = &failed.lost;
    tracing::error!("{source} cannot be mounted at {} again: {why}", mountpoint.display());
    manager.table().failed.insert(*id, failed);
}

/// Goes on serving a mount; mounts it anew where the fd store had none, or that one can't be served.
async fn resume_or_attach(
    manager: &MountManager,
    id: u64,
    snapshot: &Arc<Snapshot>,
    request: &MountRequest,
    descriptors: Option<MountDescriptors>,
    eviction_pause: Arc<EvictionPause>,
) -> ApiResult<Attachment> {
    // It leases a pack, which no record knows.
    match manager.mounter.resume_native(snapshot, request).await {
        Ok(Some(native)) => {
            manager.handover.remove(id).await;
            return Ok(native);
        }
        Ok(None) => {}
        Err(error) if descriptors.is_none() => return Err(error),
        // A native mount has no descriptors, and one that has is served whatever else can't be told.
        Err(error) => tracing::warn!(%error, "cannot tell whether a mount is native"),
    }
    drop(eviction_pause);
    if let Some(descriptors) = descriptors {
        match manager.mounter.resume(snapshot, request, descriptors).await {
            Ok(mount) => return Ok(Attachment::Fuse(mount)),
            Err(error) => {
                tracing::warn!(
                    "cannot resume the mount at {}: {error}",
                    request.weights.mountpoint.display()
                );
                // The old mount then ends, and a new one replaces it.
                manager.handover.remove(id).await;
            }
        }
    }
    Ok(Attachment::Fuse(manager.mounter.attach(snapshot, request).await?))
}
