//! The index of checkpoints: what jobs have saved, found by listing a prefix.
//!
//! Each rank of each checkpoint is a source of its own in the catalog ([`super::catalog`]), and has an entry here, at
//! `checkpoints/<project>/<job>/<name>/<rank>`, written after its ref: what an entry names is there. The ref alone says what
//! the checkpoint is now; what is complete, the entry says. Names are encoded, so that none leaves its prefix.

mod choice;

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::{Path, PathPart};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::Mirror;
use super::catalog::{Ref, source_key};
use super::checked_json;
use super::keys::ObjectKind;
use super::store::StoredObject;
use crate::backoff::jittered;
use crate::checkpoint::group::{CheckpointGroup, group};
use crate::checkpoint::{CheckpointId, SavedCheckpoint};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::source::Patterns;

pub use choice::ChosenCheckpoint;

/// The version of an entry. One of a newer version is refused.
const ENTRY_VERSION: u32 = 1;
/// The number of attempts to write an entry when others were faster.
const ENTRY_ATTEMPT_LIMIT: u32 = 20;
/// The pause after the first attempt; after later ones it is as many times as long.
const ENTRY_RETRY_WAIT: Duration = Duration::from_millis(20);
/// The number of entries that are read at once.
const ENTRY_READS_IN_FLIGHT: usize = 32;

/// The content of an entry's object.
#[derive(Serialize, Deserialize)]
struct IndexEntry {
    version: u32,
    #[serde(flatten)]
    saved: SavedCheckpoint,
}

fn entry_text(saved: &SavedCheckpoint) -> Result<Vec<u8>> {
    let entry = IndexEntry { version: ENTRY_VERSION, saved: saved.clone() };
    checked_json::write(&entry)
        .map_err(|e| Error::with(Kind::Invalid, format!("{} cannot be an entry", saved.id), e))
}

/// An entry as it was read, and when it was written by the store's clock; or why it can't be read.
pub(super) type ReadEntry = (CheckpointId, Result<(SavedCheckpoint, DateTime<Utc>)>);

/// The snapshots of checkpoints that are complete: of each rank the last one, and those of all ranks that are of one time.
/// `saved` is all that there is.
pub(super) fn complete_snapshots(saved: Vec<SavedCheckpoint>) -> BTreeSet<(CheckpointId, Digest)> {
    let own: Vec<_> = saved.iter().filter_map(SavedCheckpoint::as_last_complete).collect();
    let groups = group(saved);
    let complete = groups.iter().filter_map(CheckpointGroup::last_complete);
    let of_groups = complete.flat_map(|group| group.into_owned().ranks().to_vec());
    own.into_iter().chain(of_groups).map(|saved| (saved.id, saved.manifest)).collect()
}

/// The key of the ref of a checkpoint: it is published with its own text for an identity, and all of it.
pub fn checkpoint_key(id: &CheckpointId) -> Digest {
    source_key(&id.to_string(), &Patterns::default())
}

/// The checkpoint whose entry lies at `key`.
pub(super) fn id_of(key: &Path) -> Option<CheckpointId> {
    let mut parts = key.as_ref().rsplit('/');
    let mut part = || parts.next();
    let (rank, name, job, project) = (part()?, part()?, part()?, part()?);
    (part()? == ObjectKind::Checkpoints.name()).then_some(())?;
    CheckpointId::from_key_parts([project, job, name, rank])
}

impl Mirror {
    /// Enters what was published of a checkpoint as its next generation, and returns that. Of several at once, each is one.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] where a newer version wrote its entry, [`Kind::Unavailable`] where others enter it all the time; those
    /// of the store.
    pub async fn enter_checkpoint(&self, published: SavedCheckpoint) -> Result<SavedCheckpoint> {
        let key = self.entry_key(&published.id);
        for attempt in 1..=ENTRY_ATTEMPT_LIMIT {
            let stored = self.get(&key).await?;
            let before =
                match stored.as_ref().map(|stored| self.read_entry(&published.id, stored)).transpose() {
                    // A damaged entry is written anew.
                    Err(error) if error.kind() == Kind::Corrupt => None,
                    before => before?,
                };
            let mut saved = published.clone().succeed(before.as_ref());
            // The checkpoint may have been removed, or its last complete generation collected by an earlier version.
            if let Some(previous) = &saved.previous_complete
                && !self.has_manifest(&previous.manifest).await?
            {
                saved.previous_complete = None;
            }
            match self.replace(&key, entry_text(&saved)?.into(), stored).await {
                Ok(true) => return Ok(saved),
                Ok(false) => {}
                Err(error) => return Err(error),
            }
            sleep(jittered(ENTRY_RETRY_WAIT * attempt)).await;
        }
        let text = format!("the index entry of {} keeps being replaced; try again", published.id);
        Err(Error::new(Kind::Unavailable, text))
    }

