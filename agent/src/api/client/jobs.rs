//! What the commands ask of jobs.

use hyper::Method;

use super::{Client, Trouble};
use crate::api::job::{FROM, Job, JobRequest, Jobs, Piece};

impl Client {
    /// Has a job run.
    pub async fn submit(&self, request: &JobRequest) -> Result<Job, Trouble> {
        self.call(Method::POST, "/v1/jobs", Some(request)).await
    }

    /// All jobs, without their events.
    pub async fn jobs(&self) -> Result<Jobs, Trouble> {
        self.ask(Method::GET, "/v1/jobs").await
    }

    /// A job.
    pub async fn job(&self, id: u64) -> Result<Job, Trouble> {
        self.ask(Method::GET, &format!("/v1/jobs/{id}")).await
    }

    /// The same, as soon as more than `seen` events have happened, or after a moment.
    pub async fn job_after(&self, id: u64, seen: usize) -> Result<Job, Trouble> {
        self.ask(Method::GET, &format!("/v1/jobs/{id}?seen={seen}")).await
    }

    /// Stops a job, with `now` without grace.
    pub async fn stop(&self, id: u64, now: bool) -> Result<Job, Trouble> {
        self.ask(Method::POST, &format!("/v1/jobs/{id}/stop?now={now}")).await
    }

    /// What a job printed, from byte `from` on. With `wait` it may take a moment until there is something.
    pub async fn log(&self, id: u64, from: u64, wait: bool) -> Result<Piece, Trouble> {
        let path = format!("/v1/jobs/{id}/log?from={from}&wait={wait}");
        let (head, body) = self.exchange(Method::GET, &path, None::<&()>).await?;
        let begins = head.get(FROM).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Piece { from: begins.unwrap_or(from), bytes: body.into() })
    }
}
