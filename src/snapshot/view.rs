//! Views: a snapshot's content in another tree than that of its manifest.

use std::sync::Arc;

use super::Snapshot;
use crate::digest::Digest;
use crate::fetch::Ladder;
use crate::manifest::Manifest;

/// Another tree of the same content.
#[derive(Debug)]
pub(crate) struct SnapshotView {
    /// The view of the snapshot's manifest.
    pub(crate) manifest: Arc<Manifest>,
    /// The origin of the blobs that the view has beside those of the manifest.
    pub(crate) ladder: Arc<Ladder>,
}

impl Snapshot {
    /// The id of the tree that is shown: of the snapshot's own, or of the view of it.
    pub fn tree_id(&self) -> Digest {
        match self.view.get() {
            Some(view) => Digest::of(&[self.id.0, view.manifest.digest().0].concat()),
            None => self.id,
        }
    }

    /// The manifest that is shown, shared.
    pub(crate) fn shared_manifest(&self) -> Arc<Manifest> {
        self.view.get().map_or(&self.manifest, |view| &view.manifest).clone()
    }

    /// The manifest as it was listed, whatever is shown.
    pub(crate) fn listed_manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Shows `view` from now on. Call it once, before it is mounted.
    pub(crate) fn show(&self, view: SnapshotView) {
        self.view.set(view).ok();
    }

    /// The origin of blob `blob`.
    pub(super) fn ladder_of(&self, blob: u32) -> &Arc<Ladder> {
        let own = self.view.get().filter(|_| blob >= self.manifest.blobs());
        own.map_or(&self.ladder, |view| &view.ladder)
    }
}
