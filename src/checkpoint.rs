//! Checkpoints: what a training job writes into its checkpoint directory, and how that is named, divided and chosen from.
//!
//! A *unit* of the directory is one checkpoint ([`units`]); files that libraries write last are hints that it is complete
//! ([`marker`]). A saved one is an ordinary snapshot in the mirror, whose source is `bt://project@job/name` ([`CheckpointId`]),
//! and an entry of the mirror's index ([`SavedCheckpoint`]). A job of several ranks saves a checkpoint once a rank:
//! [`group`] says which of them are whole, and which is the latest.

pub mod encoded_name;
mod generation;
pub mod group;
pub mod marker;
mod selector;
pub mod units;

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::digest::{Digest, hex};
use crate::error::{Error, Kind, Result};

pub use generation::CompleteGeneration;
pub use selector::CheckpointSelector;

/// The scheme of checkpoints.
pub const SCHEME: &str = "bt";
/// The word for the newest job or checkpoint, which therefore can't be the ID of a job.
pub const LATEST: &str = "latest";
/// The name of the checkpoint that loose files make up.
pub const LOOSE: &str = ".";
/// The project of jobs that name none.
pub const DEFAULT_PROJECT: &str = "default";
/// The longest ID of a job, in bytes. bdnfs makes them of eight.
const MAX_JOB_BYTES: usize = 64;
/// The number of characters of a name that is too long that are shown: enough to find it.
const MAX_SHOWN_CHARS: usize = 32;

/// The identity of a saved checkpoint within its tenant: a rank of a checkpoint of a job of a project. As
/// text, and in JSON, it is the source that it is published as.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CheckpointId {
    project: String,
    job: String,
    name: String,
    rank: u32,
}

impl CheckpointId {
    /// The checkpoint `name` that the rank `rank` of `job` in `project` saves. `name` is the path of a directory below the
    /// checkpoint directory, or [`LOOSE`].
    ///
    /// # Errors
    /// [`Kind::Invalid`] for what is empty, too long for a key or not a path, and names it.
    pub fn new(project: &str, job: &str, name: &str, rank: u32) -> Result<Self> {
        check_project(project)?;
        check_job(job)?;
        check_name(name)?;
        Ok(Self { project: project.into(), job: job.into(), name: name.into(), rank })
    }

    /// The project.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// The job's ID, one for all of its ranks.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The checkpoint's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node's rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The parts of its key in the mirror's index, encoded so that none of them holds a slash or is `.` or `..`.
    pub fn key_parts(&self) -> [String; 4] {
        [
            encoded_name::encode(&self.project),
            encoded_name::encode(&self.job),
            encoded_name::encode(&self.name),
            self.rank.to_string(),
        ]
    }

    /// The checkpoint whose key has these parts; `None` for what [`key_parts`](Self::key_parts) never makes.
    pub fn from_key_parts(parts: [&str; 4]) -> Option<Self> {
        let [project, job, name] = [parts[0], parts[1], parts[2]].map(encoded_name::decode);
        let id = Self::new(&project?, &job?, &name?, parts[3].parse().ok()?).ok()?;
        (id.key_parts() == parts).then_some(id)
    }
}

impl fmt::Display for CheckpointId {
    /// The source that it is published as, and what tells that from others: `bt://project@job/name`, and `?rank=1` where
    /// it is another rank than 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        CheckpointSelector::from(self.clone()).fmt(f)
    }
}

impl FromStr for CheckpointId {
    type Err = Error;

    /// # Errors
    /// [`Kind::Invalid`], which says what is wrong with it or what it leaves open.
    fn from_str(text: &str) -> Result<Self> {
        let selector: CheckpointSelector = text.parse()?;
        let open = || invalid(format!("{selector} is ambiguous: name a job or a checkpoint"));
        selector.pinned().ok_or_else(open)
    }
}

impl TryFrom<String> for CheckpointId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<CheckpointId> for String {
    fn from(id: CheckpointId) -> Self {
        id.to_string()
    }
}

/// A checkpoint in the mirror, as its index has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedCheckpoint {
    /// The identity: the source that it is published as.
    #[serde(rename = "source")]
    pub id: CheckpointId,
    /// The snapshot: its manifest's digest.
    #[serde(with = "hex")]
    pub manifest: Digest,
    /// The number of times that it was published, this time included: a checkpoint that changes after it was saved is saved again.
    pub generation: u64,
    /// Whether its job had finished it, as far as can be told.
    pub complete: bool,
    /// The number of its files.
    pub files: u64,
    /// Total size of the files, in bytes.
    pub bytes: u64,
    /// When a file of it was last changed, by the clock of the node that wrote it, and no later than it was saved. Orders the
    /// checkpoints of a project: they need not be saved in the order in which they are written.
    pub written: DateTime<Utc>,
    /// When this generation was in the mirror.
    pub saved: DateTime<Utc>,
    /// The duration of the save, in seconds.
    pub seconds: f64,
    /// The last complete generation before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_complete: Option<CompleteGeneration>,
}

