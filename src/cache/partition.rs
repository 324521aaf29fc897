//! Partitions: one tenant's blobs, leases and quota in a node's cache.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, Stat};

use crate::blob::Key;
use crate::digest::Digest;
use crate::error::{Error, Result};

use super::layout::{BlobFile, Layout};
use super::leases::{LeaseSet, LeaseTable, ManifestLease};
use super::open_manifests::OpenManifests;
use super::removal::RemovalListeners;
use super::removal_marks::RemovalMarks;
use super::removed_files::RemovedFiles;
use super::verification_time;
use super::withdrawals::Withdrawals;

/// One tenant's partition of a cache.
#[derive(Debug)]
pub struct Partition {
    /// The directory of its blobs.
    pub layout: Arc<Layout>,
    /// The leases on its blobs.
    pub leases: Arc<LeaseTable>,
    /// The most bytes that its blobs may occupy, within the limits of the whole cache.
    pub quota: Option<u64>,
    /// Listeners to the removal of damaged blobs.
    pub removal_listeners: RemovalListeners,
    /// The manifests that snapshots in use read.
    pub(crate) open_manifests: OpenManifests,
    /// Marks of damaged content that was removed a moment ago.
    pub(super) removal_marks: Arc<RemovalMarks>,
    /// Damaged files that are removed, as long as this process has them open.
    removed: Mutex<Vec<(Key, Weak<File>)>>,
    /// Records of those that any process has open or mapped.
    removed_files: RemovedFiles,
    /// Damaged whole blobs that are being withdrawn.
    pub(super) withdrawals: Withdrawals,
    used: AtomicI64,
    /// Bytes that are reserved but perhaps not written yet, so that no scan of the disk finds them.
    pending: AtomicI64,
    /// The leases of its pins.
    pinned: Mutex<HashMap<Digest, (LeaseSet, ManifestLease)>>,
}

/// One file of a blob, as a scan of the directory finds it.
#[derive(Clone, Copy, Debug)]
pub struct CachedFile {
    /// When it was last used, in seconds since 1970.
    pub used_at: i64,
    /// When all of it was last known to be right, in seconds since 1970; `None` where it was written since.
    pub verified_at: Option<i64>,
    /// The bytes that it occupies.
    pub bytes: u64,
    /// The length of its content, in bytes.
    pub size: u64,
    /// The blob's key.
    pub key: Key,
    /// All of the blob, or a part.
    pub form: BlobFile,
}

impl CachedFile {
    /// The file of `key` that the disk tells `stat` of.
    pub(super) fn new(key: Key, form: BlobFile, stat: &Stat) -> Self {
        let (bytes, size) = (stat.st_blocks as u64 * 512, stat.st_size as u64);
        let (used_at, verified_at) = (stat.st_atime, verification_time::time_of(stat));
        Self { used_at, verified_at, bytes, size, key, form }
    }

    /// Whether it was not verified within `period`, in seconds since 1970.
    pub fn is_due(&self, period: &RangeInclusive<i64>) -> bool {
        self.verified_at.is_none_or(|verified| !period.contains(&verified))
    }
}

impl Partition {
    /// The partition of the tenant whose blobs lie in `layout`, with its `removal_marks` and `removed_files`. Nothing is counted
    /// yet.
    pub(super) fn new(
        layout: Layout,
        removal_marks: Arc<RemovalMarks>,
        removed_files: RemovedFiles,
        quota: Option<u64>,
    ) -> Self {
        let (used, pending) = (AtomicI64::new(0), AtomicI64::new(0));
        let (pinned, removal_listeners) = (Mutex::default(), RemovalListeners::default());
        let (layout, leases) = (Arc::new(layout), Arc::default());
        let (removed, open_manifests, withdrawals) = Default::default();
        Self {
            layout,
            leases,
            quota,
            removal_listeners,
            open_manifests,
            removal_marks,
            removed,
            removed_files,
            withdrawals,
            used,
            pending,
            pinned,
        }
    }

    /// Removes the damaged whole `file` of `key`, and records it for as long as it is in use.
    ///
    /// # Errors
    /// [`Kind::Disk`](crate::error::Kind::Disk).
    pub(super) fn remove_damaged(&self, key: &Key, file: &File) -> Result<()> {
        self.removed_files.remove(key, file, || self.layout.remove(key, BlobFile::Whole))?;
        // A disk that fails here must not keep those from knowing who read it.
        if let Err(error) = self.layout.sync_removal(key) {
            tracing::warn!(%key, %error, "damage that was removed may come back after a power cut");
        }
        Ok(())
    }

