//! Job records: what a restart must not forget of a job.

use serde::{Deserialize, Serialize};

use crate::api::job::{JobRequest, JobStatus};

/// The record of a job. It holds no secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobRecord {
    /// The job, but for its events.
    pub job: JobStatus,
    /// What was asked for, without its secrets.
    pub request: JobRequest,
    /// Whether it is to stop.
    pub stop: bool,
    /// Whether it is admitted: then all its sources are leased.
    #[serde(default)]
    pub admitted: bool,
}