/// Refuses what can't be a project's name.
fn check_project(project: &str) -> Result<()> {
    check_text("the name of a project", project)
}

/// Refuses what can't be a job's ID.
fn check_job(job: &str) -> Result<()> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if job.is_empty() || job.len() > MAX_JOB_BYTES || !job.bytes().all(fits) {
        return Err(invalid(format!(
            "bad job ID {job:?}: it has up to {MAX_JOB_BYTES} letters, digits, '-' and '_'"
        )));
    }
    if job == LATEST {
        return Err(invalid(format!("bad job ID {LATEST:?}: the word means the newest job")));
    }
    Ok(())
}

/// Refuses what can't be a checkpoint's name.
fn check_name(name: &str) -> Result<()> {
    check_text("the name of a checkpoint", name)?;
    if name != LOOSE && name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(invalid(format!("bad name of a checkpoint {name:?}: it is not the path of a directory")));
    }
    Ok(())
}

/// Makes sure that `text` can be the name of a project, a job or a checkpoint. It is not empty, has no control characters, and fits
/// into a key. `what` is the text's name in the error.
///
/// # Errors
/// [`Kind::Invalid`], which says what is wrong with it.
pub fn check_text(what: &str, text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(invalid(format!("{what} is empty")));
    }
    if let Some(c) = text.chars().find(|c| c.is_control()) {
        return Err(invalid(format!("{what} {text:?} contains the control character {c:?}")));
    }
    if encoded_name::encode(text).len() > encoded_name::MAX_ENCODED_BYTES {
        let start: String = text.chars().take(MAX_SHOWN_CHARS).collect();
        return Err(invalid(format!(
            "{what} {start:?}... is too long: it has {} bytes at most, each but letters, digits, '.', '_' and '-' counted as three",
            encoded_name::MAX_ENCODED_BYTES
        )));
    }
    Ok(())
}

fn invalid(text: String) -> Error {
    Error::new(Kind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn checkpoint_id_that_cannot_be_a_key_is_refused_by_its_name() {
        let long = "é".repeat(41);
        for (project, job, name, said) in [
            ("", "j", "n", "the name of a project is empty"),
            ("p", "", "n", "bad job ID \"\""),
            ("p", "a/b", "n", "bad job ID \"a/b\""),
            ("p", "latest", "n", "newest job"),
            ("p", "j", "", "the name of a checkpoint is empty"),
            ("p", "j", "a//b", "not the path"),
            ("p", "j", "a/../b", "not the path"),
            ("p", "j", "..", "not the path"),
            ("p", "j", "/a", "not the path"),
            ("p", "j", "a\nb", "control character"),
            ("p", "j", &long, "too long"),
        ] {
            let error = CheckpointId::new(project, job, name, 0).expect_err(said);
            assert!(error.to_string().contains(said) && error.kind() == Kind::Invalid, "{error}");
        }
    }

    #[test]
    fn checkpoint_key_that_is_not_canonical_is_refused() {
        let id = |parts| CheckpointId::from_key_parts(parts);
        assert!(id(["p", "j", "%2E", "0"]).is_some_and(|id| id.name() == LOOSE));
        for parts in [
            ["p", "j", ".", "0"],
            ["p", "j", "n", "00"],
            ["p", "j", "n", "x"],
            ["p", "j", "%6E", "0"],
            ["p", "j", "a%2f", "0"],
            ["p", "j", "a%2Fb", "-1"],
            ["p", "j", "%", "0"],
            ["p", "%2E%2E", "n", "0"],
            ["p", "j", "%FF", "0"],
        ] {
            assert_eq!(id(parts), None, "{parts:?}");
        }
    }

    proptest! {
        #[test]
        fn checkpoint_key_of_any_id_stays_below_its_prefix_and_reads_back(
            project in any::<String>(), job in "[a-zA-Z0-9_-]{1,9}", name in any::<String>(), rank in any::<u32>(),
        ) {
            let Ok(id) = CheckpointId::new(&project, &job, &name, rank) else { return Ok(()) };
            let parts = id.key_parts();
            for part in &parts {
                prop_assert!(!part.contains('/') && !matches!(&part[..], "" | "." | ".."), "{part}");
                prop_assert!(part.bytes().all(|b| b.is_ascii_graphic()) && part.len() <= encoded_name::MAX_ENCODED_BYTES);
            }
            prop_assert_eq!(CheckpointId::from_key_parts(parts.each_ref().map(String::as_str)), Some(id));
        }
    }
}
