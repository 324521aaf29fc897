//! Generations of a checkpoint: its index entry keeps the last complete one before the newest. It counts for as long as the
//! newest is not complete, or not complete on every rank.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::SavedCheckpoint;
use crate::digest::{Digest, hex};

/// A generation of a checkpoint that its job had finished, and saved again since.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompleteGeneration {
    /// The snapshot: its manifest's digest.
    #[serde(with = "hex")]
    pub manifest: Digest,
    /// The number of the generation.
    pub generation: u64,
    /// The number of its files.
    pub files: u64,
    /// Total size of the files, in bytes.
    pub bytes: u64,
    /// When a file of it was last changed, by the clock of the node that wrote it.
    pub written: DateTime<Utc>,
    /// `written` of the first generation after it.
    pub until: DateTime<Utc>,
    /// When it was in the mirror.
    pub saved: DateTime<Utc>,
    /// The duration of the save, in seconds.
    pub seconds: f64,
}

impl CompleteGeneration {
    /// Returns the greatest distance in time of other ranks' states that belong to the same time: half the time that its rank took
    /// to the next.
    pub fn tolerance(&self) -> TimeDelta {
        ((self.until - self.written) / 2).max(TimeDelta::zero())
    }
}

impl SavedCheckpoint {
    /// The states in which the job had finished the checkpoint, the newest first: the saved one, and the one that its entry keeps.
    pub fn complete_states(&self) -> impl Iterator<Item = Self> {
        let previous = self.previous_complete.as_ref().map(|previous| Self {
            id: self.id.clone(),
            manifest: previous.manifest,
            generation: previous.generation,
            complete: true,
            files: previous.files,
            bytes: previous.bytes,
            written: previous.written,
            saved: previous.saved,
            seconds: previous.seconds,
            previous_complete: None,
        });
        self.complete.then(|| self.clone()).into_iter().chain(previous)
    }

    /// The checkpoint with no time of a change that is later than when it was saved: files may be dated ahead.
    pub(crate) fn dated_by_its_save(mut self) -> Self {
        self.written = self.written.min(self.saved);
        if let Some(previous) = &mut self.previous_complete {
            previous.written = previous.written.min(previous.saved);
            previous.until = previous.until.min(self.saved);
        }
        self
    }

    /// The checkpoint as it was when it was last complete.
    pub fn as_last_complete(&self) -> Option<Self> {
        self.complete_states().next()
    }

    /// This state as the next generation of what the entry `before` says, or the same one if it is the same snapshot. It keeps the
    /// last complete one before it; what is the same as that is complete. It was written no later than saved, whatever its files
    /// say: one that is dated ahead would stay the newest of all.
    pub fn succeed(self, before: Option<&Self>) -> Self {
        let now = self.dated_by_its_save();
        let Some(before) = before else { return Self { generation: 1, ..now } };
        let last = before.as_last_complete();
        let complete = now.complete || last.is_some_and(|last| last.manifest == now.manifest);
        if before.manifest == now.manifest {
            let previous_complete = before.previous_complete.clone();
            let (generation, written) = (before.generation, now.written.min(before.written));
            return Self { generation, complete, written, previous_complete, ..now };
        }
        let previous_complete = match before.complete {
            false => before.previous_complete.clone(),
            true => Some(CompleteGeneration {
                manifest: before.manifest,
                generation: before.generation,
                files: before.files,
                bytes: before.bytes,
                written: before.written,
                until: now.written,
                saved: before.saved,
                seconds: before.seconds,
            }),
        };
        Self { generation: before.generation + 1, complete, previous_complete, ..now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::CheckpointId;

    fn state(content: u8, complete: bool) -> SavedCheckpoint {
        let at = DateTime::from_timestamp(i64::from(content), 0).expect("a time");
        SavedCheckpoint {
            id: CheckpointId::new("p", "j", "last", 0).expect("an id"),
            manifest: Digest([content; 32]),
            generation: 0,
            complete,
            files: u64::from(content),
            bytes: 10,
            written: at,
            saved: at,
            seconds: 1.0,
            previous_complete: None,
        }
    }

    fn manifests(saved: &SavedCheckpoint) -> Vec<u8> {
        saved.complete_states().map(|state| state.manifest.0[0]).collect()
    }

    #[test]
    fn generations_keep_the_last_complete_one_before_them() {
        let first = state(10, true).succeed(None);
        assert_eq!((first.generation, &manifests(&first)[..]), (1, &[10][..]));
        let second = state(20, false).succeed(Some(&first));
        let third = state(30, false).succeed(Some(&second));
        assert_eq!((third.generation, third.complete, &manifests(&third)[..]), (3, false, &[10][..]));
        assert_eq!(third.as_last_complete(), Some(first));
        let tolerance = third.previous_complete.as_ref().map(CompleteGeneration::tolerance);
        assert_eq!(tolerance, Some(TimeDelta::seconds(5)), "the third says nothing of the first");
        let fourth = state(40, true).succeed(Some(&third));
        assert_eq!((fourth.generation, fourth.complete, &manifests(&fourth)[..]), (4, true, &[40, 10][..]));
        let fifth = state(50, true).succeed(Some(&fourth));
        assert_eq!(manifests(&fifth), [50, 40]);
    }

    #[test]
    fn generation_that_is_the_last_complete_one_again_is_complete() {
        let first = state(1, true).succeed(None);
        assert_eq!(state(1, false).succeed(Some(&first)), first, "it was finished once");
        let again = state(1, false).succeed(Some(&state(2, false).succeed(Some(&first))));
        assert_eq!((again.generation, again.complete), (3, true));
    }

    #[test]
    fn generation_that_is_saved_again_keeps_the_one_before_it() {
        let second = state(2, true).succeed(Some(&state(1, true).succeed(None)));
        assert_eq!(state(2, true).succeed(Some(&second)), second);
        let incomplete = state(3, false).succeed(Some(&second));
        let finished = SavedCheckpoint { complete: true, ..state(3, false) }.succeed(Some(&incomplete));
        assert_eq!((finished.generation, &manifests(&finished)[..]), (3, &[3, 2][..]));
    }

    #[test]
    fn generation_whose_files_are_dated_ahead_was_written_when_it_was_saved() {
        let ahead = |content, saved: i64| SavedCheckpoint {
            written: DateTime::from_timestamp(4_000_000_000, 0).expect("a time"),
            saved: DateTime::from_timestamp(saved, 0).expect("a time"),
            ..state(content, true)
        };
        let first = ahead(1, 100).succeed(None);
        assert_eq!(first.written, first.saved);
        let again = ahead(1, 200).succeed(Some(&first));
        assert_eq!((again.written, again.saved.timestamp()), (first.written, 200), "it is the same");
        let second = ahead(2, 300).succeed(Some(&again));
        assert_eq!(second.written, second.saved);
        assert_eq!(second.previous_complete.map(|previous| previous.until), Some(second.saved));
    }

    #[test]
    fn checkpoint_that_was_never_complete_has_no_complete_state() {
        let second = state(2, false).succeed(Some(&state(1, false).succeed(None)));
        assert_eq!(second.as_last_complete(), None);
    }
}
