//! Cached checkpoints: what a job has saved stays in the node's cache when the job ends, so that resuming on this node reads none of it
//! from the mirror.
//!
//! ```text
//!   volume of the job ── moved ──> trash, locked ──┬─ renamed: files of a block and more, on one disk ──┐
//!                                                  └─ copied: all others ───────────────────────────────┴─> stage ──> cache
//! ```
//!
//! The stage verifies every block by the manifest in the mirror. No file gets into the cache that somebody might still write to: it has one
//! name, and nobody has it open for writing.

use std::cmp::Reverse;
use std::fs::File;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::checkpoint::{CheckpointId, LOOSE};
use bdnfs::error::{Kind, Result};
use bdnfs::task::blocking;
use bdnfs::tier::Origin;
use bdnfs::tier::lazy_origin::OriginOpener;
use bdnfs::volume::{
    Scan, Seal, SealOutcome, SealedOrigin, SealedUnit, VolumeDirectory, ignore_lease_signal,
};
use futures_util::FutureExt;
use tokio::time::timeout;

use super::job_saver;
use super::run::JobRun;
use crate::mirror;
use crate::saver;
use crate::volumes::JobVolume;

/// How long the end of a job waits for that; what is left follows.
const CACHING_TIMEOUT: Duration = Duration::from_secs(10);

/// The checkpoints of a volume that are in the mirror as they are there, the newest first.
#[derive(Debug)]
pub struct SavedUnits {
    directory: Arc<VolumeDirectory>,
    seals: Vec<Seal>,
}

impl SavedUnits {
    /// Those in the volume of a job whose saver has finished. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`]; [`Kind::Invalid`] where there is too much to look at.
    pub fn find(volume: &JobVolume) -> Result<Self> {
        let saved = saver::read(volume.path()).unwrap_or_default().saved;
        let directory = Arc::new(VolumeDirectory::open(&volume.checkpoints())?);
        let (seals, _) = directory.walk().and_then(Scan::into_seals)?;
        let is_saved =
            |seal: &Seal| saved.get(&seal.unit).is_some_and(|saved| saved.fingerprint == seal.fingerprint());
        let mut seals: Vec<_> = seals.into_values().filter(is_saved).collect();
        seals.sort_by_key(|seal| Reverse(seal.written()));
        Ok(Self { directory, seals })
    }
}

/// Opens `unit` as the origin `name`, of which so many bytes a second are read at most.
fn opener(unit: &Arc<SealedUnit>, name: String, rate: Option<u64>) -> OriginOpener {
    let origin: Arc<dyn Origin> = Arc::new(SealedOrigin::new(name, Arc::clone(unit), rate));
    Box::new(move || ready(Ok(Arc::clone(&origin))).boxed())
}

/// Brings what a job has saved into the cache, from its `volume` in the trash, which `lock` keeps there; then that is removed. Returns
/// after a moment at the latest, and the rest follows.
pub async fn bring(run: &JobRun, saved: SavedUnits, volume: JobVolume, lock: File) {
    let run = run.clone();
    let work = async move {
        // What it leases comes back by itself: a job that needs the room waits for it.
        let permit = run.queue.admission.readmit();
        if let Err(error) = stage_all(&run, saved).await {
            tracing::info!(%error, "not all checkpoints of job {} are in the cache", run.job.id());
        }
        drop((permit, lock));
        volume.empty_trash();
    };
    let _ = timeout(CACHING_TIMEOUT, tokio::spawn(work)).await;
}

/// Stages the latest checkpoint, and as many others as there is room for without evicting anything.
async fn stage_all(run: &JobRun, saved: SavedUnits) -> Result<()> {
    ignore_lease_signal();
    let open = {
        let run = run.clone();
        move || {
            let mounter = run.queue.mounts.mounter();
            let mirror = mirror::open(&job_saver::mirror(&run)?, mounter.cache.clone())?;
            Ok((mirror, mounter.engine.of(run.queue.tenant_of(&run.job))?))
        }
    };
    let (mirror, engine) = blocking(open).await?;
    let (training, rate) = (&run.job.request().training, run.queue.volumes.config().upload_rate);
    let mut is_latest_next = true;
    for seal in saved.seals {
        // Jobs resume from loose files only where there is nothing else.
        let is_latest = seal.unit != LOOSE && std::mem::take(&mut is_latest_next);
        if !is_latest && engine.usage().spare() < seal.bytes() {
            continue;
        }
        let (name, project) = (seal.unit.clone(), training.project());
        let id = CheckpointId::new(project, training.id(), &name, training.rank)?;
        let found = match mirror.checkpoint_ref(&id).await {
            // Removed in favour of newer ones.
            Err(error) if error.kind() == Kind::NotFound => continue,
            found => found?,
        };
        let directory = Arc::clone(&saved.directory);
        let SealOutcome::Sealed(unit) = blocking(move || seal.apply(&directory)).await? else { continue };
        let unit = Arc::new(unit);
        let open = opener(&unit, id.to_string(), rate);
        let snapshot = engine.mirrored_from_files(&mirror, &found, open).await?;
        let (taking, taken_by) = (Arc::clone(&snapshot), engine.clone());
        blocking(move || taken_by.take_files(&taking, &unit)).await?;
        snapshot.stage().done().await?;
        if !run.job.has_ended() {
            run.job.note(format!("{name} is in the cache of this node"));
        }
    }
    Ok(())
}
