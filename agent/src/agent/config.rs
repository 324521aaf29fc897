//! The configuration of an agent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bdnfs::source::SecretStore;

use crate::api::{MirrorRequest, MountBackend};
use crate::cache::CacheConfig;
use crate::cluster::ClusterConfig;
use crate::hooks::docker::DockerConfig;
use crate::publications::PublicationConfig;
use crate::volumes::VolumeConfig;

/// The configuration of an agent.
#[derive(Debug)]
pub struct AgentConfig {
    /// The cache of the agent.
    pub cache: CacheConfig,
    /// Whether the agent stays when nothing is mounted, and restores its mounts when it starts again.
    pub persistent: bool,
    /// Another control socket beside that of the cache.
    pub socket: Option<PathBuf>,
    /// Whether the agent fails to start where it can't listen at `socket`.
    pub socket_required: bool,
    /// The mirror of mounts that name none.
    pub mirror: Option<MirrorRequest>,
    /// The backend of staged mounts whose requests name none.
    pub via: MountBackend,
    /// The secret stores that are searched after a mount's own.
    pub secrets: Vec<SecretStore>,
    /// The TCP address that metrics are served on, if any.
    pub metrics_listen: Option<SocketAddr>,
    /// The configuration of the node's part in a cluster, if any.
    pub cluster: Option<ClusterConfig>,
    /// The time for which the fd store holds its mounts after the agent's end.
    pub hold: Duration,
    /// The socket of an fd store that runs as a service; without one the agent starts its own.
    pub fdstore: Option<PathBuf>,
    /// The configuration of publications.
    pub publications: PublicationConfig,
    /// The configuration of jobs' volumes.
    pub volumes: VolumeConfig,
    /// The configuration of the volume plugin for Docker and podman, if it is served.
    pub docker: Option<DockerConfig>,
}

impl AgentConfig {
    /// The configuration of an agent that ends with its last mount or job.
    pub fn on_demand(cache: CacheConfig) -> Self {
        Self {
            cache,
            persistent: false,
            socket: None,
            socket_required: false,
            mirror: None,
            via: MountBackend::default(),
            secrets: Vec::new(),
            metrics_listen: None,
            cluster: None,
            hold: Duration::ZERO,
            fdstore: None,
            publications: PublicationConfig::default(),
            volumes: VolumeConfig::default(),
            docker: None,
        }
    }
}
