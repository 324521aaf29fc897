//! Reopening: snapshots that an earlier process served, without asking any tier for them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backoff::jittered;
use crate::digest::Digest;
use crate::error::{Kind, Result};
use crate::mirror::Mirror;
use crate::snapshot::Snapshot;
use crate::task::blocking;
use crate::tier::Tier;
use crate::tier::lazy_origin::{LazyOrigin, OriginOpener};

use super::{Engine, saved_manifest};

/// How long to wait before a mirror that did not answer is asked again for a lease. Its grace is hours.
const LEASE_RETRY_INTERVAL: Duration = Duration::from_secs(60);

impl Engine {
    /// Takes the manifest `id` from `mirror` into the cache, unless it is there, whole.
    ///
    /// # Errors
    /// Those of [`mirrored`](Self::mirrored).
    pub async fn fetch_manifest(&self, mirror: &Mirror, id: &Digest) -> Result<()> {
        self.manifest(mirror, id).await.map(drop)
    }

    /// Makes the snapshot `id` readable again from what the cache has of it; `None` when its manifest is no longer there,
    /// whole. Nothing outside this machine is asked: what is missing will come from `mirror` or from the origin that
    /// `open` opens, when it is read.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub async fn reopen(
        &self,
        id: &Digest,
        mirror: Option<Mirror>,
        open: OriginOpener,
    ) -> Result<Option<Arc<Snapshot>>> {
        let (resources, id) = (self.resources.clone(), *id);
        let saved = blocking(move || Ok(saved_manifest(resources.cache.layout(), &id)));
        let Some(manifest) = saved.await? else { return Ok(None) };
        let manifest = Arc::new(manifest);
        let origin: Arc<dyn Tier> = Arc::new(LazyOrigin::new(open, manifest.clone()));
        // Peers are told of what a mirror has, and of nothing else.
        let (ladder, holder) = match &mirror {
            Some(mirror) => {
                let tiers = vec![Arc::new(mirror.clone()), origin];
                (self.ladder(self.placement(id), tiers), self.announcements())
            }
            None => (self.ladder(None, vec![origin]), None),
        };
        let shared = (self.resources.clone(), self.contents.clone());
        let snapshot = Arc::new(
            Snapshot::new(id, manifest, Default::default(), shared, ladder).with_announcements(holder),
        );
        if let Some(mirror) = mirror {
            self.resources.runtime.spawn(lease(mirror, Arc::downgrade(&snapshot)));
        }
        Ok(Some(snapshot))
    }
}

/// Takes a lease on the mirror as soon as it answers, as long as the snapshot is wanted.
async fn lease(mirror: Mirror, snapshot: Weak<Snapshot>) {
    while let Some(id) = snapshot.upgrade().map(|snapshot| snapshot.id()) {
        match mirror.serve_lease(&id).await {
            Ok(lease) => match snapshot.upgrade() {
                Some(snapshot) => return snapshot.lease_with(lease).await,
                None => return lease.release().await,
            },
            // With read-only credentials there is no lease: the collector's grace period protects the snapshot.
            Err(error) if error.kind() == Kind::Refused => return,
            Err(error) => tracing::debug!(%error, "no lease on the mirror yet"),
        }
        tokio::time::sleep(jittered(LEASE_RETRY_INTERVAL)).await;
    }
}
