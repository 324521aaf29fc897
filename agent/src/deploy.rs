//! Deployment: the sources of a job or publication are mirrored, admitted to the cache and staged, before anything runs.
//! The repository's `deploy/` is another thing: how bdnfs itself is installed.
//!
//! ```text
//! MirrorQueue ──> mounts ──> AdmissionQueue ──> stage_all ──> gate open: report
//! ```

mod admission;
mod mirror;
mod report;
mod staging;

pub use admission::{AdmissionPermit, AdmissionQueue, lease_all};
pub use mirror::MirrorQueue;
pub use report::report;
pub use staging::stage_all;
