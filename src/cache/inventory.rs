//! Inventory: what a cache holds, by snapshot; and eviction by hand.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::SystemTime;

use crate::blob::Key;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::{Manifest, Node};

use super::layout::BlobFile;
use super::partition::{CachedFile, Partition};
use super::pins;

/// A snapshot that the cache has something of, or knows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedSnapshot {
    /// The source, as its origin names it.
    pub source: String,
    /// The id.
    pub snapshot: Digest,
    /// The number of its regular files.
    pub files: u64,
    /// The number of them that are local.
    pub files_local: u64,
    /// The sizes of its blobs together, in bytes.
    pub bytes: u64,
    /// The bytes that those occupy which are here, as a whole or in part. Several snapshots may share them.
    pub bytes_local: u64,
    /// When something of it was last used, in seconds since 1970; `None`: there is nothing of it.
    pub used_at: Option<i64>,
    /// Whether the snapshot is pinned.
    pub pinned: bool,
}

/// The contents of one tenant's cache, by snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The snapshots, in no order.
    pub snapshots: Vec<CachedSnapshot>,
    /// Bytes that all its blobs occupy.
    pub bytes: u64,
    /// Bytes of blobs that no snapshot here has.
    pub others: u64,
}

/// The outcome of an eviction by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionTotals {
    /// Snapshots that were forgotten.
    pub snapshots: u64,
    /// Blobs that were removed.
    pub blobs: u64,
    /// Bytes that they occupied.
    pub bytes: u64,
    /// Bytes that stay, because they are held.
    pub held: u64,
}

/// Scans the whole cache. Takes seconds for a million blobs.
///
/// # Errors
/// [`Kind::Disk`](crate::error::Kind::Disk).
pub fn take(partition: &Partition) -> Result<Inventory> {
    let found: HashMap<Key, CachedFile> =
        partition.scan().into_iter().map(|found| (found.key, found)).collect();
    let pinned: HashSet<Digest> = pins::list(partition)?.into_iter().collect();
    let mut inventory =
        Inventory { bytes: found.values().map(|found| found.bytes).sum(), ..Inventory::default() };
    let mut named = HashSet::new();
    for (snapshot, manifest) in manifests(partition)? {
        match line(snapshot, &manifest, &found, &mut named) {
            Ok(line) => {
                inventory.snapshots.push(CachedSnapshot { pinned: pinned.contains(&snapshot), ..line })
            }
            Err(error) => tracing::warn!(%error, %snapshot, "skipping a manifest of the cache"),
        }
    }
    inventory.others =
        found.values().filter(|found| !named.contains(&found.key)).map(|found| found.bytes).sum();
    Ok(inventory)
}

fn line(
    snapshot: Digest,
    manifest: &Manifest,
    found: &HashMap<Key, CachedFile>,
    named: &mut HashSet<Key>,
) -> Result<CachedSnapshot> {
    let (mut bytes, mut bytes_local, mut used_at) = (0, 0, None);
    let mut whole = vec![false; manifest.blobs() as usize];
    for blob in 0..manifest.blobs() {
        let (size, key) = (manifest.blob_size(blob)?, manifest.key(blob)?);
        bytes += size;
        whole[blob as usize] = size == 0;
        if let Some(here) = found.get(&key) {
            bytes_local += here.bytes;
            used_at = used_at.max(Some(here.used_at));
            whole[blob as usize] |= here.form == BlobFile::Whole && here.size == size;
            named.insert(key);
        }
    }
    let mut files_local = 0;
    for index in 0..manifest.entries() {
        if let Node::File(slice) = manifest.entry(index)?.node {
            files_local += u64::from(whole.get(slice.blob as usize).copied().unwrap_or_default());
        }
    }
    let (source, files) = (manifest.source().to_owned(), manifest.files());
    Ok(CachedSnapshot { source, snapshot, files, files_local, bytes, bytes_local, used_at, pinned: false })
}

