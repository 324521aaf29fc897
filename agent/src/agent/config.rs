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
    /// The cache that it owns.
    pub cache: CacheConfig,
    /// Whether the agent stays when nothing is mounted, and restores its mounts when it starts again.
    pub persistent: bool,
    /// Another control socket beside that of the cache.
    pub socket: Option<PathBuf>,
    /// Whether the agent fails to start without that socket.
    pub socket_required: bool,
    /// The mirror of mounts that name none.
    pub mirror: Option<MirrorRequest>,
    /// How staged mounts are served whose requests don't say.
    pub via: MountBackend,
    /// The secret stores that are searched after a mount's own.
    pub secrets: Vec<SecretStore>,
    /// The TCP address that metrics are served on, if any.
    pub metrics_listen: Option<SocketAddr>,
    /// The node's part in a cluster, if any.
    pub cluster: Option<ClusterConfig>,
    /// How long the fd store holds its mounts after the agent's end.
    pub hold: Duration,
    /// The socket of an fd store that runs as a service; without one the agent starts its own.
    pub fdstore: Option<PathBuf>,
    /// What may be published, and where.
    pub publications: PublicationConfig,
    /// Where jobs write, and how much.
    pub volumes: VolumeConfig,
    /// How volumes of Docker and podman are served, if they are.
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
