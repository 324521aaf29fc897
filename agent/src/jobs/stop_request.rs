//! Requests to stop a job.

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