/// All manifests of a tenant, each with its digest. Their contents are not verified.
///
/// # Errors
/// [`Kind::Disk`](crate::error::Kind::Disk).
pub fn manifests(partition: &Partition) -> Result<Vec<(Digest, Manifest)>> {
    let list = || std::fs::read_dir(partition.layout.manifests())?.collect::<io::Result<Vec<_>>>();
    let entries = list().map_err(|e| Error::disk("cannot read the manifests of the cache", e))?.into_iter();
    let known = entries.filter_map(|entry| {
        let id: Digest = entry.file_name().to_str()?.parse().ok()?;
        Some((id, Manifest::open(&partition.layout.open_manifest(&id).ok()?).ok()?))
    });
    Ok(known.collect())
}

/// Removes the manifests of snapshots that have no content in the cache any more: no limit counts manifests. Such a snapshot has
/// nothing among the files `found` of the partition, is not in use, and came before the time `before`. Returns the number of the
/// removed ones.
///
/// # Errors
/// [`Kind::Disk`](crate::error::Kind::Disk).
pub fn forget_gone(partition: &Partition, found: &[CachedFile], before: SystemTime) -> Result<u64> {
    let kept: HashSet<Key> = found.iter().map(|found| found.key).collect();
    let mut forgotten = 0;
    for (id, manifest) in manifests(partition)? {
        let path = partition.layout.manifests().join(id.to_string());
        // The other times are those of its verification.
        let is_old = path.metadata().and_then(|stat| stat.created()).is_ok_and(|created| created < before);
        let is_kept = |blob| manifest.key(blob).map_or(true, |key| kept.contains(&key));
        if !is_old || (0..manifest.blobs()).any(is_kept) {
            continue;
        }
        forgotten += u64::from(forget(partition, &id)?);
    }
    Ok(forgotten)
}

/// Removes the manifest `id`; false where its snapshot is in use.
fn forget(partition: &Partition, id: &Digest) -> Result<bool> {
    let path = partition.layout.manifests().join(id.to_string());
    let removed = partition.leases.unless_manifest_leased(id, || std::fs::remove_file(path));
    let failed = |e| Error::disk("cannot remove a manifest from the cache", e);
    removed.transpose().map(|removed| removed.is_some()).map_err(failed)
}

/// Removes the blobs that only snapshots have which `choose` selects, and forgets those snapshots unless they
/// are in use. With `strays` blobs of no snapshot go as well. What is held stays.
///
/// # Errors
/// [`Kind::Disk`](crate::error::Kind::Disk).
pub fn evict(
    partition: &Partition,
    choose: impl Fn(&Digest, &str) -> bool,
    strays: bool,
) -> Result<EvictionTotals> {
    let (mut chosen, mut others) = (HashSet::new(), HashSet::new());
    let mut forgotten = Vec::new();
    for (id, manifest) in manifests(partition)? {
        let is_chosen = choose(&id, manifest.source());
        let blobs = if is_chosen { &mut chosen } else { &mut others };
        for blob in 0..manifest.blobs() {
            blobs.insert(manifest.key(blob)?);
        }
        if is_chosen {
            forgotten.push(id);
        }
    }
    let (mut evicted, mut keys) = (EvictionTotals::default(), HashSet::new());
    for found in partition.scan() {
        let is_stray = !chosen.contains(&found.key) && !others.contains(&found.key);
        let goes =
            if is_stray { strays } else { chosen.contains(&found.key) && !others.contains(&found.key) };
        if !goes {
            continue;
        }
        if partition.remove(&found) {
            keys.insert(found.key);
            evicted.blobs += 1;
            evicted.bytes += found.bytes;
        } else {
            evicted.held += found.bytes;
        }
    }
    partition.removal_listeners.notify_evicted(&keys);
    for id in forgotten {
        evicted.snapshots += u64::from(forget(partition, &id)?);
    }
    Ok(evicted)
}
