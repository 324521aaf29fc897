//! Generations of a checkpoint: its index entry keeps the last complete one, as long as what was saved since is not complete.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::SavedCheckpoint;
use crate::digest::{Digest, hex};

/// The last generation of a checkpoint that its job had finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompleteGeneration {
    /// The snapshot: its manifest's digest.
    #[serde(with = "hex")]
    pub manifest: Digest,
    /// The number of the generation.
    pub generation: u64,
    /// How many files it has.
    pub files: u64,
    /// Total size of the files, in bytes.
    pub bytes: u64,
    /// When a file of it was last changed, by the clock of the node that wrote it.
    pub written: DateTime<Utc>,
    /// When it was in the mirror.
    pub saved: DateTime<Utc>,
    /// How long it took to save, in seconds.
    pub seconds: f64,
}

impl SavedCheckpoint {
    /// The last complete generation: this one, or else the one that the entry keeps.
    pub fn complete_generation(&self) -> Option<CompleteGeneration> {
        if !self.complete {
            return self.last_complete.clone();
        }
        Some(CompleteGeneration {
            manifest: self.manifest,
            generation: self.generation,
            files: self.files,
            bytes: self.bytes,
            written: self.written,
            saved: self.saved,
            seconds: self.seconds,
        })
    }

    /// The checkpoint as it was when it was last complete.
    pub fn as_last_complete(&self) -> Option<Self> {
        let CompleteGeneration { manifest, generation, files, bytes, written, saved, seconds } =
            self.complete_generation()?;
        let id = self.id.clone();
        Some(Self {
            id,
            manifest,
            generation,
            complete: true,
            files,
            bytes,
            written,
            saved,
            seconds,
            last_complete: None,
        })
    }

    /// This state as the next generation of what the entry `before` says, or the same one if it is the same snapshot. One that is not complete
    /// keeps the last that was; what is the same as that is complete.
    pub fn succeed(self, before: Option<&Self>) -> Self {
        let last_complete = before.and_then(Self::complete_generation);
        let is_last_complete = last_complete.as_ref().is_some_and(|last| last.manifest == self.manifest);
        let complete = self.complete || is_last_complete;
        let generation =
            before.map_or(1, |before| before.generation + u64::from(before.manifest != self.manifest));
        Self { generation, complete, last_complete: last_complete.filter(|_| !complete), ..self }
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
            last_complete: None,
        }
    }

    #[test]
    fn incomplete_generations_keep_the_last_complete_one() {
        let first = state(1, true).succeed(None);
        assert_eq!((first.generation, first.last_complete.is_none()), (1, true));
        let second = state(2, false).succeed(Some(&first));
        let third = state(3, false).succeed(Some(&second));
        assert_eq!((third.generation, third.complete), (3, false));
        assert_eq!(third.complete_generation(), first.complete_generation());
        assert_eq!(third.as_last_complete(), Some(first));
        let fourth = state(4, true).succeed(Some(&third));
        assert_eq!((fourth.generation, fourth.complete, fourth.last_complete), (4, true, None));
    }

    #[test]
    fn generation_that_is_the_last_complete_one_again_is_complete() {
        let first = state(1, true).succeed(None);
        assert_eq!(state(1, false).succeed(Some(&first)), first, "it was finished once");
        let again = state(1, false).succeed(Some(&state(2, false).succeed(Some(&first))));
        assert_eq!((again.generation, again.complete, again.last_complete), (3, true, None));
    }

    #[test]
    fn checkpoint_that_was_never_complete_has_no_complete_generation() {
        let second = state(2, false).succeed(Some(&state(1, false).succeed(None)));
        assert_eq!((second.complete_generation(), second.as_last_complete()), (None, None));
    }
}
