//! The agent of bdnfs: the process that owns a node's cache, mounts, jobs and its part in a cluster, and the API that it
//! serves.
//!
//! The terms of the engine are on the front page of [`bdnfs`]. Of the agent's own, a *record* is what survives a crash of it: of a
//! mount, a job, a publication, a volume. The *fd store* is the small process that keeps `/dev/fuse` descriptors while there is no
//! agent, and the *saver* the one that saves what a job writes. *Admission* decides whether all that a job or publication needs
//! fits into the cache beside what others hold; the *gate* is the moment when all of it is staged, before which nothing runs. A
//! *publication* shows a source to a container, pod or task: a read-only *bind* of a *base*, the node's one mount of a tenant's
//! snapshot for one user. A *volume* is a directory that jobs or containers write to; a *home* is the one of a training cache.
//!
//! What a request meets on its way, from top to bottom; each level imports from those below it alone:
//!
//! ```text
//!   bdnfs, curl ── HTTP over a unix socket ──┐
//!                                            v
//!   server      sockets, routes; start and end of the agent
//!   agent       its parts, and what concerns all of them: status, restore, shutdown
//!   hooks       volumes of Docker and podman
//!   jobs        queue, record, run ──> supervisor process ──> commands
//!   container_volumes  directories that containers write to
//!   publications  sources that containers see: base, stage, bind
//!   deploy      what comes before the first read: mirror, admission, staging, report
//!   mounts      manager, records, restore, shutdown ──> bdnfs_fs::Mount, which serves reads
//!   cluster     membership, and what peers are served        fdstore    keeps mounts alive between two agents
//!   saver       saver process of a job ──> mirror            telemetry  metrics, traces
//!   cache       its configuration, claim and inventory       volumes    directories that jobs write to
//!   mirror      opens mirrors                                lifecycle, records
//!   api         the types of the API, and its client         context, durable, random, real_path, runtime, signals, text
//! ```
//!
//! Follow a mount: [`api::MountRequest`] arrives in `server/routes/mounts.rs`, `mounts/manager.rs` takes it, `mounts/mounter.rs`
//! makes it, and from then on the kernel talks to the file system. Follow a job: `server/routes/jobs.rs`, `jobs/queue.rs`,
//! `jobs/run.rs`, `jobs/deployment.rs`, `jobs/supervisor.rs`. Follow a publication: `server/routes/publications.rs`,
//! `publications.rs`, `publications/base.rs`, `publications/bind.rs`.
//!
//! An agent of one's own, and a question to it:
//!
//! ```
//! use bdnfs_agent::api::client::Client;
//! use bdnfs_agent::api::socket;
//! use bdnfs_agent::cache::{CacheConfig, DEFAULT_TENANT};
//! use bdnfs_agent::{AgentConfig, AgentServer};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! # let dir = home.path().canonicalize()?;
//! let cache = CacheConfig {
//!     dir: dir.clone(),
//!     size: Some(10 << 30),
//!     reserve: None,
//!     memory: None,
//!     tenant: DEFAULT_TENANT.into(),
//!     quotas: Default::default(),
//!     scrub_interval: bdnfs_agent::cache::scrubber::DEFAULT_SCRUB_INTERVAL,
//! };
//! let agent = AgentServer::start(AgentConfig::on_demand(cache)).await?;
//! let alive = agent.keep_alive();
//! let serving = tokio::spawn(agent.serve());
//!
//! let status = Client::new(socket::of_cache(&dir)).status().await?;
//! assert!(status.mounts.is_empty());
//!
//! // Nobody needs it any more: it ends.
//! drop(alive);
//! serving.await??;
//! # Ok(())
//! # }
//! ```

mod agent;
pub mod api;
pub mod cache;
mod cluster;
mod container_volumes;
mod context;
mod deploy;
mod durable;
pub mod fdstore;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod hooks;
pub mod jobs;
mod lifecycle;
pub mod mirror;
mod mounts;
mod open_files;
mod publications;
mod random;
pub mod real_path;
mod records;
pub mod runtime;
pub mod saver;
mod server;
pub mod signals;
pub mod telemetry;
pub mod text;
pub mod volumes;

pub use agent::AgentConfig;
pub use cluster::ClusterConfig;
pub use hooks::docker::DockerConfig;
pub use mounts::recorded_mountpoints;
pub use publications::{PublicationConfig, SourceConfig, is_device_name};
pub use server::{AgentServer, ControlSocket};
pub use volumes::VolumeConfig;
