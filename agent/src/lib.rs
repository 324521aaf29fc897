//! The agent of bdnfs: the process that owns a node's cache, mounts, jobs and its part in a cluster, and the API that it
//! serves.

pub mod api;
pub mod cache;
mod cluster;
mod daemon;
pub mod deploy;
pub mod fdstore;
pub mod jobs;
pub mod mirror;
mod mounts;
mod records;
pub mod runtime;
mod server;
pub mod signals;
pub mod telemetry;
pub mod text;

pub use cluster::ClusterConfig;
pub use daemon::{AgentConfig, AgentServer};
