//! The state of a job's checkpoints, as it travels over the control socket.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// The request to save a job's checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    /// The path at which the job sees the directory; default: `/mnt/ckpts`.
    #[serde(default)]
    pub path: Option<PathBuf>,
    /// The most that the directory may occupy, in bytes.
    #[serde(default)]
    pub size_limit: Option<u64>,
    /// The number of complete checkpoints of the project that stay in the mirror: each save removes older ones. Default: all.
    #[serde(default)]
    pub keep: Option<NonZeroU32>,
}

/// The state of a job's checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveReport {
    /// The directory on this node.
    pub directory: PathBuf,
    /// The checkpoints of the job, by name.
    pub checkpoints: Vec<UnitReport>,
    /// Bytes of settled checkpoints that are not saved yet.
    pub backlog: u64,
    /// Bytes of all generations that were saved, unchanged ones counted each time.
    pub saved: u64,
    /// Bytes a second of the last generation that was saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Seconds between the newest two complete ones that were saved, loose files aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<f64>,
    /// When one was last saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<DateTime<Utc>>,
    /// The number of files that a power cut has torn.
    #[serde(default)]
    pub torn: u64,
    /// The number of failed attempts to save.
    pub failures: u64,
    /// The reason why the last attempt failed, while that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether nothing is left to be saved, and nothing more will come.
    pub finished: bool,
    /// Whether saving was given up.
    #[serde(default)]
    pub given_up: bool,
}

impl SaveReport {
    /// Whether the directory holds anything that is only there.
    pub fn has_unsaved(&self) -> bool {
        !self.finished || self.given_up || self.torn > 0
    }

    /// Returns the minutes that the backlog takes at the rate of the last generation; `None` before there is one.
    pub fn minutes_left(&self) -> Option<f64> {
        self.rate.filter(|rate| *rate > 0.0).map(|rate| self.backlog as f64 / rate / 60.0)
    }
}

/// The state of one checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnitReport {
    /// The name of the checkpoint.
    pub name: String,
    /// The state of the checkpoint.
    pub state: CheckpointState,
    /// The size of the checkpoint, in bytes.
    pub bytes: u64,
    /// Whether the job had finished it, as far as can be told.
    pub complete: bool,
    /// The generation: how often it was saved.
    pub generation: u64,
    /// When it was last saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<DateTime<Utc>>,
    /// The duration of the last save, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// A directory with checkpoints that could not be saved, which is left to the operator of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsavedDirectory {
    /// The tenant that they belong to.
    pub tenant: String,
    /// The project of the job that wrote them, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The id of the job that wrote them.
    pub id: String,
    /// The directory on this node.
    pub directory: PathBuf,
    /// Total size of the checkpoints that are not saved, in bytes, as far as is known.
    pub bytes: u64,
    /// The reason why they are not saved, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl fmt::Display for CheckpointState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Writing => "writing",
            Self::Sealed => "sealed",
            Self::Saved => "saved",
            Self::Skipped => "skipped",
            Self::Torn => "torn",
        })
    }
}

/// The state of a checkpoint on its way from the job to the mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointState {
    #[default]
    /// The job writes it, or did a moment ago.
    Writing,
    /// The checkpoint is durable on the node's disk, and waits for its upload.
    Sealed,
    /// The checkpoint is in the mirror.
    Saved,
    /// The job deleted it before it was saved.
    Skipped,
    /// A power cut has left something else of it than was sealed: kept, and never saved.
    Torn,
}
