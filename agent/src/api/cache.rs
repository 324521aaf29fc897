//! Requests and reports about a cache.

use std::path::PathBuf;

use bdnfs::engine::Usage;
use serde::{Deserialize, Serialize};

/// The content of a cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheSummary {
    /// Its directory.
    pub cache: PathBuf,
    /// How full it is.
    pub usage: Usage,
    /// Its tenants, by name.
    pub tenants: Vec<TenantUsage>,
    /// Its snapshots, of each tenant those first that were used last.
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
}

/// A tenant's content of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantUsage {
    /// Its name.
    pub tenant: String,
    /// Bytes that its blobs occupy.
    pub bytes: u64,
    /// The most that they may.
    pub quota: Option<u64>,
    /// Bytes of it that belong to no snapshot in the cache.
    pub others: u64,
}

/// A snapshot's content of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotUsage {
    /// The tenant that it belongs to.
    pub tenant: String,
    /// Its source, as its origin names it.
    pub source: String,
    /// Its id, in hexadecimal.
    pub snapshot: String,
    /// How many regular files it has.
    pub files: u64,
    /// How many of them are local.
    pub files_local: u64,
    /// The sizes of its blobs together, in bytes.
    pub bytes: u64,
    /// The bytes that those occupy which are here. Several snapshots may share them.
    pub bytes_local: u64,
    /// When it was last used, in seconds since 1970; `None`: nothing of it is here.
    pub used_at: Option<i64>,
    /// Whether it is pinned: not evicted although it is not in use.
    pub pinned: bool,
    /// Mount points that use it.
    pub in_use_by: Vec<PathBuf>,
}

/// Which snapshots of a cache are meant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotSelection {
    /// By their sources, or by the first digits of their ids.
    pub which: Vec<String>,
    /// All of them.
    pub all: bool,
    /// The snapshots of this tenant only.
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
    /// Snapshots, by their ids.
    pub snapshots: Vec<String>,
    /// The sizes of their blobs together, in bytes.
    pub bytes: u64,
    /// The bytes of those that are here.
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
    /// Damaged content that was removed, a line for each.
    pub damaged: Vec<String>,
}