    /// Writes the entry of a checkpoint in place of one that may be there, as tests need it.
    #[cfg(test)]
    pub(crate) async fn put_checkpoint(&self, saved: &SavedCheckpoint) -> Result<()> {
        self.put(&self.entry_key(&saved.id), entry_text(saved)?.into()).await
    }

    /// The entry of a checkpoint; `None` where there is none.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when it is damaged, [`Kind::Unsupported`] when a newer version wrote it; those of the store.
    pub async fn checkpoint(&self, id: &CheckpointId) -> Result<Option<SavedCheckpoint>> {
        Ok(self.checkpoint_entry(id).await?.map(|(saved, _)| saved))
    }

    async fn checkpoint_entry(&self, id: &CheckpointId) -> Result<Option<(SavedCheckpoint, DateTime<Utc>)>> {
        let Some(got) = self.get(&self.entry_key(id)).await? else { return Ok(None) };
        Ok(Some((self.read_entry(id, &got)?, got.written)))
    }

    fn read_entry(&self, id: &CheckpointId, got: &StoredObject) -> Result<SavedCheckpoint> {
        let key = self.entry_key(id);
        let fault = |how: String| {
            let text = format!(
                "{} is damaged ({how}); `bdnfs checkpoint rm` removes the checkpoint, `push` saves it again",
                self.url_of(&key)
            );
            Error::new(Kind::Corrupt, text)
        };
        let entry: IndexEntry = checked_json::read(&got.bytes, |_| false).map_err(fault)?;
        if entry.version != ENTRY_VERSION {
            let text = format!(
                "{} has version {}; this bdnfs reads version {ENTRY_VERSION}: update bdnfs",
                self.url_of(&key),
                entry.version
            );
            return Err(Error::new(Kind::Unsupported, text));
        }
        if entry.saved.id != *id {
            return Err(fault(format!("it is that of {}", entry.saved.id)));
        }
        // Earlier versions did not see to that.
        Ok(entry.saved.dated_by_its_save())
    }

    /// The ref of a saved checkpoint: its entry may be of an earlier generation.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when it was removed; those of [`find`](Self::find).
    pub async fn checkpoint_ref(&self, id: &CheckpointId) -> Result<Ref> {
        let removed = || Error::new(Kind::NotFound, format!("{id} was removed"));
        self.find(&checkpoint_key(id)).await?.ok_or_else(removed)
    }

