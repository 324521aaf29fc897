//! The sync state of a cache home: with which snapshot it was last the same, and who wrote to it since.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use bdnfs::digest::{Digest, hex};
use bdnfs::error::{Error, Result};
use bdnfs::volume::UnwrittenContent;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::durable::write_json;
use crate::volumes::cache_home::{CacheHome, SYNC_STATE_FILE};

/// The longest time in which a kernel dates all changes of files the same.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// The sync state of a home: the snapshot that it was last equal to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncState {
    /// The snapshot that the home was last equal to: its manifest's digest, in hexadecimal.
    #[serde(default)]
    pub manifest: Option<String>,
    /// The time from which on a change of a file counts, in nanoseconds since 1970 by the clock of its disk.
    #[serde(default)]
    pub since: i64,
    /// The boot in which jobs write to it.
    #[serde(default)]
    pub boot: Option<String>,
    /// Since when there may be changes that are not saved, in nanoseconds since 1970; `None` where there are none.
    #[serde(default)]
    pub unsaved_since: Option<i64>,
    /// The boot in which it began with a snapshot of which not all may be on the disk; `None` where all is. Without a
    /// [`manifest`](Self::manifest), not all of that was pulled, and there is nothing else.
    #[serde(default)]
    pub begun_in: Option<String>,
    /// The URL, without credentials, of the mirror that has the snapshot; `None` where an earlier version noted it.
    #[serde(default)]
    pub mirror: Option<String>,
    /// The generation of the cache's ref there that the snapshot was, or a later one that is the same; 0 where it is not known.
    #[serde(default)]
    pub generation: u64,
    /// The snapshot that is about to be published, of what the home is. Whether that was done is known by the mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publishing: Option<PublishingSnapshot>,
    /// The snapshot of which parts may have been pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulling: Option<SavedSnapshot>,
    /// The content of it that the disk failed to write: it is not saved before it is written again.
    #[serde(default, skip_serializing_if = "UnwrittenContent::is_empty")]
    pub unwritten: UnwrittenContent,
}

/// A snapshot of a cache in a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSnapshot {
    /// The digest of its manifest.
    #[serde(with = "hex")]
    pub manifest: Digest,
    /// The URL, without credentials, of the mirror that has it.
    pub mirror: String,
    /// The generation of the cache's ref there that it is.
    pub generation: u64,
}

/// A snapshot that is about to be published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishingSnapshot {
    /// The snapshot, once it is published.
    pub snapshot: SavedSnapshot,
    /// The time from which on a change of a file counts then, in nanoseconds since 1970 by the clock of the home's disk.
    pub since: i64,
}

impl SyncState {
    /// Whether jobs wrote to the home in another boot than `now`, which ended under them.
    pub fn is_torn(&self, now: &str) -> bool {
        self.boot.as_deref().is_some_and(|boot| boot != now)
    }

    /// Whether the snapshot that the home was last equal to may be one in the `mirror`.
    pub(super) fn is_in(&self, mirror: &str) -> bool {
        self.manifest.is_some() && self.mirror.as_deref().is_none_or(|own| own == mirror)
    }

    /// Whether all that jobs wrote to the home is in a mirror.
    pub fn is_saved(&self) -> bool {
        self.manifest.is_some() && self.boot.is_none() && self.unsaved_since.is_none()
    }
}

impl CacheHome {
    /// The state of the home. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn sync_state(&self) -> Result<SyncState> {
        let path = self.path().join(SYNC_STATE_FILE);
        match fs::read(&path) {
            // A damaged one says nothing: all that is there counts as changed.
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(SyncState::default()),
            Err(error) => Err(Error::disk(format!("cannot read {}", path.display()), error)),
        }
    }

    /// Whether it has a state: not before its first use. Touches its disk.
    pub fn has_sync_state(&self) -> bool {
        self.path().join(SYNC_STATE_FILE).exists()
    }

    /// Notes that the snapshot that the home was last equal to is the generation `generation` of its ref in `mirror`.
    pub(super) fn note_saved_in(&self, mirror: &str, generation: u64) -> Result<()> {
        let state = self.sync_state()?;
        if (state.mirror.as_deref(), state.generation) == (Some(mirror), generation) {
            return Ok(());
        }
        self.write_sync_state(&SyncState { mirror: Some(mirror.to_owned()), generation, ..state })
    }

    /// Notes that what the home is becomes the snapshot `next`.
    pub(super) fn begin_publishing(&self, next: PublishingSnapshot) -> Result<()> {
        self.write_sync_state(&SyncState { publishing: Some(next), ..self.sync_state()? })
    }

    /// Notes that the snapshot that was about to be published was. What was done to the home since is not known.
    pub(super) fn note_published(&self) -> Result<SyncState> {
        let mut state = self.sync_state()?;
        if let Some(PublishingSnapshot { snapshot, since }) = state.publishing.take() {
            state.manifest = Some(snapshot.manifest.to_string());
            (state.mirror, state.generation) = (Some(snapshot.mirror), snapshot.generation);
            // Before it was published, all of it was on the disk.
            (state.since, state.unsaved_since, state.begun_in) = (since, Some(since), None);
            self.write_sync_state(&state)?;
        }
        Ok(state)
    }

    /// Writes the state durably.
    pub(super) fn write_sync_state(&self, state: &SyncState) -> Result<()> {
        let failed = || format!("cannot write {}", self.path().join(SYNC_STATE_FILE).display());
        write_json(self.path(), SYNC_STATE_FILE, state).with_context(failed)
    }

    /// Marks the home as in use by a job of boot `now`; `None` where the home is not to be saved. Returns false where a job of
    /// another boot used it, and that boot ended before the job did. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk), [`Kind::NoSpace`](bdnfs::error::Kind::NoSpace).
    pub fn begin_use(&self, now: Option<String>) -> Result<bool> {
        self.recover()?;
        let state = self.sync_state()?;
        let is_torn = now.as_deref().is_some_and(|now| state.is_torn(now));
        let boot = if is_torn { state.boot } else { now.or(state.boot) };
        let unsaved_since = Some(state.unsaved_since.map_or_else(|| self.time(), Ok)?);
        self.write_sync_state(&SyncState { boot, unsaved_since, ..state })?;
        Ok(!is_torn)
    }

    /// Flushes the home, and clears the mark of [`begin_use`](Self::begin_use) once all writes are durable: a power cut does no
    /// harm from then on. Content that the disk failed to write is recorded. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk), [`Kind::NoSpace`](bdnfs::error::Kind::NoSpace).
    pub fn end_use(&self) -> Result<()> {
        self.recover()?;
        let state = self.sync_state()?;
        if state.boot.is_none() && state.begun_in.is_none() {
            return Ok(());
        }
        let state = self.flush(state)?;
        self.write_sync_state(&SyncState { boot: None, ..state })
    }

    /// The current time by the clock of the home's disk, in nanoseconds since 1970. Earlier changes have an earlier time.
    pub(super) fn time(&self) -> Result<i64> {
        std::thread::sleep(CLOCK_TICK);
        let failed = || format!("cannot write to {}", self.path().display());
        let draft = tempfile::NamedTempFile::new_in(self.path()).with_context(failed)?;
        let stat = draft.as_file().metadata().with_context(failed)?;
        Ok(stat.ctime().saturating_mul(1_000_000_000).saturating_add(stat.ctime_nsec()))
    }
}
