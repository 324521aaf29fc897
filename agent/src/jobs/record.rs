//! Job records: what a restart must not forget of a job.

use serde::{Deserialize, Serialize};

use crate::api::job::{JobRequest, JobStatus};

/// The record of a job. It holds no secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobRecord {
    /// The job, but for its events.
    pub job: JobStatus,
    /// The request, without its secrets.
    pub request: JobRequest,
    /// Whether a stop of the job was requested.
    pub stop: bool,
    /// Whether the job is admitted: then all its sources are leased.
    #[serde(default)]
    pub admitted: bool,
    /// How many events of its saver are events of the job.
    #[serde(default)]
    pub saver_events: u64,
}
