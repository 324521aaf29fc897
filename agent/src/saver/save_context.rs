//! One upload: a settled unit is sealed, published as a snapshot, and written into the mirror's index.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bdnfs::checkpoint::marker::is_whole_marker;
use bdnfs::checkpoint::{CheckpointId, SavedCheckpoint};
use bdnfs::digest::{Digest, hex};
use bdnfs::error::{Error, Kind, Result};
use bdnfs::mirror::Mirror;
use bdnfs::mirroring::{
    MirrorPhase, MirrorProgress, MirrorSource, find_mirrored, mirror_ahead, mirror_source,
};
use bdnfs::task::blocking;
use bdnfs::volume::{
    EncodedPath, Seal, SealOutcome, SealedOrigin, SealedUnit, UnwrittenContent, VolumeDirectory,
    seal_file_name,
};
use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::order::SaveOrder;
use super::record::{self, SEALS_DIRECTORY, SavedState, SealedState};
use crate::mirror::{self, MIRROR_CONFIG};

/// The most that a marker holds, in bytes: the Trainer's has a line for each step that it logged.
const MAX_MARKER_BYTES: u64 = 64 << 20;

/// The parts that every upload of a saver needs.
#[derive(Debug)]
pub struct SaveContext {
    /// The order.
    pub order: SaveOrder,
    /// The unit that is saved.
    pub directory: Arc<VolumeDirectory>,
    /// The mirror, once it could be opened.
    mirror: OnceCell<Mirror>,
    /// The content of it that the disk failed to write.
    pub unwritten: Mutex<UnwrittenContent>,
}

/// A unit as it is to be saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SettledUnit {
    /// All its files.
    pub seal: Seal,
    /// The digest of that.
    #[serde(with = "hex")]
    pub fingerprint: Digest,
    /// Whether the job has finished it, as far as can be told.
    pub complete: bool,
    /// When one of its files was last written: seconds and nanoseconds since 1970.
    pub written: (i64, u32),
    /// Whether it is what its job has left, deleting it, of a state that was never saved.
    #[serde(default)]
    pub partial: bool,
    /// The unit as it was sealed before its job began to delete it, where this is the rest: an earlier saver may have saved that,
    /// and not have written it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Box<SettledUnit>>,
    /// Whether only time tells that it has no writer.
    #[serde(default)]
    pub without_leases: bool,
}

/// The outcome of an upload.
#[derive(Debug)]
pub enum UploadOutcome {
    /// The unit is in the mirror; and which older ones were removed from there, or why they could not be.
    Saved(Box<SavedCheckpoint>, Result<Vec<CheckpointId>>),
    /// The whole of which the unit is the rest was in the mirror already, and stays.
    WholeSaved(Box<SettledUnit>, Box<SavedCheckpoint>),
    /// The unit was not settled, or changed meanwhile.
    Busy,
    /// The job is being ended: what is settled now may have been closed by that.
    Ending,
    /// The file system can't tell whether it has a writer.
    WritersUnknown,
    /// The unit can't be saved as it is.
    Refused(Error),
    /// The disk failed to write some of it.
    Unwritten,
}

/// The state of a unit before its job began to delete it.
pub enum IntactUnit {
    /// The state that is saved.
    Saved,
    /// A state that was sealed and never saved.
    Unsaved,
}

impl SettledUnit {
    /// The name of the unit.
    pub fn name(&self) -> &str {
        &self.seal.unit
    }

    /// Its entry in the index when it was published as `manifest`, which took so many `seconds`.
    fn saved(&self, id: CheckpointId, manifest: Digest, seconds: f64) -> SavedCheckpoint {
        SavedCheckpoint {
            id,
            manifest,
            generation: 1,
            complete: self.complete,
            files: self.seal.files.len() as u64,
            bytes: self.seal.bytes(),
            written: time(self.written),
            saved: SystemTime::now().into(),
            seconds,
            previous_complete: None,
        }
    }

