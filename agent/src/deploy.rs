//! Deployment: what jobs read is mirrored, admitted to the cache and staged, before anything runs.
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
