//! Announcements: tells the cluster which snapshots are complete on this node.
//!
//! A snapshot is announced when it is staged, and stays so when it is not in use any more, until something of it is evicted or
//! removed. What an earlier run left whole in the cache is announced when the node joins.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::blob::Key;
use crate::cache::inventory;
use crate::cache::partition::Partition;
use crate::cache::removal::RemovalListener;
use crate::cache::removal_marks::Removal;
use crate::digest::Digest;
use crate::error::Result;
use crate::manifest::Manifest;
use crate::peer::client::{Peers, snapshot_token};

/// The number of snapshots that a node announces, the newest: every member gets every announcement. The owners have all others,
/// too.
const MAX_ANNOUNCED: usize = 64;

/// The announcements of a node, for all tenants.
#[derive(Debug)]
pub struct Announcements {
    peers: Arc<Peers>,
    /// The newest last.
    whole: Mutex<VecDeque<WholeSnapshot>>,
}

/// A snapshot of which everything is in the cache. Its manifest is mapped, and costs no memory.
struct WholeSnapshot {
    token: u64,
    manifest: Arc<Manifest>,
    partition: Arc<Partition>,
}

impl fmt::Debug for WholeSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WholeSnapshot({:?})", self.manifest.source())
    }
}

impl WholeSnapshot {
    fn new(id: &Digest, manifest: Arc<Manifest>, partition: Arc<Partition>) -> Self {
        Self { token: snapshot_token(partition.layout.tenant(), id), manifest, partition }
    }

    /// Whether all blobs that `choose` takes are whole in the cache. Touches the local disk.
    fn has_all(&self, choose: impl Fn(&Key) -> bool) -> bool {
        let has = |blob| -> Result<bool> {
            let (key, size) = (self.manifest.key(blob)?, self.manifest.blob_size(blob)?);
            Ok(size == 0 || !choose(&key) || self.partition.layout.has(&key, size))
        };
        (0..self.manifest.blobs()).all(|blob| has(blob).unwrap_or(false))
    }

    /// Whether it is a mirrored snapshot: no others are announced.
    fn is_mirrored(&self) -> bool {
        (0..self.manifest.blobs()).all(|blob| matches!(self.manifest.key(blob), Ok(Key::Content(_))))
    }
}

impl Announcements {
    /// No announcements yet, to `peers`.
    pub fn new(peers: Arc<Peers>) -> Self {
        Self { peers, whole: Mutex::default() }
    }

    /// The peers that receive the announcements.
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// Announces that all of the snapshot `id` is in `partition`, where it is leased.
    pub(crate) fn announce(&self, id: &Digest, manifest: Arc<Manifest>, partition: Arc<Partition>) {
        let snapshot = WholeSnapshot::new(id, manifest, partition);
        self.change(|whole| {
            whole.retain(|other| other.token != snapshot.token);
            whole.push_back(snapshot);
            if whole.len() > MAX_ANNOUNCED {
                whole.pop_front();
            }
        });
    }

    /// Announces the complete snapshots of `partition`, the last used first, after earlier announcements. Looks at all its blobs.
    ///
    /// # Errors
    /// [`Kind::Disk`](crate::error::Kind::Disk).
    pub(crate) fn announce_found(&self, partition: &Arc<Partition>) -> Result<()> {
        let mut found = inventory::take(partition)?.snapshots;
        found.retain(|line| line.files_local == line.files);
        found.sort_by_key(|line| std::cmp::Reverse(line.used_at));
        let mut manifests: HashMap<_, _> = inventory::manifests(partition)?.into_iter().collect();
        for line in found.iter().take(MAX_ANNOUNCED) {
            let Some(manifest) = manifests.remove(&line.snapshot) else { continue };
            let snapshot = WholeSnapshot::new(&line.snapshot, Arc::new(manifest), Arc::clone(partition));
            self.change(|whole| {
                let is_known = whole.iter().any(|other| other.token == snapshot.token);
                // Checked once more: removals from now on wait for the lock, and withdraw it.
                if !is_known
                    && whole.len() < MAX_ANNOUNCED
                    && snapshot.is_mirrored()
                    && snapshot.has_all(|_| true)
                {
                    whole.push_front(snapshot);
                }
            });
        }
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut VecDeque<WholeSnapshot>)) {
        let mut whole = self.whole.lock();
        let tokens = |whole: &VecDeque<WholeSnapshot>| -> Vec<u64> {
            whole.iter().rev().map(|snapshot| snapshot.token).collect()
        };
        let before = tokens(&whole);
        change(&mut whole);
        let now = tokens(&whole);
        if now != before {
            self.peers.announce(now);
        }
    }
}

impl RemovalListener for Announcements {
    fn blob_removed(&self, removal: &Removal, _: Option<&File>) {
        self.blobs_evicted(&HashSet::from([*removal.key()]));
    }

    fn blobs_evicted(&self, keys: &HashSet<Key>) {
        // The blobs may be back already.
        self.change(|whole| whole.retain(|snapshot| snapshot.has_all(|key| keys.contains(key))));
    }
}
