//! Requests and reports about a cache.

use std::path::PathBuf;

use bdnfs::engine::Usage;
use serde::{Deserialize, Serialize};

/// The content of a cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheSummary {
    /// The cache directory.
    pub cache: PathBuf,
    /// The space that the cache uses and may use.
    pub usage: Usage,
    /// The tenants with content in the cache, by name.
    pub tenants: Vec<TenantUsage>,
    /// The snapshots in the cache: of each tenant the most recently used first.
    pub snapshots: Vec<SnapshotUsage>,
    /// The last pass of a scrubber that read something.
    #[serde(default)]
    pub last_scrub: Option<ScrubPass>,
}

/// One pass of a scrubber over a cache, which verified the files that were due.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPass {
    /// When it ended, in seconds since 1970.
    pub ended: u64,
    /// Blobs that were read.
    pub blobs: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Damaged content that was removed, a line for each.
    pub damaged: Vec<String>,
    /// Blobs that nothing is known to hold against, or that were being fetched.
    #[serde(default)]
    pub unknown: u64,
}

/// A tenant's content of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantUsage {
    /// The name of the tenant.
    pub tenant: String,
    /// Bytes that its blobs occupy.
    pub bytes: u64,
    /// The quota of the tenant, in bytes.
    pub quota: Option<u64>,
    /// Bytes that belong to no snapshot in the cache.
    pub others: u64,
}

/// A snapshot's content of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotUsage {
    /// The tenant that it belongs to.
    pub tenant: String,
    /// The source of the snapshot, as the origin names it.
    pub source: String,
    /// The snapshot's id, in hexadecimal.
    pub snapshot: String,
    /// Number of regular files.
    pub files: u64,
    /// Number of regular files that are local.
    pub files_local: u64,
    /// Total size of the snapshot's blobs, in bytes.
    pub bytes: u64,
    /// Bytes that its local blobs occupy. Several snapshots may share them.
    pub bytes_local: u64,
    /// When it was last used, in seconds since 1970; `None`: nothing of it is here.
    pub used_at: Option<i64>,
    /// Whether it is pinned: not evicted although it is not in use.
    pub pinned: bool,
    /// Mount points that use it.
    pub in_use_by: Vec<PathBuf>,
}

/// A selection of snapshots of a cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotSelection {
    /// Sources, or the first digits of snapshot ids.
    pub which: Vec<String>,
    /// Whether all snapshots are selected.
    pub all: bool,
    /// Restricts the selection to this tenant's snapshots.
    pub tenant: Option<String>,
}

/// The result of an eviction by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictReport {
    /// Snapshots that the cache has forgotten.
    pub snapshots: u64,
    /// Blobs that were removed.
    pub blobs: u64,
    /// Bytes that they occupied.
    pub bytes: u64,
    /// Bytes that stay, because they are in use or pinned.
    pub held: u64,
}

/// Snapshots that were pinned or unpinned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinReport {
    /// The ids of the snapshots.
    pub snapshots: Vec<String>,
    /// Total size of their blobs, in bytes.
    pub bytes: u64,
    /// Bytes of those blobs that are local.
    pub bytes_local: u64,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Blobs that were read.
    pub blobs: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Blobs that nothing is known to hold against, or that are being fetched now.
    pub unknown: u64,
    /// The damage, one line each: removed content, manifests, mounts to renew, and then files that were removed before and are
    /// still open.
    pub damaged: Vec<String>,
    /// The number of entries of `damaged` that were removed before.
    #[serde(default)]
    pub still_open: u64,
    /// The number of entries of `damaged` that are manifests, which were written again or removed.
    #[serde(default)]
    pub damaged_manifests: u64,
    /// The number of entries of `damaged` that are sources of which mounts in use have a damaged manifest.
    #[serde(default)]
    pub mounts_to_renew: u64,
}
