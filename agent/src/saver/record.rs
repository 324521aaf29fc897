//! The record of a saver: what it did, for the next saver of the job and for the agent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bdnfs::digest::{Digest, hex};
use bdnfs::error::Result;
use bdnfs::volume::UnwrittenContent;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::api::saving::{CheckpointState, SaveReport};
use crate::context::Context;
use crate::durable::{keep_spare, write_json_with_spare};

/// The file in a volume with its [`SaverRecord`].
const RECORD_FILE: &str = "saver.json";
/// The file in a volume with a [`SaverEnd`].
const END_FILE: &str = "saver.end";
/// The directory in a volume with the seals of its units.
pub(super) const SEALS_DIRECTORY: &str = "seals";
/// The number of events that are kept: earlier ones are reported already, or too many to be of use.
const MAX_EVENTS: usize = 200;

/// The record of a saver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaverRecord {
    /// The project of the job; unknown where an earlier version was the saver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The states of the checkpoints.
    pub report: SaveReport,
    /// The state in which each that is there was last saved.
    pub saved: BTreeMap<String, SavedState>,
    /// The states in which units had a writer when they were to be sealed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub written_to: BTreeMap<String, Fingerprint>,
    /// The content that the disk failed to write.
    #[serde(default, skip_serializing_if = "UnwrittenContent::is_empty")]
    pub unwritten: UnwrittenContent,
    /// The number of events that there were.
    pub events: u64,
    /// The last of them, each a line.
    pub last_events: Vec<String>,
    /// The boot in which the directory was last written to.
    pub boot: String,
    /// When the job was found to have ended: saving is given up so long after that, whichever saver it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<DateTime<Utc>>,
}

/// A state of a checkpoint: the digest of all that it consists of, with versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(#[serde(with = "hex")] pub Digest);

/// The state in which a checkpoint was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedState {
    /// The digest of all that it consists of, with versions.
    #[serde(with = "hex")]
    pub fingerprint: Digest,
    /// Whether it was saved as complete.
    pub complete: bool,
}

/// The state in which a checkpoint is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedState {
    /// The digest of all that it consists of, with versions.
    pub fingerprint: Digest,
    /// Whether its job had finished it, as far as could be told at any time since.
    pub complete: bool,
    /// Whether it is what its job has left, deleting it, of a state that was never saved.
    pub partial: bool,
}

/// A request for a saver to end before all is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SaverEnd {
    /// Unsaved units are dropped.
    Discard,
    /// Unsaved units stay in their directory.
    Keep,
}

impl SaverRecord {
    /// Returns the checkpoints found by a saver that are not saved, and how each is `sealed`.
    pub fn unsaved(&self, sealed: &BTreeMap<String, SealedState>) -> BTreeMap<String, Option<SealedState>> {
        let found = self.report.checkpoints.iter().filter(|one| match one.state {
            CheckpointState::Sealed => true,
            CheckpointState::Writing => one.bytes > 0,
            _ => false,
        });
        found.map(|one| (one.name.clone(), sealed.get(&one.name).copied())).collect()
    }

    /// Adds an event.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        tracing::info!("{text}");
        self.events += 1;
        self.last_events.push(text);
        let extra = self.last_events.len().saturating_sub(MAX_EVENTS);
        self.last_events.drain(..extra);
    }

    /// The events after the first `seen`, as far as they are kept.
    pub fn events_after(&self, seen: u64) -> &[String] {
        let fresh = usize::try_from(self.events.saturating_sub(seen)).unwrap_or(usize::MAX);
        &self.last_events[self.last_events.len().saturating_sub(fresh)..]
    }

    /// Writes it into the directory of a volume. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk); [`Kind::NoSpace`](bdnfs::error::Kind::NoSpace).
    pub fn write(&self, volume: &Path) -> Result<()> {
        write(volume, RECORD_FILE, self)
    }
}

/// Writes a file in the directory of a volume, or in that of its seals, which is there whole, and durably, or not at all.
pub(super) fn write(volume: &Path, name: &str, what: &impl Serialize) -> Result<()> {
    write_json_with_spare(volume, name, what)
        .with_context(|| format!("cannot write {}", volume.join(name).display()))
}

