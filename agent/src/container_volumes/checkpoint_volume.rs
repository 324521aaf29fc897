//! Checkpoints that a container writes: a directory of its own, and a saver process as for a job.
//!
//! The saver learns the end of the container from a file. How the container ended no runtime says: all that settles is saved, and
//! is complete where there is a hint.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use bdnfs::error::{Kind, Result};
use bdnfs::task::blocking;
use tokio::time::sleep;

use super::ContainerVolumes;
use super::container_volume::ContainerVolume;
use crate::api::saving::SaveReport;
use crate::api::{ApiResult, Failure, MirrorRequest};
use crate::context::Context;
use crate::deploy::{CheckpointCaching, SavedVolume};
use crate::saver::{self, RECORD_POLL_INTERVAL, SaveOrder, SaverRestarts};
use crate::volumes::JobVolume;

/// The file in a volume that says that its container has ended.
const CONTAINER_END_FILE: &str = "container.end";
/// The permissions of what a container sees, whoever its user is; the directories above are the agent's own.
pub const SHARED_MODE: u32 = 0o777;

/// Creates the directory, empty, and returns the lock that keeps it. Touches the local disk.
///
/// # Errors
/// [`Kind::Busy`] where it is in use, or has something that is not saved; [`Kind::Disk`], [`Kind::NoSpace`].
pub fn create(volume: &JobVolume) -> Result<File> {
    let lock = volume.create(&[volume.checkpoints()])?;
    saver::begin_checkpoints(volume)?;
    let failed = || format!("cannot prepare {}", volume.path().display());
    match fs::remove_file(volume.path().join(CONTAINER_END_FILE)) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(failed),
        _ => {}
    }
    fs::set_permissions(volume.checkpoints(), Permissions::from_mode(SHARED_MODE)).with_context(failed)?;
    Ok(lock)
}

/// Tells the saver of a volume, durably, that its container has ended. Touches the local disk.
///
/// # Errors
/// [`Kind::Disk`], [`Kind::NoSpace`].
pub fn write_end(volume: &JobVolume) -> Result<()> {
    let failed = || format!("cannot write {}", volume.path().join(CONTAINER_END_FILE).display());
    // Only whether it is there is looked at: an empty file needs no block of a full disk.
    let write = || {
        File::create(volume.path().join(CONTAINER_END_FILE))?.sync_all()?;
        File::open(volume.path())?.sync_all()
    };
    write().with_context(failed)
}

/// Keeps the saver of a volume alive until it has finished, and removes what is saved.
///
/// # Errors
/// [`Kind::Unavailable`] where something could not be saved; it is kept, and the error says where.
pub async fn save(
    volumes: &Arc<ContainerVolumes>,
    own: &Arc<ContainerVolume>,
    volume: &JobVolume,
) -> ApiResult<()> {
    let report = watch_saver(volumes, own, volume).await;
    own.release();
    let removed = volume.clone();
    let (at, tenant) = (Arc::clone(volumes), own.tenant.clone());
    let finish = blocking(move || {
        let report = saver::confirm_saved(removed.path(), &removed.checkpoints(), report);
        let saved = match at.mirror(&tenant).ok().flatten() {
            _ if report.has_unsaved() => None,
            Some(mirror) => SavedVolume::retire(removed).map(|saved| (saved, mirror)),
            None => {
                removed.retire(true);
                None
            }
        };
        Ok((report, saved))
    });
    let (report, saved) = finish.await?;
    own.set_report(report.clone());
    if let Some((saved, mirror)) = saved {
        caching(volumes, own, mirror).add(saved).await;
    }
    if !report.has_unsaved() {
        return Ok(());
    }
    let why = report.why.map_or_else(String::new, |why| format!(": {why}"));
    let directory = volume.checkpoints();
    let text = format!(
        "not all checkpoints could be saved{why}; they are kept in {}; save them with `bdnfs checkpoint push` and remove them",
        directory.display()
    );
    Err(Failure::new(Kind::Unavailable, text))
}