    /// The checkpoints of `project`, and there of `job`, or all; damaged entries as the errors that they are. In the order
    /// of their ids, each with its own.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn checkpoints(
        &self,
        project: Option<&str>,
        job: Option<&str>,
    ) -> Result<Vec<(CheckpointId, Result<SavedCheckpoint>)>> {
        let entries = self.checkpoint_entries(project, job).await?.into_iter();
        Ok(entries.map(|(id, found)| (id, found.map(|(saved, _)| saved))).collect())
    }

    /// The checkpoints as [`checkpoints`](Self::checkpoints) lists them, with when their entries were written.
    pub(super) async fn checkpoint_entries(
        &self,
        project: Option<&str>,
        job: Option<&str>,
    ) -> Result<Vec<ReadEntry>> {
        let ids = self.list_checkpoints(project, job).await?;
        let read = futures_util::stream::iter(ids).map(|id| async move {
            let read = self.checkpoint_entry(&id).await;
            (id, read)
        });
        let mut found = Vec::new();
        let mut read = read.buffered(ENTRY_READS_IN_FLIGHT);
        while let Some((id, read)) = read.next().await {
            match read {
                // Removed since it was listed.
                Ok(None) => {}
                Ok(Some(saved)) => found.push((id, Ok(saved))),
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) => found.push((id, Err(e))),
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    /// The checkpoints that have entries.
    async fn list_checkpoints(&self, project: Option<&str>, job: Option<&str>) -> Result<Vec<CheckpointId>> {
        let mut prefix = self.tenant_key(ObjectKind::Checkpoints.name());
        if let Some(project) = project {
            // The parts of a key are those of a whole id.
            let id = CheckpointId::new(project, job.unwrap_or("any"), "any", 0)?;
            prefix = join(prefix, &id.key_parts()[..if job.is_some() { 2 } else { 1 }]);
        }
        let listed = self.list(prefix).try_filter_map(|meta| std::future::ready(Ok(id_of(&meta.location))));
        let mut ids: Vec<_> = listed.try_collect().await?;
        ids.sort();
        Ok(ids)
    }

    /// The projects in which a job with this ID has saved anything.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn projects_of(&self, job: &str) -> Result<Vec<String>> {
        let ids = self.list_checkpoints(None, None).await?.into_iter();
        let mut projects: Vec<_> =
            ids.filter(|id| id.job() == job).map(|id| id.project().to_owned()).collect();
        projects.dedup();
        Ok(projects)
    }

    /// Removes a checkpoint: its ref, then its entry. False where neither was there. What it alone reaches is collected later.
    ///
    /// # Errors
    /// As [`remove`](Self::remove), but that it need not be there.
    pub async fn remove_checkpoint(&self, id: &CheckpointId) -> Result<bool> {
        let key = self.entry_key(id);
        // Read first: a saver may publish the checkpoint again as soon as its ref is removed, and enters that.
        let listed = self.get(&key).await?;
        let removed = match self.remove(&checkpoint_key(id)).await {
            Ok(_) => true,
            Err(e) if e.kind() == Kind::NotFound => false,
            Err(e) => return Err(e),
        };
        let is_deleted = match &listed {
            Some(listed) => self.delete_unchanged(&key, listed).await?,
            None => false,
        };
        // The ref that was removed may have been that of a newer entry.
        if !is_deleted && self.find(&checkpoint_key(id)).await?.is_none() {
            self.delete(&key).await?;
        }
        Ok(removed || listed.is_some())
    }

    /// Removes a checkpoint as [`remove_checkpoint`](Self::remove_checkpoint) does, if it is still as its entry was read: `saved`.
    /// False where it was saved again, or removed, since.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn remove_unchanged(&self, saved: &SavedCheckpoint) -> Result<bool> {
        let key = self.entry_key(&saved.id);
        let Some(stored) = self.get(&key).await? else { return Ok(false) };
        if !self.read_entry(&saved.id, &stored).is_ok_and(|entry| entry == *saved) {
            return Ok(false);
        }
        match self.remove_ref(&checkpoint_key(&saved.id), Some(&saved.manifest)).await {
            // It was published again.
            Err(error) if error.kind() == Kind::Busy => return Ok(false),
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            _ => {}
        }
        self.delete_unchanged(&key, &stored).await
    }

    /// The refs of checkpoints as they were when they were last complete, of those that are another snapshot now: refs of the
    /// catalog are of what is saved now.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn last_complete_refs(&self) -> Result<Vec<Result<Ref>>> {
        // Damaged entries are reported when the index is verified.
        let saved = self.checkpoints(None, None).await?.into_iter().filter_map(|(_, found)| found.ok());
        let mut refs = Vec::new();
        for (id, manifest) in complete_snapshots(saved.collect()) {
            let now = self.find(&checkpoint_key(&id)).await.transpose();
            let is_other = |now: &Result<Ref>| now.as_ref().map_or(true, |now| now.manifest != manifest);
            refs.extend(now.filter(is_other).map(|now| Ok(Ref { manifest, ..now? })));
        }
        Ok(refs)
    }

    /// Verifies the index: each entry is as it was written, and its checkpoint is mirrored. Each fault goes to `report`.
    /// [`verify`](Self::verify) covers what refs reach.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn verify_checkpoints(&self, mut report: impl FnMut(Error)) -> Result<()> {
        for (_, found) in self.checkpoints(None, None).await? {
            let saved = match found {
                Ok(saved) => saved,
                Err(fault) => {
                    report(fault);
                    continue;
                }
            };
            if self.find(&checkpoint_key(&saved.id)).await?.is_none() {
                let text = format!(
                    "{} is in the index but not mirrored; `bdnfs mirror gc` removes the entry",
                    saved.id
                );
                report(Error::new(Kind::Corrupt, text));
            }
        }
        Ok(())
    }

    fn entry_key(&self, id: &CheckpointId) -> Path {
        join(self.tenant_key(ObjectKind::Checkpoints.name()), &id.key_parts())
    }
}

/// The key of what lies below `key`. The parts are encoded already; `Path` would encode them again.
fn join(key: Path, parts: &[String]) -> Path {
    parts.iter().fold(key, |key, part| match PathPart::parse(part) {
        Ok(part) => key.join(part),
        // Encoded names hold no slash or control character and are no dots.
        Err(_) => key.join(part.as_str()),
    })
}
