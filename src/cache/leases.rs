//! Leases: keep blobs and manifests from being evicted.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::blob::Key;
use crate::digest::Digest;
use crate::error::Result;
use crate::manifest::Manifest;

use super::layout::on_disk;

/// All leases of one tenant. A blob under a lease is not evicted.
#[derive(Debug, Default)]
pub struct LeaseTable {
    held: Mutex<LeaseCounts>,
}

#[derive(Debug, Default)]
struct LeaseCounts {
    single: HashMap<Key, usize>,
    sets: Vec<Arc<LeaseGroup>>,
    manifests: HashMap<Digest, usize>,
}

/// The blobs of a snapshot, leased together.
#[derive(Debug)]
pub struct LeaseGroup {
    label: String,
    /// The [`short`] name of each, sorted, and the bytes that it occupies: 16 bytes a blob instead of a hundred, so that a
    /// snapshot of a million blobs can be held. Two blobs with one short name merely keep each other.
    blobs: Vec<(u64, u64)>,
}

impl LeaseGroup {
    /// The `blobs`, each with its size in bytes, of what messages call `label`.
    pub fn new(label: impl Into<String>, blobs: impl Iterator<Item = (Key, u64)>) -> Self {
        let mut blobs: Vec<_> = blobs.map(|(key, size)| (short(&key), on_disk(size))).collect();
        blobs.sort_unstable();
        blobs.dedup_by_key(|(name, _)| *name);
        blobs.shrink_to_fit();
        Self { label: label.into(), blobs }
    }

    /// All blobs of `manifest`.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt).
    pub fn of(manifest: &Manifest) -> Result<Self> {
        let mut fault = None;
        // One after the other: together the keys of a large manifest would take a hundred megabytes.
        let sized = |blob| Ok((manifest.key(blob)?, manifest.blob_size(blob)?));
        let blobs = (0..manifest.blobs()).map_while(|blob| match sized(blob) {
            Ok(blob) => Some(blob),
            Err(error) => {
                fault = Some(error);
                None
            }
        });
        let group = Self::new(manifest.source(), blobs);
        fault.map_or(Ok(group), Err)
    }

    /// The name in messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The bytes that they occupy when all are local.
    pub fn bytes(&self) -> u64 {
        self.blobs.iter().map(|(_, bytes)| bytes).sum()
    }

    fn has(&self, name: u64) -> bool {
        self.blobs.binary_search_by_key(&name, |(name, _)| *name).is_ok()
    }
}

/// The bytes that `groups` occupy together, each blob counted once.
pub fn union_bytes<'a>(groups: impl Iterator<Item = &'a LeaseGroup>) -> u64 {
    let mut blobs: Vec<(u64, u64)> = Vec::new();
    let mut seen: Vec<&LeaseGroup> = Vec::new();
    for group in groups {
        // Most blobs that are held twice belong to the same snapshot.
        if seen.iter().all(|other| other.blobs != group.blobs) {
            blobs.extend_from_slice(&group.blobs);
            seen.push(group);
        }
    }
    if seen.len() > 1 {
        blobs.sort_unstable();
        blobs.dedup_by_key(|(name, _)| *name);
    }
    blobs.iter().map(|(_, bytes)| bytes).sum()
}

