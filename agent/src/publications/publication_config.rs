//! The configuration of publications.

use std::path::PathBuf;

use super::SourceConfig;
use super::trust::DEFAULT_INLINE_SOURCES;
use crate::api::container_volume::ContainerVolumeKind;

/// The configuration of publications: what may be published, and where.
#[derive(Clone, Debug)]
pub struct PublicationConfig {
    /// The directories below which targets lie.
    pub targets: Vec<PathBuf>,
    /// The directory with the bases; default: one in the cache.
    pub bases: Option<PathBuf>,
    /// Schemes and prefixes of the sources that authors without administrators' rights may name.
    pub inline_sources: Vec<String>,
    /// The volumes to write to that authors without administrators' rights may ask for, in projects and teams of their tenant.
    pub inline_volumes: Vec<ContainerVolumeKind>,
    /// The sources that have a name.
    pub sources: Vec<SourceConfig>,
    /// The file that lists them as CDI devices for container runtimes.
    pub cdi_file: Option<PathBuf>,
}

impl Default for PublicationConfig {
    /// Targets of kubelets, and of hooks that have their own directory for what ends with the boot.
    fn default() -> Self {
        Self {
            targets: ["/var/lib/kubelet", "/run/bdnfs"].map(PathBuf::from).to_vec(),
            bases: None,
            inline_sources: DEFAULT_INLINE_SOURCES.map(str::to_owned).to_vec(),
            inline_volumes: Vec::new(),
            sources: Vec::new(),
            cdi_file: None,
        }
    }
}
