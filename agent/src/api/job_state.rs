//! The state of a job, as it travels over the control socket.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum JobState {
    /// The sources of the job are being mirrored.
    #[serde(rename = "TRAINING_JOB_CREATED")]
    Created,
    /// The sources of the job are being mounted and staged.
    #[serde(rename = "TRAINING_JOB_DEPLOYING")]
    Deploying,
    /// The commands run: all that the job reads is local, verified and leased.
    #[serde(rename = "TRAINING_JOB_RUNNING")]
    Running,
    /// All commands succeeded.
    #[serde(rename = "TRAINING_JOB_COMPLETED")]
    Completed,
    /// The job failed.
    #[serde(rename = "TRAINING_JOB_FAILED")]
    Failed,
    /// The job was stopped.
    #[serde(rename = "TRAINING_JOB_STOPPED")]
    Stopped,
}

impl JobState {
    /// Whether nothing comes after it.
    pub fn is_last(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stopped)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "TRAINING_JOB_CREATED",
            Self::Deploying => "TRAINING_JOB_DEPLOYING",
            Self::Running => "TRAINING_JOB_RUNNING",
            Self::Completed => "TRAINING_JOB_COMPLETED",
            Self::Failed => "TRAINING_JOB_FAILED",
            Self::Stopped => "TRAINING_JOB_STOPPED",
        })
    }
}