/// The copying of a volume's checkpoints, which `mirror` has, into the cache.
fn caching(volumes: &ContainerVolumes, own: &ContainerVolume, mirror: MirrorRequest) -> CheckpointCaching {
    let key = own.key.clone();
    CheckpointCaching {
        mounts: Arc::clone(&volumes.mounts),
        admission: Arc::clone(&volumes.admission),
        tenant: own.tenant.clone(),
        project: own.request.name.clone(),
        id: own.request.id.clone().unwrap_or_default(),
        rank: 0,
        mirror,
        rate: volumes.volumes.config().upload_rate,
        note: Box::new(move |text| tracing::info!("volume {key}: {text}")),
    }
}

/// Starts the saver, again where it died, until it has saved what its container left.
async fn watch_saver(
    volumes: &Arc<ContainerVolumes>,
    own: &Arc<ContainerVolume>,
    volume: &JobVolume,
) -> SaveReport {
    let (mut restarts, mut events) = (SaverRestarts::default(), None);
    loop {
        let path = volume.path().to_owned();
        // Read in this order: what a saver writes before its end is seen.
        let look = move || Ok((saver::has_saver(&path), saver::read(&path).unwrap_or_default()));
        let is_unused = own.is_unused();
        let Ok((lives, record)) = blocking(look).await else {
            sleep(RECORD_POLL_INTERVAL).await;
            continue;
        };
        for event in record.events_after(events.unwrap_or(record.events)) {
            tracing::info!("volume {}: {event}", own.key);
        }
        events = Some(record.events);
        let report = restarts.with_failure(record.report);
        own.set_report(report.clone());
        if !lives && report.finished && is_unused {
            return report;
        }
        if lives {
            sleep(RECORD_POLL_INTERVAL).await;
            continue;
        }
        let give_up = volumes.volumes.config().give_up;
        if let Some(last) = restarts.final_report(own.end_time(), give_up, &report, volume.checkpoints()) {
            return last;
        }
        let (at, of, directory) = (Arc::clone(volumes), Arc::clone(own), volume.clone());
        let order = blocking(move || saver_order(&at, &of, &directory));
        if let Some(text) = restarts.start(order).await {
            tracing::warn!("volume {}: {text}", own.key);
        }
    }
}

/// The order for the saver of a volume. Reads secrets.
fn saver_order(volumes: &ContainerVolumes, own: &ContainerVolume, volume: &JobVolume) -> Result<SaveOrder> {
    let mirror = volumes.mirror(&own.tenant)?.ok_or_else(saver::no_mirror)?;
    let (directory, config) = (volume.checkpoints(), volumes.volumes.config());
    Ok(SaveOrder {
        volume: volume.path().to_owned(),
        directory,
        place: own.container_path(),
        job_lock: None,
        commands_lock: None,
        job_exit: volume.path().join(CONTAINER_END_FILE),
        project: own.request.name.clone(),
        id: own.request.id.clone().unwrap_or_default(),
        rank: 0,
        mirror,
        seen_mirrors: volumes.volumes.directory().to_owned(),
        upload_rate: config.upload_rate,
        give_up: config.give_up,
        keep: own.request.keep,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::tests::{fill, mount_small_disk};
    use crate::volumes::tests::volumes;

    #[test]
    fn end_of_a_container_that_filled_the_disk_is_written() {
        let home = tempfile::tempdir().unwrap();
        let disk = home.path().join("volumes");
        fs::create_dir(&disk).unwrap();
        if !mount_small_disk(&disk) {
            return;
        }
        let volume = volumes(home.path()).of_job("default", "x");
        let _lock = volume.create(&[]).unwrap();
        fill(&disk);
        write_end(&volume).unwrap();
        assert!(volume.path().join(CONTAINER_END_FILE).exists());
    }
}