    /// The state in which it is sealed.
    pub fn sealed_state(&self) -> SealedState {
        let Self { fingerprint, complete, partial, .. } = *self;
        SealedState { fingerprint, complete, partial }
    }
}

impl SaveContext {
    /// The context of an order with its open `directory`. The disk has failed to write the content `unwritten` of that.
    pub fn new(order: SaveOrder, directory: Arc<VolumeDirectory>, unwritten: UnwrittenContent) -> Self {
        Self { order, directory, mirror: OnceCell::new(), unwritten: Mutex::new(unwritten) }
    }

    /// The mirror, which is created if it was never seen. One that is away is opened when it is back.
    ///
    /// # Errors
    /// Those of opening it, and [`Kind::Unavailable`] where it is gone.
    pub async fn mirror(self: &Arc<Self>) -> Result<&Mirror> {
        let context = Arc::clone(self);
        let open = || blocking(move || mirror::open(&context.order.mirror, context.order.volume.clone()));
        let mirror = self.mirror.get_or_try_init(open).await?;
        mirror::check_seen(mirror, &self.order.mirror, &self.order.seen_mirrors, true).await?;
        Ok(mirror)
    }

    /// The identity of a unit's checkpoint.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a name that can't be one.
    pub fn id(&self, unit: &str) -> Result<CheckpointId> {
        CheckpointId::new(&self.order.project, &self.order.id, unit, self.order.rank)
    }

    /// Seals a unit: makes it durable and records it. Where the job `runs`, only if nobody has begun to end it by then: a writer
    /// that is killed closes its files like any other. Returns `None` when it is sealed, else why it is not.
    ///
    /// # Errors
    /// [`Kind::Disk`], [`Kind::NoSpace`].
    pub async fn seal(self: Arc<Self>, unit: SettledUnit, runs: bool) -> Result<Option<UploadOutcome>> {
        blocking(move || Ok(self.seal_now(&unit, || runs && self.order.is_ending())?.err())).await
    }

    /// Seals a unit, unless its job `is_ending`. What comes back holds its files open, and is the unit as it was written down.
    fn seal_now(
        &self,
        unit: &SettledUnit,
        is_ending: impl FnOnce() -> bool,
    ) -> Result<std::result::Result<(Arc<SealedUnit>, SettledUnit), UploadOutcome>> {
        let sealed = match unit.seal.clone().apply(&self.directory, unit.without_leases)? {
            SealOutcome::Sealed(_) if is_ending() => return Ok(Err(UploadOutcome::Ending)),
            SealOutcome::Sealed(sealed) => sealed,
            SealOutcome::Busy => return Ok(Err(UploadOutcome::Busy)),
            SealOutcome::WritersUnknown => return Ok(Err(UploadOutcome::WritersUnknown)),
            SealOutcome::Unwritten(paths, error) => {
                tracing::warn!("{error}");
                // Here: nobody may wait for the outcome any more, and nobody else will be told.
                let files = paths.iter().filter_map(|path| unit.seal.files.get(path));
                let mut unwritten = self.unwritten.lock();
                files.for_each(|file| unwritten.add(file));
                return Ok(Err(UploadOutcome::Unwritten));
            }
        };
        // The flush of what the disk has failed to write before succeeds.
        if self.unwritten.lock().path_in(&unit.seal).is_some() {
            return Ok(Err(UploadOutcome::Unwritten));
        }
        let mut unit = unit.clone();
        if let Some(last) = self.last_seal(unit.name()) {
            // A scan may have found it complete meanwhile.
            unit.complete |= last.complete && last.seal == unit.seal;
            let is_same = last.fingerprint == unit.fingerprint;
            if unit.whole.is_none() && (is_same || unit.seal.is_remainder_of(&last.seal)) {
                unit.whole = last.whole.clone().or_else(|| (!is_same).then(|| Box::new(last)));
            }
        }
        self.write_seal(&unit)?;
        Ok(Ok((Arc::new(sealed), unit)))
    }

