//! The run of a job, as each of its steps gets it.

use std::sync::Arc;

use bdnfs::error::Result;
use bdnfs::task::blocking;

use super::job::{Job, now};
use super::job_services::JobServices;
use crate::api::job::JobState;

/// One run of a job, which carries it to its end.
#[derive(Clone, Debug)]
pub struct JobRun {
    pub(super) services: Arc<JobServices>,
    pub(super) job: Arc<Job>,
}

impl JobRun {
    /// The run of `job`, which uses `services`.
    pub fn new(services: Arc<JobServices>, job: Arc<Job>) -> Self {
        Self { services, job }
    }

    /// Enters a state and writes the record.
    pub(super) async fn enter(&self, state: JobState, text: String) -> Result<()> {
        let (services, job) = (Arc::clone(&self.services), Arc::clone(&self.job));
        let enter = move || {
            job.update(text, |status| {
                status.state = state;
                if state == JobState::Running {
                    status.started = Some(now());
                }
            });
            services.write_record(&job)
        };
        blocking(enter).await
    }
}
