//! The report of a job's deployment: where its bytes came from, and how long its phases took.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The report of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeployReport {
    /// The report on each source.
    pub sources: Vec<SourceReport>,
    /// The sum of all sources.
    pub total: BytesByTier,
    /// The furthest tier that any of it came from.
    pub verdict: Verdict,
    /// The duration of each phase.
    pub seconds: PhaseSeconds,
}

/// The report on one source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceReport {
    /// The source.
    pub source: String,
    /// The path at which the job sees it.
    pub mount_location: PathBuf,
    /// The snapshot's id, in hexadecimal.
    pub snapshot: String,
    /// Bytes by tier.
    #[serde(flatten)]
    pub by_tier: BytesByTier,
    /// The furthest tier that any of it came from.
    pub verdict: Verdict,
}

/// Counts of bytes by the tier that they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesByTier {
    /// Number of regular files.
    pub files: u64,
    /// Bytes of their content. What files have in common counts once.
    pub bytes: u64,
    /// Bytes that were in the node's cache before.
    pub cache: u64,
    /// Bytes that came from other nodes.
    pub peers: u64,
    /// Bytes that came from the mirror.
    pub mirror: u64,
    /// Bytes that came from the origin.
    pub origin: u64,
    /// Bytes that another job or mount on this node brought at the same time.
    pub shared: u64,
}

/// The tier that a deployment came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Everything was in the node's cache.
    #[default]
    #[serde(rename = "node-local hit")]
    Node,
    /// Everything was in the cluster.
    #[serde(rename = "cluster-local hit")]
    Cluster,
    /// Some came from further away.
    #[serde(rename = "full miss")]
    Miss,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node-local hit",
            Self::Cluster => "cluster-local hit",
            Self::Miss => "full miss",
        })
    }
}

impl BytesByTier {
    /// The verdict that these counts amount to.
    pub fn verdict(&self) -> Verdict {
        if self.mirror + self.origin + self.shared > 0 {
            Verdict::Miss
        } else if self.peers > 0 {
            Verdict::Cluster
        } else {
            Verdict::Node
        }
    }

    /// The sums of the counts of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            files: self.files + other.files,
            bytes: self.bytes + other.bytes,
            cache: self.cache + other.cache,
            peers: self.peers + other.peers,
            mirror: self.mirror + other.mirror,
            origin: self.origin + other.origin,
            shared: self.shared + other.shared,
        }
    }
}

/// The durations of a deployment's phases, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseSeconds {
    /// Mirroring.
    pub mirror: f64,
    /// Mounting.
    pub mount: f64,
    /// Waiting for room in the cache.
    pub room: f64,
    /// Staging.
    pub stage: f64,
    /// Launching the commands.
    pub launch: f64,
}
