//! The node cache: blobs on the local disk.
//!
//! The file system is the index; there is no database that could disagree with it:
//!
//! ```text
//! format · lock                               what this is; who owns it (flock)
//! tenants/<t>/manifests/<digest>              manifests
//! tenants/<t>/pins/<digest>                   says that the blobs of this manifest are to stay
//! tenants/<t>/blobs/ab/<key>                  whole and durable: what the kernel reads
//! tenants/<t>/blobs/ab/<key>.part             sparse, some blocks there
//! tenants/<t>/blobs/ab/<key>.map              which ones, and what each hashes to
//! tenants/<t>/removed/<key>.<inode>           a damaged file that lost its name and may be open
//! ```
//!
//! A blob under its final name is whole and was made durable before it got that name ([`commit`]). A `.part` is believed as
//! far as its map goes, and only until the machine is booted again: after a power cut, or on another mount of the disk,
//! each block is verified again before it is used ([`presence`]). What has no lease is evicted, least recently used first
//! ([`eviction`]). All functions here block on the local disk: call them off the async threads.

mod adoption;
pub mod commit;
pub mod direct_io;
pub mod directory;
pub mod disk_reads;
pub mod disk_writer;
pub mod eviction;
pub(crate) mod file_notes;
pub(crate) mod file_version;
pub mod inventory;
pub mod io;
pub mod layout;
pub mod leases;
pub mod node;
pub(crate) mod open_manifests;
mod part_table;
pub mod partial;
pub mod partition;
pub mod pins;
pub mod presence;
pub mod pressure;
pub mod removal;
pub mod removal_marks;
mod removed_files;
mod root_lock;
pub mod scrub;
pub mod space;
#[cfg(test)]
mod tests;
pub mod verification_time;
mod withdrawals;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::blob::Key;
use crate::error::{Error, Kind, Result};

use commit::Committer;
use disk_reads::DiskReads;
use disk_writer::DiskWriter;
use file_version::FileVersion;
use layout::{BlobFile, Layout};
use leases::LeaseTable;
use node::NodeCache;
use part_table::PartTable;
use partial::PartialBlob;
use partition::{CachedFile, Partition};
use removal::RemovalListeners;
use removal_marks::Removal;
use space::TenantSpace;

/// The age of a blob's time of last use from which on an open refreshes it: eviction order needs no better, and an open of a hot
/// file then costs no write to the inode.
const ATIME_UPDATE_INTERVAL: Duration = Duration::from_secs(60);

/// The limits of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most that blobs may occupy, in bytes; `None`: whatever the reserve leaves.
    pub capacity: Option<u64>,
    /// The space that stays free on the file system, in bytes.
    pub reserve: u64,
}

/// The cache of one tenant on this node. Clones are handles to the same cache.
#[derive(Clone, Debug)]
pub struct Cache {
    partition: Arc<Partition>,
    parts: Arc<PartTable>,
    space: Arc<TenantSpace>,
    committer: Arc<Committer>,
    reads: Arc<DiskReads>,
    writer: Arc<DiskWriter>,
    now: fn() -> SystemTime,
}

impl Cache {
    /// Opens the cache in `root` for one tenant only, as [`NodeCache::open`] has it.
    ///
    /// # Errors
    /// Those of [`NodeCache::open`].
    pub fn open(root: &Path, tenant: &str, limits: Limits, now: fn() -> SystemTime) -> Result<Self> {
        let (node, _hold) = NodeCache::open(root, limits, BTreeMap::new(), now)?;
        node.tenant(tenant)
    }

    /// The tenant's partition of the node's cache.
    pub(crate) fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    /// The layout of its directory.
    pub fn layout(&self) -> &Layout {
        &self.partition.layout
    }

    /// The leases on its blobs.
    pub fn leases(&self) -> &Arc<LeaseTable> {
        &self.partition.leases
    }

    /// The clock for times of use and verification.
    pub(crate) fn now(&self) -> SystemTime {
        (self.now)()
    }

    /// The tenant's space.
    pub fn space(&self) -> &Arc<TenantSpace> {
        &self.space
    }

    /// The reads of its disk.
    pub(crate) fn reads(&self) -> &Arc<DiskReads> {
        &self.reads
    }

    /// Whether the disk does not answer writes.
    pub fn is_stalled(&self) -> bool {
        self.writer.is_stalled()
    }

    /// The committer, which makes parts whole.
    pub fn committer(&self) -> &Committer {
        &self.committer
    }

