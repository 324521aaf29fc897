//! The cache of a node: the partitions of all tenants in one directory, under one lock and one set of limits.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::error::{Error, Result};

use super::commit::Committer;
use super::disk_reads::DiskReads;
use super::disk_writer::DiskWriter;
use super::eviction::{EvictionPause, Evictor};
use super::layout::{CacheRoot, Layout};
use super::partition::Partition;
use super::removal_marks::RemovalMarks;
use super::removed_files::RemovedFiles;
use super::space::TenantSpace;
use super::{Cache, Limits, pins};

/// The beginning of the name of a manifest that is being written: tempfile's own.
const MANIFEST_DRAFT_PREFIX: &[u8] = b".tmp";

/// The cache of a node.
#[derive(Debug)]
pub struct NodeCache {
    root: Arc<CacheRoot>,
    quotas: BTreeMap<String, u64>,
    evictor: Arc<Evictor>,
    committer: Arc<Committer>,
    reads: Arc<DiskReads>,
    writer: Arc<DiskWriter>,
    now: fn() -> SystemTime,
    tenants: Mutex<BTreeMap<String, Cache>>,
}

impl NodeCache {
    /// Opens the cache in `root`, making what is missing, and locks it against other processes. A tenant's blobs may occupy
    /// as many bytes as `quotas` says, if it does. `now` tells the time that uses are stamped with. Pinned snapshots are
    /// leased. Nothing is evicted before the returned pause is dropped.
    ///
    /// # Errors
    /// [`Kind::Busy`](crate::error::Kind::Busy) when another process has it, which the message names;
    /// [`Kind::Unsupported`](crate::error::Kind::Unsupported) when a newer version made it;
    /// [`Kind::Disk`](crate::error::Kind::Disk).
    pub fn open(
        root: &Path,
        limits: Limits,
        quotas: BTreeMap<String, u64>,
        now: fn() -> SystemTime,
    ) -> Result<(Self, EvictionPause)> {
        let root = Arc::new(CacheRoot::open(root)?);
        let (committer, writer) = (Arc::new(Committer::start()?), Arc::new(DiskWriter::start()?));
        let evictor = Arc::new(Evictor::new(root.clone(), writer.clone(), limits));
        let (reads, tenants) = (Arc::default(), Mutex::default());
        let node = Self { root, quotas, evictor, committer, reads, writer, now, tenants };
        // Also tenants without requests: their blobs count, and may be evicted.
        for tenant in node.root.tenants()? {
            node.tenant(&tenant)?;
        }
        let hold = node.evictor.pause();
        node.evictor.count_in_background()?;
        Ok((node, hold))
    }

    /// The part of `tenant`; made if it is missing.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::error::Kind::Invalid) for what can't be a tenant, [`Kind::Disk`](crate::error::Kind::Disk).
    pub fn tenant(&self, tenant: &str) -> Result<Cache> {
        let mut tenants = self.tenants.lock();
        if let Some(cache) = tenants.get(tenant) {
            return Ok(cache.clone());
        }
        let layout = Layout::open(self.root.clone(), tenant)?;
        remove_drafts(layout.manifests());
        let directory = |name| {
            let directory = self.root.tenant_directory(tenant, name);
            directory.map_err(|e| Error::disk("cannot use the cache", e))
        };
        let (marks, removed) = (directory("removals")?, RemovedFiles::new(directory("removed")?));
        let quota = self.quotas.get(tenant).copied();
        let partition = Arc::new(Partition::new(layout, RemovalMarks::new(marks), removed, quota));
        pins::lease(&partition);
        self.evictor.add(partition.clone());
        let cache = Cache {
            space: Arc::new(TenantSpace::new(self.evictor.clone(), partition.clone())),
            partition,
            parts: Arc::default(),
            committer: self.committer.clone(),
            reads: self.reads.clone(),
            writer: self.writer.clone(),
            now: self.now,
        };
        tenants.insert(tenant.to_owned(), cache.clone());
        Ok(cache)
    }

    /// The partitions of all tenants.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.evictor.partitions()
    }

    /// Tells the listeners of all tenants of the removals that an earlier process did not see to the end. To be called
    /// when all mounts of that process are served again.
    pub fn repeat_removals(&self) {
        for partition in self.partitions() {
            match partition.removal_marks.serve_all() {
                Ok(removals) => {
                    removals.iter().for_each(|removal| partition.removal_listeners.notify(removal, None));
                }
                Err(error) => tracing::warn!(%error, "cannot tell which damaged data was removed before"),
            }
            // Drops the records of files that nobody has open any more.
            if let Err(error) = partition.still_open() {
                tracing::warn!(%error, "cannot tell which damaged files are still open");
            }
        }
    }

    /// Leaves the removals that are not seen to their end by now to the next process, which [repeats](Self::repeat_removals) them.
    pub fn leave_removals(&self) {
        self.partitions().iter().for_each(|partition| partition.removal_marks.leave());
    }

    /// The cache directory.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The evictor, which enforces the limits.
    pub fn evictor(&self) -> &Arc<Evictor> {
        &self.evictor
    }
}

/// Removes what an earlier process has not finished of the manifests in a directory: up to gigabytes for millions of files. Nothing
/// else writes there before.
fn remove_drafts(manifests: &Path) {
    let Ok(entries) = std::fs::read_dir(manifests) else { return };
    for entry in entries.flatten() {
        if entry.file_name().as_bytes().starts_with(MANIFEST_DRAFT_PREFIX) {
            let removed = std::fs::remove_file(entry.path());
            removed.unwrap_or_else(|error| tracing::warn!(%error, "a draft of a manifest stays"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draft_of_a_manifest_that_a_crash_left_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let names = [".tmpAbC123", "kept"];
        names.iter().for_each(|name| std::fs::write(directory.path().join(name), "x").expect("written"));
        remove_drafts(directory.path());
        assert_eq!(names.map(|name| directory.path().join(name).exists()), [false, true]);
    }
}
