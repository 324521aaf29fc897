//! Snapshots of a mirror by their ids: what a source was mirrored as, whether or not it is still mirrored as that.

use std::sync::Arc;

use crate::digest::Digest;
use crate::error::Result;
use crate::mirror::Mirror;
use crate::snapshot::Snapshot;
use crate::tier::Tier;
use crate::tier::lazy_origin::{LazyOrigin, OriginOpener};

use super::Engine;

impl Engine {
    /// Makes the snapshot `id` of `mirror` readable, as [`mirrored`](Self::mirrored) does, whether or not a source is still
    /// mirrored as that.
    ///
    /// # Errors
    /// Those of [`mirrored`](Self::mirrored).
    pub async fn mirrored_snapshot(
        &self,
        mirror: &Mirror,
        id: Digest,
        open: OriginOpener,
    ) -> Result<Arc<Snapshot>> {
        // At once, for each request is a round trip that a deployment waits for.
        let (lease, manifest) = tokio::join!(mirror.serve_lease(&id), self.manifest(mirror, &id));
        // With read-only credentials there is no lease: the collector's grace period protects the snapshot.
        let lease = lease.inspect_err(|error| tracing::debug!(%error, "no lease on the mirror")).ok();
        let manifest = Arc::new(manifest?);
        let origin = LazyOrigin::new(open, manifest.clone());
        let tiers: Vec<Arc<dyn Tier>> = vec![Arc::new(mirror.clone()), Arc::new(origin)];
        let ladder = self.ladder(self.placement(id), tiers);
        let shared = (self.resources.clone(), self.contents.clone());
        let snapshot = Snapshot::new(id, manifest, Default::default(), shared, ladder);
        Ok(Arc::new(snapshot.with_lease(lease).with_announcements(self.announcements())))
    }
}
