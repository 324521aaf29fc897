//! The control API: HTTP with JSON over a unix socket in the cache directory, between the agent and its clients.
//!
//! Requests and answers are described in `docs/openapi.json`, which the tests compare with real answers. A
//! failure is a [`Failure`] with a fitting status code. A client that may connect may mount as the agent's
//! user, so only that user and root are let in ([`socket`]).

pub mod attributes;
pub mod cache;
pub mod cache_scope;
pub mod client;
pub mod cluster;
pub mod container_volume;
mod deploy_report;
mod failure;
pub mod job;
pub mod job_event;
mod job_log;
mod job_state;
mod mount_fields;
pub mod publication;
pub mod saving;
pub mod socket;
mod training;
pub mod training_cache_list;

use std::path::{Path, PathBuf};

use bdnfs::budget::BudgetUsage;
use bdnfs::engine::{Engine, Usage};
use bdnfs::metrics::Traffic;
use bdnfs::source::{Access, Secret, TreeLayout, Uri};
use bdnfs::stage::Progress;
use serde::{Deserialize, Serialize};

pub use failure::{ApiResult, Failure, kind_name};

/// The tenant where none is named.
pub const DEFAULT_TENANT: &str = "default";

/// A source and its mount point, an absolute path. All but these two may be left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Weights {
    /// The source's URI; a secret, since a URL may be signed.
    pub source: Secret,
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Patterns of the files to take; `None`: all.
    #[serde(default)]
    pub allow: Option<Vec<String>>,
    /// Patterns of the files to leave out.
    #[serde(default)]
    pub ignore: Vec<String>,
    /// The access to the source: credentials and endpoints.
    #[serde(default)]
    pub access: Access,
    /// The layout of the tree; default: that of the origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<TreeLayout>,
}

impl Weights {
    /// Removes the secrets, for a record on disk; also returns whether there were any.
    pub fn without_secrets(&self) -> Result<(Self, bool), bdnfs::error::Error> {
        let (source, signed) = bare(&self.source)?;
        let (access, had) = self.access.without_secrets();
        Ok((Self { source, access, ..self.clone() }, had || signed))
    }
}

/// The highest id of a user or a group. The one above it is none: it stands for "leave as it is", as in chown(2).
pub const MAX_ID: u32 = u32::MAX - 1;

/// A mount request: what to mount where. All but the weights may be left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "mount_fields::MountFields")]
pub struct MountRequest {
    /// The source, and its mountpoint.
    #[serde(flatten)]
    pub weights: Weights,
    /// The tenant that the data belongs to; default: the agent's own tenant.
    pub tenant: Option<String>,
    /// The mirror to look for it first; where none is named, the agent's own.
    pub mirror: Option<MirrorRequest>,
    /// Whether no mirror is looked into, not even the agent's own.
    pub direct: bool,
    /// Whether no network is used: the newest snapshot that is complete in the cache is mounted.
    pub offline: bool,
    /// The snapshot that is mounted of a checkpoint, as the hexadecimal digest of its manifest; default: what the checkpoint is
    /// now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Whether other users may see the tree.
    pub allow_other: bool,
    /// Owner of all files.
    pub uid: Option<u32>,
    /// Group of all files.
    pub gid: Option<u32>,
    /// The backend of the mount once it is staged. Default: as the agent is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<MountBackend>,
    /// The size that the cache was asked to have, in bytes; the agent warns when it has another.
    pub cache_size: Option<u64>,
}

impl MountRequest {
    /// Removes the secrets, for a record on disk; also returns whether there were any.
    pub fn without_secrets(&self) -> Result<(Self, bool), bdnfs::error::Error> {
        let (weights, had) = self.weights.without_secrets()?;
        let mirror = self.mirror.as_ref().map(MirrorRequest::without_secrets).transpose()?;
        let had = had || mirror.as_ref().is_some_and(|(_, had)| *had);
        Ok((Self { weights, mirror: mirror.map(|(mirror, _)| mirror), ..self.clone() }, had))
    }
}

/// The backend of a mount once all of it is local: the agent or the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountBackend {
    /// The agent, by FUSE.
    #[default]
    Fuse,
    /// The kernel alone, by EROFS over the cache's files.
    Native,
    /// The kernel alone where that is better, else the agent.
    Auto,
}

/// A URI without its query, which may be a signature, and whether it had one.
fn bare(text: &Secret) -> Result<(Secret, bool), bdnfs::error::Error> {
    let uri: Uri = text.expose().parse()?;
    let signed = matches!(&uri, Uri::Http(url) if url.query().is_some());
    Ok((if signed { Secret::new(uri.to_string()) } else { text.clone() }, signed))
}

/// A tenant's part of a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorRequest {
    /// The URL of the mirror.
    pub url: Secret,
    /// The tenant whose part of the mirror is read.
    pub tenant: String,
    /// The access to the mirror: credentials and endpoint.
    pub access: Access,
}

