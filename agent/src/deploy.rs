//! Deployment: the sources of a job or publication are mirrored, admitted to the cache and staged, before anything runs.
//! The repository's `deploy/` is another thing: how bdnfs itself is installed.
//!
//! ```text
//! MirrorQueue ──> mounts ──> AdmissionQueue ──> stage_all ──> gate open: report
//! ```
//!
//! And what they have saved is added to the cache when they have ended ([`CheckpointCaching`]), for the next ones. The training
//! caches that they share are updated before and saved after ([`home_use`]).

mod admission;
mod cached_checkpoints;
pub mod home_use;
mod mirror;
mod report;
mod staging;
mod tenant_slots;

pub use admission::{AdmissionPermit, AdmissionQueue, await_count, lease_all};
pub use cached_checkpoints::{CheckpointCaching, SavedVolume};
pub use mirror::MirrorQueue;
pub use report::report;
pub use staging::stage_all;
