//! Cached checkpoints: what a job has saved stays in the node's cache when the job ends, so that resuming on this node reads none
//! of it from the mirror.
//!
//! ```text
//!   volume of the job ── moved ──> trash, locked ──┬─ renamed: files of a block and more, on one disk ──┐
//!                                                  └─ copied: all others ───────────────────────────────┴─> stage ──> cache
//! ```
//!
//! The stage verifies every block by the manifest in the mirror. No file gets into the cache that somebody might still write to: it
//! has one name, and nobody has it open for writing.

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

use super::AdmissionQueue;
use crate::api::MirrorRequest;
use crate::mirror;
use crate::mounts::MountManager;
use crate::saver;
use crate::volumes::JobVolume;

/// The time that the end of a job waits for that; what is left follows.
const CACHING_TIMEOUT: Duration = Duration::from_secs(10);

/// The job that saved checkpoints, and how they come into the cache.
pub struct CheckpointCaching {
    /// The mounts of the agent, whose engine has the cache.
    pub mounts: Arc<MountManager>,
    /// The queue in which others wait for room in the cache.
    pub admission: Arc<AdmissionQueue>,
    /// The tenant of the job.
    pub tenant: String,
    /// The project of the job.
    pub project: String,
    /// The id of the job.
    pub id: String,
    /// The rank of this node.
    pub rank: u32,
    /// The mirror that has them.
    pub mirror: MirrorRequest,
    /// The most bytes a second that are read.
    pub rate: Option<u64>,
    /// Is told of each that is in the cache.
    pub note: Box<dyn Fn(String) + Send + Sync>,
}

/// A volume in the trash, with its checkpoints that are in the mirror as they are there, the newest first.
#[derive(Debug)]
pub struct SavedVolume {
    directory: Arc<VolumeDirectory>,
    seals: Vec<Seal>,
    volume: JobVolume,
    /// Keeps it in the trash.
    lock: File,
}

impl SavedVolume {
    /// Moves the `volume` of a job, whose saver has finished and saved all of it, into the trash. Where it can't be looked at it is
    /// removed, and where somebody holds it, it stays. Touches the local disk.
    pub fn retire(volume: JobVolume) -> Option<Self> {
        let Ok((directory, seals)) = saved_units(&volume) else {
            volume.retire(true);
            return None;
        };
        let lock = volume.move_to_trash(true)?;
        Some(Self { directory, seals, volume, lock })
    }
}

/// The checkpoints of a volume that are saved as they are, the newest first.
fn saved_units(volume: &JobVolume) -> Result<(Arc<VolumeDirectory>, Vec<Seal>)> {
    let saved = saver::read(volume.path()).unwrap_or_default().saved;
    let directory = Arc::new(VolumeDirectory::open(&volume.checkpoints())?);
    let (seals, _) = directory.walk().and_then(Scan::into_seals)?;
    let is_saved =
        |seal: &Seal| saved.get(&seal.unit).is_some_and(|saved| saved.fingerprint == seal.fingerprint());
    let mut seals: Vec<_> = seals.into_values().filter(is_saved).collect();
    seals.sort_by_key(|seal| Reverse(seal.written()));
    Ok((directory, seals))
}

/// Opens `unit` as the origin `name`, of which so many bytes a second are read at most.
fn opener(unit: &Arc<SealedUnit>, name: String, rate: Option<u64>) -> OriginOpener {
    let origin: Arc<dyn Origin> = Arc::new(SealedOrigin::new(name, Arc::clone(unit), rate));
    Box::new(move || ready(Ok(Arc::clone(&origin))).boxed())
}

impl CheckpointCaching {
    /// Adds what a job has saved to the cache, from its volume in the trash; then that is removed. Returns after a moment at the
    /// latest, and the rest follows.
    pub async fn add(self, saved: SavedVolume) {
        let work = async move {
            // What it leases comes back by itself: a job that needs the room waits for it.
            let permit = self.admission.readmit();
            let SavedVolume { directory, seals, volume, lock } = saved;
            if let Err(error) = self.stage_all(directory, seals).await {
                tracing::info!(%error, "not all checkpoints of job {} are in the cache", self.id);
            }
            drop((permit, lock));
            volume.empty_trash();
        };
        let _ = timeout(CACHING_TIMEOUT, tokio::spawn(work)).await;
    }

    /// Stages the latest checkpoint, and as many others as there is room for without evicting anything.
    async fn stage_all(&self, all: Arc<VolumeDirectory>, seals: Vec<Seal>) -> Result<()> {
        ignore_lease_signal();
        let open = {
            let (mounts, at, tenant) = (Arc::clone(&self.mounts), self.mirror.clone(), self.tenant.clone());
            move || {
                let mounter = mounts.mounter();
                Ok((mirror::open(&at, mounter.cache.clone())?, mounter.engine.of(&tenant)?))
            }
        };
        let (mirror, engine) = blocking(open).await?;
        let mut is_latest_next = true;
        for seal in seals {
            // Jobs resume from loose files only where there is nothing else.
            let is_latest = seal.unit != LOOSE && std::mem::take(&mut is_latest_next);
            if !is_latest && engine.usage().spare() < seal.bytes() {
                continue;
            }
            let name = seal.unit.clone();
            let id = CheckpointId::new(&self.project, &self.id, &name, self.rank)?;
            let found = match mirror.checkpoint_ref(&id).await {
                // Removed in favour of newer ones.
                Err(error) if error.kind() == Kind::NotFound => continue,
                found => found?,
            };
            let directory = Arc::clone(&all);
            let SealOutcome::Sealed(unit) = blocking(move || seal.apply(&directory, false)).await? else {
                continue;
            };
            let unit = Arc::new(unit);
            let open = opener(&unit, id.to_string(), self.rate);
            let snapshot = engine.mirrored_from_files(&mirror, &found, open).await?;
            let (taking, taken_by) = (Arc::clone(&snapshot), engine.clone());
            blocking(move || taken_by.take_files(&taking, &unit)).await?;
            snapshot.stage().done().await?;
            (self.note)(format!("{name} is in the cache of this node"));
        }
        Ok(())
    }
}
