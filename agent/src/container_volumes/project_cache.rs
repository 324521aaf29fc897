//! The training cache of a project, for containers: the same directory that its jobs on this node have.

use std::convert::Infallible;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::boot;
use bdnfs::download::DownloadProgress;
use bdnfs::error::Result;
use bdnfs::mirror::Mirror;
use bdnfs::mirroring::MirrorProgress;
use bdnfs::task::{blocking, on_own_thread};
use tokio::time::sleep;

use super::ContainerVolumes;
use super::checkpoint_volume::SHARED_MODE;
use super::container_volume::ContainerVolume;
use crate::context::Context;
use crate::mirror::{self, MIRROR_CONFIG};
use crate::volumes::cache_home::CacheHome;
use crate::volumes::cache_sync::{CacheSync, REPORT_INTERVAL};

/// How often a lock of a home is tried.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Creates the home, unless it exists, brings what other nodes saved unless others on this node use it, and notes that it is written
/// in this boot. The file keeps it from being removed. Without the mirror it is as this node has it.
///
/// # Errors
/// [`Kind::Busy`](bdnfs::error::Kind::Busy) while it is removed; [`Kind::Disk`](bdnfs::error::Kind::Disk),
/// [`Kind::NoSpace`](bdnfs::error::Kind::NoSpace).
pub async fn begin(volumes: &Arc<ContainerVolumes>, tenant: &str, home: &CacheHome) -> Result<File> {
    let turn = locked(home, CacheHome::try_turn).await?;
    let own = home.clone();
    if !blocking(move || Ok(own.is_in_use())).await? {
        let lock = locked(home, CacheHome::try_sync_lock).await?;
        let mirror = open_mirror(volumes, tenant, home).await;
        let is_saved = !matches!(mirror, Ok(None));
        let mirror =
            mirror.map(|mirror| mirror.map(|mirror| CacheSync::new(home.clone(), mirror, Arc::new(lock))));
        let (sync, brought) = match mirror {
            Ok(Some(sync)) => {
                let own = sync.clone();
                let bring = move || async move { own.bring(&DownloadProgress::default()).await };
                (Some(sync), on_own_thread(bring).await.map(drop))
            }
            opened => (None, opened.map(drop)),
        };
        if let Err(error) = brought {
            tracing::warn!("{home} is as this node has it: {error}");
        }
        let own = home.clone();
        if !blocking(move || own.begin_use(is_saved.then(boot_id).transpose()?)).await? {
            tracing::warn!("{home} will not be saved: the node restarted while it was written");
        }
        if let Some(sync) = sync
            && let Err(error) = on_own_thread(move || async move { sync.report(true).await }).await
        {
            tracing::warn!("other nodes are not told that {home} may have unsaved changes: {error}");
        }
    }
    let home = home.clone();
    blocking(move || {
        let _turn = turn;
        let lock = home.create()?;
        let failed = || format!("cannot prepare {home}");
        fs::set_permissions(home.tree(), Permissions::from_mode(SHARED_MODE)).with_context(failed)?;
        Ok(lock)
    })
    .await
}

/// Saves the home at the interval of the configuration, as jobs do, while containers use it. Never ends.
pub async fn save_regularly(
    volumes: &Arc<ContainerVolumes>,
    own: &ContainerVolume,
    home: &CacheHome,
) -> Infallible {
    let interval = volumes.volumes.config().save_interval;
    loop {
        let left = save_when_due(volumes, own, home, interval).await.unwrap_or_else(|error| {
            tracing::warn!(
                "cannot save {home} while it is used, and tries again after save_interval: {error}"
            );
            interval
        });
        sleep(left.clamp(LOCK_POLL_INTERVAL, REPORT_INTERVAL)).await;
        if let Err(error) = report(volumes, own, home).await {
            tracing::warn!("cannot tell other nodes that {home} is in use here: {error}");
        }
    }
}

/// Tells other nodes that this one lives, which uses the home.
async fn report(volumes: &Arc<ContainerVolumes>, own: &ContainerVolume, home: &CacheHome) -> Result<()> {
    let Some(mirror) = open_mirror(volumes, &own.tenant, home).await? else { return Ok(()) };
    let home = home.clone();
    on_own_thread(move || async move { home.report_use(&mirror).await }).await
}

/// Saves a home that is in use, where that was not done within the `interval`, for whomever. Returns when it is to be done next.
async fn save_when_due(
    volumes: &Arc<ContainerVolumes>,
    own: &ContainerVolume,
    home: &CacheHome,
    interval: Duration,
) -> Result<Duration> {
    let used = home.clone();
    let lock = blocking(move || {
        let left = interval.saturating_sub(used.synced_ago().unwrap_or_default());
        if left > Duration::ZERO || used.sync_state()?.is_torn(&boot_id()?) {
            return Ok(Err(left.max(LOCK_POLL_INTERVAL)));
        }
        // Where another saves it, that is due again after the interval.
        Ok(used.try_sync_lock()?.ok_or(interval))
    });
    let lock = match lock.await? {
        Ok(lock) => lock,
        Err(left) => return Ok(left),
    };
    let Some(mirror) = open_mirror(volumes, &own.tenant, home).await? else { return Ok(interval) };
    let sync = CacheSync::new(home.clone(), mirror, Arc::new(lock));
    let rate = volumes.volumes.config().upload_rate;
    let save = move || async move { sync.save_in_use(rate, MIRROR_CONFIG, &MirrorProgress::default()).await };
    on_own_thread(save).await.map(|_| interval)
}

/// Saves the home in the mirror of the agent, if there is one, unless others on this node use it. What can't be saved stays, and
/// the next one that uses it saves it.
///
/// # Errors
/// Those of [`CacheSync::save`].
pub async fn save(volumes: &Arc<ContainerVolumes>, own: &ContainerVolume, home: &CacheHome) -> Result<()> {
    own.release();
    let _turn = locked(home, CacheHome::try_turn).await?;
    let used = home.clone();
    let end = blocking(move || {
        if used.is_in_use() || used.sync_state()?.is_torn(&boot_id()?) {
            return Ok(false);
        }
        used.end_use().map(|()| true)
    });
    if !end.await? {
        return Ok(());
    }
    let Some(mirror) = open_mirror(volumes, &own.tenant, home).await? else { return Ok(()) };
    let lock = locked(home, CacheHome::try_sync_lock).await?;
    let sync = CacheSync::new(home.clone(), mirror, Arc::new(lock));
    let save = move || async move { sync.save(MIRROR_CONFIG, &MirrorProgress::default()).await };
    on_own_thread(save).await.map(drop)
}

/// The mirror that a home is saved in, if there is one.
async fn open_mirror(
    volumes: &Arc<ContainerVolumes>,
    tenant: &str,
    home: &CacheHome,
) -> Result<Option<Mirror>> {
    let (volumes, tenant, scratch) = (Arc::clone(volumes), tenant.to_owned(), home.path().to_owned());
    blocking(move || volumes.mirror(&tenant)?.map(|at| mirror::open(&at, scratch)).transpose()).await
}

/// Waits for a lock of a home: its turn, or its sync lock.
async fn locked(home: &CacheHome, lock: fn(&CacheHome) -> Result<Option<File>>) -> Result<File> {
    loop {
        let own = home.clone();
        if let Some(locked) = blocking(move || lock(&own)).await? {
            return Ok(locked);
        }
        sleep(LOCK_POLL_INTERVAL).await;
    }
}

fn boot_id() -> Result<String> {
    boot::id().context("cannot read the boot id")
}