    /// The whole blob, opened for reading, and marked as used now; `None` when the cache does not have all of it.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn open_whole(&self, key: &Key, size: u64) -> Result<Option<File>> {
        let Some(file) = self.layout().open_blob(key, BlobFile::Whole)? else { return Ok(None) };
        let stat = rustix::fs::fstat(&file).map_err(|e| self.layout().fault("stat", key, e))?;
        if stat.st_size as u64 != size {
            // Only a damaged disk or another program makes this; what has the wrong length is not the blob.
            tracing::warn!(%key, "a whole blob has {} bytes instead of {size}: removed", stat.st_size);
            self.layout().remove(key, BlobFile::Whole)?;
            return Ok(None);
        }
        self.mark(&file, &stat);
        Ok(Some(file))
    }

    /// Marks a whole blob as used now, unless that was noted a moment ago.
    pub fn mark_used(&self, file: &File) {
        if let Ok(stat) = rustix::fs::fstat(file) {
            self.mark(file, &stat);
        }
    }

    fn mark(&self, file: &File, stat: &rustix::fs::Stat) {
        if self.is_atime_stale(stat)
            && let Ok(file) = file.try_clone()
        {
            // Best effort: without it, eviction is a little less fair.
            let _ = self.writer.run(move || {
                io::touch(&file);
                Ok(())
            });
        }
    }

    fn is_atime_stale(&self, stat: &rustix::fs::Stat) -> bool {
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(stat.st_atime.max(0) as u64);
        (self.now)().duration_since(used).is_ok_and(|age| age > ATIME_UPDATE_INTERVAL)
    }

    /// The file of `key` that has this `form`, if it is here.
    pub fn find(&self, key: &Key, form: BlobFile) -> Option<CachedFile> {
        self.layout().stat(key, form).map(|stat| CachedFile::new(*key, form, &stat))
    }

    /// Whether the cache has the whole blob. Cheaper than [`open_whole`](Self::open_whole), and not counted as a use of it.
    pub fn has(&self, key: &Key, size: u64) -> bool {
        self.layout().has(key, size)
    }

    /// The part of a blob that an earlier run left; `None` when there is none.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn resume(&self, key: &Key, size: u64) -> Result<Option<Arc<PartialBlob>>> {
        if self.layout().stat(key, BlobFile::Map).is_none() {
            return Ok(None);
        }
        self.begin(key, size).map(Some)
    }

    /// The part of a blob, with the blocks that an earlier run left. Its users share it.
    ///
    /// # Errors
    /// [`Kind::Disk`] and [`Kind::NoSpace`]; [`Kind::Busy`] while the disk does not answer.
    pub fn begin(&self, key: &Key, size: u64) -> Result<Arc<PartialBlob>> {
        if let Some(part) = self.parts.find(key) {
            if part.size() == size {
                return Ok(part);
            }
            let text =
                format!("blob {key}: the server gave one version two sizes ({}, {size} bytes)", part.size());
            return Err(Error::new(Kind::Changed, text));
        }
        let (layout, space, writer) =
            (self.partition.layout.clone(), self.space.clone(), self.writer.clone());
        let (parts, blob, now) = (self.parts.clone(), (*key, size), self.now());
        self.writer.run(move || {
            let part = PartialBlob::open(layout, space, writer, blob, now)?;
            Ok(parts.share(Arc::new(part)))
        })
    }

    /// Marks the blob `key` as used, if it is whole. Without opening it: there may be a million of them.
    pub fn mark_key_used(&self, key: &Key) {
        if self.layout().stat(key, BlobFile::Whole).is_some_and(|stat| self.is_atime_stale(&stat)) {
            io::touch_at(self.layout().blobs(), &Layout::name(key, BlobFile::Whole));
        }
    }

    /// Makes the names of all blobs that became whole durable: with their content, which already is, they survive a
    /// power cut.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn sync_names(&self) -> Result<()> {
        self.layout().sync_names().map_err(|e| Error::with(Kind::Disk, "cannot make the cache durable", e))
    }

    /// Removes the whole blob `key`, whose `file` was damaged when it had this `version`, and tells its listeners. The file is
    /// removed; where the kernel reads it by itself, it becomes a part, and what is fetched again is written into it. False, and
    /// nothing changes, where the blob is another file by now, or was repaired: another verification was faster.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub(crate) fn withdraw(&self, key: &Key, file: &File, version: &FileVersion) -> Result<bool> {
        let removal = {
            let _withdrawal = self.partition.withdrawals.begin(key);
            let fault = |e: std::io::Error| self.layout().fault("stat", key, e);
            let Some(named) = self.layout().open_blob(key, BlobFile::Whole)? else { return Ok(false) };
            if FileVersion::of(&named).map_err(fault)? != *version {
                return Ok(false);
            }
            let removal = self.mark_removal(key);
            if self.removal_listeners().need_file(key, file) {
                file_version::note_damage(file, self.now());
                self.parts.forget_after(key, || self.layout().demote(key))?;
            } else {
                let stat = rustix::fs::fstat(file).map_err(|e| fault(e.into()))?;
                self.partition.remove_damaged(key, file)?;
                // stat(2) counts in 512 bytes.
                self.partition.subtract(stat.st_blocks as u64 * 512);
            }
            removal
        };
        self.notify_removed(&removal, Some(file));
        Ok(true)
    }

    /// Forgets the blocks of `part`, which are not what the origin publishes. Its file is removed, too, unless the kernel reads it
    /// by itself.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub(crate) fn discard(&self, part: &PartialBlob) -> Result<()> {
        if self.removal_listeners().need_file(part.key(), part.file()) {
            self.parts.forget_after(part.key(), || self.layout().remove(part.key(), BlobFile::Map))
        } else {
            part.discard()
        }
    }

    /// Marks that damaged content of `key` is about to be removed.
    pub(crate) fn mark_removal(&self, key: &Key) -> Removal {
        self.partition.removal_marks.mark(key)
    }

    /// Tells the listeners of this tenant of `removal`, and of the removed `file` where that was whole.
    pub(crate) fn notify_removed(&self, removal: &Removal, file: Option<&File>) {
        self.partition.removal_listeners.notify(removal, file);
    }

    /// Remembers the removed `file` of `key`, so that a [scrub](scrub::scrub) reports that it is still being read.
    pub(crate) fn watch_removed(&self, key: &Key, file: &Arc<File>) {
        self.partition.watch_removed(*key, file);
    }

    /// The listeners to removals.
    pub fn removal_listeners(&self) -> &RemovalListeners {
        &self.partition.removal_listeners
    }
}