    fn write_seal(&self, unit: &SettledUnit) -> Result<()> {
        let seals = self.seals();
        let _ = std::fs::create_dir(&seals);
        record::write(&seals, &seal_file_name(unit.name()), unit)
    }

    /// Writes down that a unit is complete in the state in which it is sealed. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`], [`Kind::NoSpace`].
    pub fn seal_complete(&self, unit: &str) -> Result<()> {
        self.last_seal(unit).map_or(Ok(()), |unit| self.write_seal(&SettledUnit { complete: true, ..unit }))
    }

    /// Whether the last thing that was written to a unit is a marker, which is there whole. Touches the local disk.
    pub fn is_last_written_marker(&self, seal: &Seal) -> bool {
        let mut markers = seal.last_markers().peekable();
        let is_whole = |EncodedPath(path): &EncodedPath| {
            let content = self.directory.read_small(path, MAX_MARKER_BYTES).ok().flatten();
            content.is_some_and(|content| is_whole_marker(path, &content))
        };
        markers.peek().is_some() && markers.all(is_whole)
    }

    /// The directory of the seals.
    fn seals(&self) -> PathBuf {
        self.order.volume.join(SEALS_DIRECTORY)
    }

    /// The last seal of a unit, if it was ever sealed. Touches the local disk.
    pub fn last_seal(&self, unit: &str) -> Option<SettledUnit> {
        last_seal(&self.order.volume, unit)
    }

    /// The states in which units are sealed, by their names. Touches the local disk.
    pub fn sealed(&self) -> BTreeMap<String, SealedState> {
        let entries = std::fs::read_dir(self.seals()).into_iter().flatten().flatten();
        // Others are drafts that a crash has left.
        let paths =
            entries.map(|entry| entry.path()).filter(|path| path.extension() == Some("json".as_ref()));
        let read = paths.filter_map(|path| std::fs::read(path).ok());
        let units = read.filter_map(|text| serde_json::from_slice::<SettledUnit>(&text).ok());
        units.map(|unit| (unit.name().to_owned(), unit.sealed_state())).collect()
    }

    /// Removes the seals of units that are gone. Touches the local disk.
    pub fn remove_seals(&self, units: &[String]) {
        for unit in units {
            let _ = std::fs::remove_file(self.seals().join(seal_file_name(unit)));
        }
    }

