//! Open manifests: those that snapshots in use read in place.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::digest::Digest;
use crate::manifest::Manifest;

/// The open manifests of one tenant, by their digests. Snapshots that were opened one after the other have a mapping each.
#[derive(Debug, Default)]
pub(crate) struct OpenManifests {
    open: Mutex<HashMap<Digest, Vec<Weak<Manifest>>>>,
}

impl OpenManifests {
    /// Adds `manifest`, which is to have the digest `id`, for as long as it is in use.
    pub(crate) fn add(&self, id: Digest, manifest: &Arc<Manifest>) {
        let mut open = self.open.lock();
        // Rarely, so that the cost for each is small.
        if open.len().is_power_of_two() {
            open.retain(|_, manifests| manifests.iter().any(|manifest| manifest.strong_count() > 0));
        }
        let manifests = open.entry(id).or_default();
        manifests.retain(|manifest| manifest.strong_count() > 0);
        manifests.push(Arc::downgrade(manifest));
    }

    /// The manifests that are to have the digest `id`.
    pub(super) fn of(&self, id: &Digest) -> Vec<Arc<Manifest>> {
        let open = self.open.lock();
        open.get(id).map(|manifests| manifests.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
    }

    /// The digests of all.
    pub(super) fn ids(&self) -> Vec<Digest> {
        let open = self.open.lock();
        let in_use = open.iter().filter(|(_, manifests)| manifests.iter().any(|one| one.strong_count() > 0));
        in_use.map(|(id, _)| *id).collect()
    }
}