    /// Remembers a damaged file that is removed, as long as it is open.
    pub(super) fn watch_removed(&self, key: Key, file: &Arc<File>) {
        self.removed.lock().push((key, Arc::downgrade(file)));
    }

    /// The blobs of which a damaged file is removed but still open or mapped. Where the kernel does not tell, those that this
    /// process has open.
    ///
    /// # Errors
    /// [`Kind::Disk`](crate::error::Kind::Disk).
    pub(super) fn still_open(&self) -> Result<BTreeSet<Key>> {
        let in_use = self.removed_files.in_use(self.layout.blobs());
        let in_use = in_use.map_err(|e| Error::disk("cannot use the cache", e))?.into_iter();
        let mut removed = self.removed.lock();
        // A file with a name was not removed, but is repaired.
        let is_removed = |file: &File| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0);
        removed.retain(|(_, file)| file.upgrade().is_some_and(|file| is_removed(&file)));
        Ok(removed.iter().map(|(key, _)| *key).chain(in_use).collect())
    }

    /// Keeps the lease of a pin.
    pub(super) fn hold_pin(&self, id: Digest, held: (LeaseSet, ManifestLease)) {
        self.pinned.lock().insert(id, held);
    }

    /// Drops the lease of a pin.
    pub(super) fn release_pin(&self, id: &Digest) {
        self.pinned.lock().remove(id);
    }

    /// Bytes that its blobs occupy, or will.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed).max(0) as u64
    }

    /// Bytes that are about to be written.
    pub(super) fn pending(&self) -> u64 {
        self.pending.load(Relaxed).max(0) as u64
    }

    /// Counts `bytes` that are about to be written.
    pub(super) fn reserve(&self, bytes: u64) {
        self.used.fetch_add(bytes as i64, Relaxed);
        self.pending.fetch_add(bytes as i64, Relaxed);
    }

    /// Ends a reservation of `bytes`. If they were `written`, they stay counted as used.
    pub(super) fn end_reservation(&self, bytes: u64, written: bool) {
        self.pending.fetch_sub(bytes as i64, Relaxed);
        if !written {
            self.subtract(bytes);
        }
    }

    /// Counts `bytes` that were removed.
    pub(super) fn subtract(&self, bytes: u64) {
        self.used.fetch_sub(bytes as i64, Relaxed);
    }

    /// Sets the used bytes to those found on the disk plus those still to be written: so the count follows
    /// removals from outside, and what the file system allocates for small files.
    pub(super) fn recount(&self, found: &[CachedFile]) {
        let found: u64 = found.iter().map(|found| found.bytes).sum();
        self.used.store(found as i64 + self.pending.load(Relaxed), Relaxed);
    }

    /// Every blob there is.
    pub fn scan(&self) -> Vec<CachedFile> {
        let mut all = Vec::new();
        let mut buffer = Vec::with_capacity(64 << 10);
        for shard in 0..=255u8 {
            let name = format!("{shard:02x}");
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(directory) = rustix::fs::openat(self.layout.blobs(), name, flags, Mode::empty()) else {
                continue;
            };
            let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
            while let Some(Ok(entry)) = entries.next() {
                let Some((key, form)) = parse(entry.file_name().to_bytes()) else { continue };
                let stat = rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                if let Ok(stat) = stat {
                    all.push(CachedFile::new(key, form, &stat));
                }
            }
        }
        all
    }

    /// Removes a blob unless it is leased by now, and returns whether it did. The name goes under the lease
    /// lock, the content after it: that can take a while for a large file.
    pub fn remove(&self, found: &CachedFile) -> bool {
        let removed = self.leases.unless_leased(&found.key, || {
            let kept_open = self.layout.open_blob(&found.key, found.form).ok().flatten();
            if found.form == BlobFile::Part {
                self.layout.remove(&found.key, BlobFile::Map)?;
            }
            self.layout.remove(&found.key, found.form)?;
            Ok::<_, Error>(kept_open)
        });
        match removed {
            Some(Ok(_kept_open)) => {
                self.subtract(found.bytes);
                true
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot evict");
                false
            }
            None => false,
        }
    }
}

/// Parses a file name into the blob's key and the kind of file. Maps go with their parts.
fn parse(name: &[u8]) -> Option<(Key, BlobFile)> {
    let name = std::str::from_utf8(name).ok()?;
    let (stem, form) = match name.strip_suffix(".part") {
        Some(stem) => (stem, BlobFile::Part),
        None => (name, BlobFile::Whole),
    };
    Some((stem.parse().ok()?, form))
}