    /// Uploads the content of `part`, files of a unit that is not sealed, where nothing of it is seen before the unit is saved.
    /// False where a file has a writer, or was written to. Dropping the future gives it up.
    ///
    /// # Errors
    /// Those of the mirror, and of reading.
    pub async fn upload_ahead(self: Arc<Self>, part: Seal) -> Result<bool> {
        let (id, context) = (self.id(&part.unit)?, Arc::clone(&self));
        let sealed = match blocking(move || part.open(&context.directory)).await? {
            SealOutcome::Sealed(sealed) => sealed,
            SealOutcome::Busy | SealOutcome::Unwritten(..) => return Ok(false),
            SealOutcome::WritersUnknown => {
                let text = "the file system cannot tell whether the file has a writer";
                return Err(Error::new(Kind::Unsupported, text));
            }
        };
        let origin = SealedOrigin::new(id.to_string(), Arc::new(sealed), self.order.upload_rate);
        let source = MirrorSource::checkpoint(&id, Arc::new(origin));
        match mirror_ahead(self.mirror().await?, &source, MIRROR_CONFIG, &MirrorProgress::default()).await {
            Err(error) if error.kind() == Kind::Changed => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// Saves a unit that was sealed. Dropping the future gives it up.
    ///
    /// # Errors
    /// Those of the mirror, and of reading; what can be tried again is.
    pub async fn upload(
        self: Arc<Self>,
        unit: SettledUnit,
        progress: Arc<MirrorProgress>,
    ) -> Result<UploadOutcome> {
        let id = self.id(unit.name())?;
        let (context, sealing) = (Arc::clone(&self), unit.clone());
        let (sealed, unit) = match blocking(move || context.seal_now(&sealing, || false)).await? {
            Ok(sealed) => sealed,
            Err(outcome) => return Ok(outcome),
        };
        let (begin, mirror) = (Instant::now(), self.mirror().await?);
        if let Some(whole) = unit.whole.clone()
            && let Some(saved) = self.find_saved(&id, &whole).await?
        {
            let (context, saved_whole) = (Arc::clone(&self), whole.clone());
            // As if it had been written down at once: then the rest is never sealed.
            blocking(move || context.write_seal(&saved_whole)).await?;
            return Ok(UploadOutcome::WholeSaved(whole, Box::new(saved)));
        }
        let origin = SealedOrigin::new(id.to_string(), sealed, self.order.upload_rate);
        let source = MirrorSource::checkpoint(&id, Arc::new(origin));
        let published = match mirror_source(mirror, &source, MIRROR_CONFIG, &progress).await {
            Err(error) if error.kind() == Kind::Changed => return Ok(UploadOutcome::Busy),
            // Names that can't be in a manifest. All else that is invalid may be so for now: the mirror, or its credentials.
            Err(error) if error.kind() == Kind::Invalid && progress.state() == MirrorPhase::Listing => {
                return Ok(UploadOutcome::Refused(error));
            }
            published => published?,
        };
        let (manifest, seconds) = (published.latest_ref.manifest, begin.elapsed().as_secs_f64());
        let saved = mirror.enter_checkpoint(unit.saved(id, manifest, seconds)).await?;
        // Its disk may have gone meanwhile.
        self.mirror().await?;
        let removed = match self.order.keep.filter(|_| saved.complete) {
            Some(keep) => mirror.prune_checkpoints(&saved.id, keep.get() as usize).await,
            None => Ok(Vec::new()),
        };
        Ok(UploadOutcome::Saved(Box::new(saved), removed))
    }

    /// The index entry of a unit that may be gone, if it is in the mirror just as it was sealed. An entry that lacks is written.
    async fn find_saved(
        self: &Arc<Self>,
        id: &CheckpointId,
        unit: &SettledUnit,
    ) -> Result<Option<SavedCheckpoint>> {
        let sealed = SealedUnit::earlier(unit.seal.clone(), Arc::clone(&self.directory));
        let origin = SealedOrigin::new(id.to_string(), Arc::new(sealed), None);
        let (mirror, source) = (self.mirror().await?, MirrorSource::checkpoint(id, Arc::new(origin)));
        let Some(found) = find_mirrored(mirror, &source, MIRROR_CONFIG).await? else { return Ok(None) };
        let entered = mirror.checkpoint(id).await.ok().flatten();
        match entered.filter(|entry| entry.manifest == found.manifest) {
            Some(entry) => Ok(Some(entry)),
            None => {
                mirror.enter_checkpoint(unit.saved(id.clone(), found.manifest, found.took)).await.map(Some)
            }
        }
    }
}

fn last_seal(volume: &Path, unit: &str) -> Option<SettledUnit> {
    let text = std::fs::read(volume.join(SEALS_DIRECTORY).join(seal_file_name(unit))).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Returns the last sealed state of a unit of which a deletion in progress has left only `seal`; `None` for other units. Touches
/// the local disk.
pub fn whole_of_remainder(volume: &Path, seal: &Seal) -> Option<Digest> {
    let last = last_seal(volume, &seal.unit)?;
    seal.is_remainder_of(&last.seal).then_some(last.fingerprint)
}

/// Returns whether the unit is what a deletion in progress has left of its state `saved`. Touches the local disk.
pub fn is_remainder(volume: &Path, seal: &Seal, saved: &SavedState) -> bool {
    whole_of_remainder(volume, seal) == Some(saved.fingerprint)
}

fn time((seconds, nanoseconds): (i64, u32)) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, nanoseconds).unwrap_or_default()
}