/// The record of the saver in the directory of a volume; `None` where there was none.
pub fn read(volume: &Path) -> Option<SaverRecord> {
    serde_json::from_slice(&fs::read(volume.join(RECORD_FILE)).ok()?).ok()
}

/// Tells the saver of a volume to end before all is saved. Touches the local disk.
///
/// # Errors
/// [`Kind::Disk`](bdnfs::error::Kind::Disk), [`Kind::NoSpace`](bdnfs::error::Kind::NoSpace).
pub fn request_end(volume: &Path, end: SaverEnd) -> Result<()> {
    write(volume, END_FILE, &end)
}

/// The requested end of a volume's saver before all is saved, if there is one.
pub fn requested_end(volume: &Path) -> Option<SaverEnd> {
    serde_json::from_slice(&fs::read(volume.join(END_FILE)).ok()?).ok()
}

/// The record from which a saver goes on in the boot `boot`, and whether power was cut since the job began. Touches the local disk.
pub(super) fn resume(volume: &Path, boot: &str) -> (SaverRecord, bool) {
    let found = read(volume);
    // It is written whole, and before the job begins: one that can't be read is a disk's fault.
    let is_damaged = found.is_none() && volume.join(RECORD_FILE).exists();
    let mut record = found.unwrap_or_default();
    let is_cut = is_damaged || (!record.boot.is_empty() && record.boot != boot);
    if !is_cut {
        boot.clone_into(&mut record.boot);
    }
    (record, is_cut)
}

/// Forgets what the saver of an earlier job has left in a volume, and writes down in which boot the next one begins, before it
/// does: a power cut may come before its saver. Touches the local disk.
///
/// # Errors
/// [`Kind::Disk`](bdnfs::error::Kind::Disk), [`Kind::NoSpace`](bdnfs::error::Kind::NoSpace).
pub fn begin(volume: &Path) -> Result<()> {
    for name in [RECORD_FILE, END_FILE] {
        let _ = fs::remove_file(volume.join(name));
    }
    let seals = volume.join(SEALS_DIRECTORY);
    let _ = fs::remove_dir_all(&seals);
    // What becomes of checkpoints is written down on a full disk, too.
    let _ = fs::create_dir(&seals);
    [volume, &seals].into_iter().for_each(keep_spare);
    let boot = bdnfs::boot::id_line()?;
    SaverRecord { boot, ..SaverRecord::default() }.write(volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::tests::{fill, mount_small_disk};

    #[test]
    fn events_after_a_count_returns_the_newer_ones() {
        let mut record = SaverRecord::default();
        (0..MAX_EVENTS + 3).for_each(|number| record.note(number.to_string()));
        assert_eq!(record.events_after(record.events), &[] as &[String]);
        assert_eq!(record.events_after(record.events - 2), ["201", "202"]);
        assert_eq!(record.events_after(0).len(), MAX_EVENTS);
    }

    #[test]
    fn saver_on_a_full_disk_writes_its_record_and_seals() {
        let volume = tempfile::tempdir().expect("a directory");
        if !mount_small_disk(volume.path()) {
            return;
        }
        begin(volume.path()).expect("begun");
        fill(volume.path());
        let mut record = read(volume.path()).expect("a record");
        record.report.finished = true;
        record.write(volume.path()).expect("written");
        assert_eq!(read(volume.path()), Some(record));
        write(&volume.path().join(SEALS_DIRECTORY), "a.json", &1).expect("written");
        request_end(volume.path(), SaverEnd::Keep).expect("written");
    }

    #[test]
    fn saver_resume_after_a_power_cut_without_a_record_detects_it() {
        let volume = tempfile::tempdir().expect("a directory");
        let boot = bdnfs::boot::id_line().expect("a boot");
        request_end(volume.path(), SaverEnd::Keep).expect("written");
        begin(volume.path()).expect("begun");
        assert_eq!(requested_end(volume.path()), None);
        let (record, is_cut) = resume(volume.path(), &boot);
        assert_eq!((record, is_cut), (SaverRecord { boot, ..SaverRecord::default() }, false));
        assert!(resume(volume.path(), "the next one").1);
        fs::write(volume.path().join(RECORD_FILE), "{").expect("written");
        assert!(resume(volume.path(), "the next one").1, "damaged");
    }
}
