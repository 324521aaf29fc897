//! Requests to stop a job.

use bdnfs::error::Kind;

use crate::api::Failure;

/// A request to stop a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopRequest {
    /// The job is not to stop.
    None,
    /// The processes of the job are asked to end, and have a grace period for it.
    Graceful,
    /// The processes of the job are killed.
    Now,
}

/// The failure of a job that was stopped: no client sees it.
pub fn stopped() -> Failure {
    Failure::new(Kind::Interrupted, "it was stopped")
}