/// The first 8 bytes of a key's digest.
fn short(key: &Key) -> u64 {
    let (Key::Content(digest) | Key::Origin(digest)) = key;
    digest.0.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl LeaseTable {
    /// Leases one blob.
    pub fn lease(self: &Arc<Self>, key: Key) -> BlobLease {
        *self.held.lock().single.entry(key).or_default() += 1;
        BlobLease { leases: self.clone(), key }
    }

    /// Leases many blobs at once.
    pub fn lease_all(self: &Arc<Self>, group: LeaseGroup) -> LeaseSet {
        let group = Arc::new(group);
        self.held.lock().sets.push(group.clone());
        LeaseSet { leases: self.clone(), group }
    }

    /// Leases a manifest.
    pub fn lease_manifest(self: &Arc<Self>, manifest: Digest) -> ManifestLease {
        *self.held.lock().manifests.entry(manifest).or_default() += 1;
        ManifestLease { leases: self.clone(), manifest }
    }

    /// All groups that are leased.
    pub fn groups(&self) -> Vec<Arc<LeaseGroup>> {
        self.held.lock().sets.clone()
    }

    /// The bytes that all groups occupy together with `more`, each blob counted once.
    pub fn bytes_with(&self, more: &[LeaseGroup]) -> u64 {
        union_bytes(self.groups().iter().map(Arc::as_ref).chain(more))
    }

    /// Returns the number of blobs that are leased one by one: those that are being read or fetched.
    pub fn single_leases(&self) -> usize {
        self.held.lock().single.len()
    }

    /// Whether `key` is leased.
    pub fn is_leased(&self, key: &Key) -> bool {
        self.unless_leased(key, || ()).is_none()
    }

    /// Runs `remove` if the manifest is not leased, and lets no lease begin before `remove` is done.
    pub fn unless_manifest_leased<T>(&self, manifest: &Digest, remove: impl FnOnce() -> T) -> Option<T> {
        let held = self.held.lock();
        (!held.manifests.contains_key(manifest)).then(remove)
    }

    /// Runs `remove` if `key` is not leased, and lets no lease begin before `remove` is done.
    pub fn unless_leased<T>(&self, key: &Key, remove: impl FnOnce() -> T) -> Option<T> {
        let held = self.held.lock();
        let name = short(key);
        let leased = held.single.contains_key(key) || held.sets.iter().any(|set| set.has(name));
        (!leased).then(remove)
    }
}

/// A lease on one blob, released when it is dropped.
#[derive(Debug)]
pub struct BlobLease {
    leases: Arc<LeaseTable>,
    key: Key,
}

impl Drop for BlobLease {
    fn drop(&mut self) {
        let mut held = self.leases.held.lock();
        if let Some(count) = held.single.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                held.single.remove(&self.key);
            }
        }
    }
}

/// A lease on many blobs, released when it is dropped.
#[derive(Debug)]
pub struct LeaseSet {
    leases: Arc<LeaseTable>,
    group: Arc<LeaseGroup>,
}

impl Drop for LeaseSet {
    fn drop(&mut self) {
        let mut held = self.leases.held.lock();
        if let Some(at) = held.sets.iter().position(|set| Arc::ptr_eq(set, &self.group)) {
            held.sets.swap_remove(at);
        }
    }
}

/// A lease on a manifest, released when it is dropped.
#[derive(Debug)]
pub struct ManifestLease {
    leases: Arc<LeaseTable>,
    manifest: Digest,
}

impl Drop for ManifestLease {
    fn drop(&mut self) {
        let mut held = self.leases.held.lock();
        if let Some(count) = held.manifests.get_mut(&self.manifest) {
            *count -= 1;
            if *count == 0 {
                held.manifests.remove(&self.manifest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blob_without_leases_is_free() {
        let leases = Arc::new(LeaseTable::default());
        let (one, two) = (Key::Content(Digest::of(b"1")), Key::Content(Digest::of(b"2")));
        let first = leases.lease(one);
        let second = leases.lease(one);
        let set = leases.lease_all(LeaseGroup::new("both", [(one, 1), (two, 5000)].into_iter()));
        let more = LeaseGroup::new("more", [(two, 5000), (Key::Origin(Digest::of(b"3")), 1)].into_iter());
        assert_eq!(leases.bytes_with(&[]), 3 * 4096);
        assert_eq!(leases.bytes_with(&[more]), 4 * 4096);
        assert!(leases.unless_leased(&two, || ()).is_none());
        drop(set);
        assert!(leases.unless_leased(&two, || ()).is_some());
        drop(first);
        assert!(leases.unless_leased(&one, || ()).is_none());
        drop(second);
        assert!(leases.unless_leased(&one, || ()).is_some());
        assert_eq!(leases.bytes_with(&[]), 0);
    }

    #[test]
    fn manifest_without_leases_is_free() {
        let leases = Arc::new(LeaseTable::default());
        let manifest = Digest::of(b"manifest");
        let held = [(); 2].map(|()| leases.lease_manifest(manifest));
        for lease in held {
            assert!(leases.unless_manifest_leased(&manifest, || ()).is_none());
            drop(lease);
        }
        assert!(leases.unless_manifest_leased(&manifest, || ()).is_some());
    }
}