impl MirrorRequest {
    /// Removes the secrets, for a record on disk; also returns whether there were any.
    pub fn without_secrets(&self) -> Result<(Self, bool), bdnfs::error::Error> {
        let (url, signed) = bare(&self.url)?;
        let (access, had) = self.access.without_secrets();
        Ok((Self { url, access, tenant: self.tenant.clone() }, had || signed))
    }
}

/// A source that is mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountInfo {
    /// The number of the mount. It stays the same while the agent lives; a node agent restores it with the mount.
    pub id: u64,
    /// The source, as the origin names it.
    pub source: String,
    /// The source as it was asked for, without a signature. An older agent does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<String>,
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The snapshot's id, in hexadecimal.
    pub snapshot: String,
    /// Number of regular files.
    pub files: u64,
    /// Total size of the files, in bytes.
    pub bytes: u64,
    /// Whether the kernel reads whole files by itself.
    pub passthrough: bool,
    /// The backend of the mount: the agent (FUSE), or once it is staged the kernel alone. An older agent omits it.
    #[serde(default)]
    pub via: MountBackend,
    /// Notes for the user, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl MountInfo {
    /// The source as it was asked for, where that is known; else as the origin names it.
    pub fn requested(&self) -> &str {
        self.requested.as_deref().unwrap_or(&self.source)
    }
}

/// The status of a mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountStatus {
    /// The mount itself.
    #[serde(flatten)]
    pub mounted: MountInfo,
    /// Bytes of it that are local; `None` where it has too many files to count them each time.
    pub local: Option<u64>,
    /// When it was mounted, in seconds since 1970.
    pub since: u64,
    /// Bytes by tier.
    pub traffic: Traffic,
    /// Progress of its staging, once that was asked for.
    pub stage: Option<StageStatus>,
}

/// Progress and outcome of staging a mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageStatus {
    /// Bytes and files that are staged.
    #[serde(flatten)]
    pub progress: Progress,
    /// Running, done or failed.
    pub state: StageState,
}

/// The state of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StageState {
    /// Staging is under way.
    Running,
    /// All is local, verified and leased.
    Done,
    /// Staging failed.
    Failed(Failure),
}

/// An agent and all that it hosts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The agent.
    #[serde(rename = "daemon")]
    pub agent: AgentInfo,
    /// The mounts of the agent, oldest first.
    pub mounts: Vec<MountStatus>,
    /// Mounts of an earlier run of the agent that could not be restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostMount>,
    /// The publications of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub publications: Vec<publication::PublicationStatus>,
    /// The volumes that containers write to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<container_volume::ContainerVolumeStatus>,
    /// The directories with checkpoints that could not be saved, of jobs and containers that have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsaved: Vec<saving::UnsavedDirectory>,
}

/// A mount of the previous agent that could not be restored. It is tried anew at the next start, until it is unmounted or
/// something else is mounted in its place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LostMount {
    /// The number of the mount.
    pub id: u64,
    /// The source of the mount.
    pub source: String,
    /// The former mount point.
    pub mountpoint: PathBuf,
    /// The reason why it could not be restored.
    pub why: Failure,
}

/// The health of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Health {
    /// Whether what was mounted before it started is back, if that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
}

impl AgentStatus {
    /// The mount at `mountpoint`: the last, since earlier ones may have been detached from there and live on.
    pub fn at(&self, mountpoint: &Path) -> Option<&MountStatus> {
        self.mounts.iter().rfind(|mount| mount.mounted.mountpoint == mountpoint)
    }
}

/// An agent and its cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentInfo {
    /// The version of bdnfs.
    pub version: String,
    /// The process id.
    pub pid: u32,
    /// The cache directory.
    pub cache: PathBuf,
    /// Whether it is a node agent, which stays when nothing is mounted.
    #[serde(rename = "agent")]
    pub persistent: bool,
    /// Whether what was mounted before it started is back.
    pub ready: bool,
    /// The space that the cache uses and may use.
    pub usage: Usage,
    /// Work done since it started.
    #[serde(default)]
    pub work: FetchStats,
}

/// Work of an agent since it started, for all its mounts and those that are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchStats {
    /// Bytes by tier.
    pub traffic: Traffic,
    /// Fetches under way now.
    pub flights: u64,
    /// The use of the memory for fetches.
    pub memory: BudgetUsage,
}

impl FetchStats {
    /// The engine's counters.
    pub fn of(engine: &Engine) -> Self {
        let (metered, [own, waiting, _]) = (engine.metrics(), engine.memory());
        let memory = BudgetUsage {
            total: own.total + waiting.total,
            used: own.used + waiting.used,
            waiting: own.waiting + waiting.waiting,
        };
        Self { traffic: metered.traffic(), flights: metered.flights_in_progress, memory }
    }
}
