//! Local files: snapshots of a mirror whose files are on this machine already, such as what a job has just saved.

use std::sync::Arc;

use crate::error::Result;
use crate::fetch::Ladder;
use crate::mirror::Mirror;
use crate::mirror::catalog::Ref;
use crate::snapshot::Snapshot;
use crate::tier::Tier;
use crate::tier::lazy_origin::{LazyOrigin, OriginOpener};
use crate::volume::SealedUnit;

use super::Engine;

impl Engine {
    /// Makes readable what `mirror` has as `found`, and what the origin that `open` opens has on this machine: it is read there,
    /// and only what is no longer there comes from the mirror. Every block is verified all the same. None of it counts as traffic.
    ///
    /// # Errors
    /// Those of [`mirrored`](Self::mirrored).
    pub async fn mirrored_from_files(
        &self,
        mirror: &Mirror,
        found: &Ref,
        open: OriginOpener,
    ) -> Result<Arc<Snapshot>> {
        let manifest = Arc::new(self.manifest(mirror, &found.manifest).await?);
        let files = LazyOrigin::new(open, manifest.clone());
        let tiers: Vec<Arc<dyn Tier>> = vec![Arc::new(files), Arc::new(mirror.clone())];
        let ladder = Arc::new(Ladder::new(tiers, Arc::default(), self.node.buffers.clone()));
        let shared = (self.resources.clone(), self.contents.clone());
        let snapshot = Snapshot::new(found.manifest, manifest, Default::default(), shared, ladder);
        Ok(Arc::new(snapshot.with_announcements(self.announcements())))
    }

    /// Leases `snapshot`, and moves those files of `unit` into the cache that are whole blobs of it, as
    /// [`move_into`](SealedUnit::move_into) has it. Touches the local disk.
    ///
    /// # Errors
    /// Those of [`Snapshot::admit`] and of [`move_into`](SealedUnit::move_into).
    pub fn take_files(&self, snapshot: &Snapshot, unit: &SealedUnit) -> Result<u64> {
        snapshot.admit()?;
        unit.move_into(&self.resources.cache, snapshot.manifest())
    }
}
