//! Requests about jobs.

use hyper::Method;

use super::{Client, ClientError};
use crate::api::job::{
    JobList, JobRequest, JobStatus, LOG_OFFSET_HEADER, LOG_STREAM_HEADER, LogChunk, OutputStream,
};

impl Client {
    /// Submits a job.
    pub async fn submit(&self, request: &JobRequest) -> Result<JobStatus, ClientError> {
        self.call(Method::POST, "/v1/jobs", Some(request)).await
    }

    /// All jobs, without their events.
    pub async fn jobs(&self) -> Result<JobList, ClientError> {
        self.ask(Method::GET, "/v1/jobs").await
    }

    /// A job.
    pub async fn job(&self, id: u64) -> Result<JobStatus, ClientError> {
        self.ask(Method::GET, &format!("/v1/jobs/{id}")).await
    }

    /// Status of a job, as soon as more than `seen` events have happened, or after a moment.
    pub async fn job_after(&self, id: u64, seen: usize) -> Result<JobStatus, ClientError> {
        self.ask(Method::GET, &format!("/v1/jobs/{id}?seen={seen}")).await
    }

    /// Stops a job, with `now` without grace, with `discard` without saving what is not saved yet of its checkpoints.
    pub async fn stop(&self, id: u64, now: bool, discard: bool) -> Result<JobStatus, ClientError> {
        // An older agent knows no `discard`.
        let discard = if discard { "&discard=true" } else { "" };
        self.ask(Method::POST, &format!("/v1/jobs/{id}/stop?now={now}{discard}")).await
    }

    /// A job's output, from byte `from` on. With `wait` it may take a moment until there is something.
    pub async fn log(&self, id: u64, from: u64, wait: bool) -> Result<LogChunk, ClientError> {
        let path = format!("/v1/jobs/{id}/log?from={from}&wait={wait}");
        self.check_alive().await?;
        let (head, body) = self.exchange(Method::GET, &path, None::<&()>).await?;
        let begins = head.get(LOG_OFFSET_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        let is_stderr = head.get(LOG_STREAM_HEADER).is_some_and(|value| value == OutputStream::Stderr.name());
        let stream = if is_stderr { OutputStream::Stderr } else { OutputStream::Stdout };
        Ok(LogChunk { from: begins.unwrap_or(from), stream, bytes: body.into() })
    }
}
