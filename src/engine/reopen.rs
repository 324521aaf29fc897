//! Reopening: snapshots that an earlier process served, without asking any tier for them.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture};

use crate::backoff::jittered;
use crate::blob::Blob;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::manifest::Manifest;
use crate::mirror::Mirror;
use crate::snapshot::Snapshot;
use crate::task::blocking;
use crate::tier::lazy_origin::{LazyOrigin, OriginOpener};
use crate::tier::{Body, Tier, TierKind, Urgency};

use super::{Engine, saved_manifest};

/// The time to wait before a mirror that did not answer is asked again for a lease. Its grace is hours.
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
        let Some(manifest) = self.saved(id).await? else { return Ok(None) };
        let id = *id;
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

    /// Makes the snapshot `id` readable from the cache alone, also later: what is missing there cannot be read. `None` when its
    /// manifest is no longer there, whole.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub async fn reopen_offline(&self, id: &Digest) -> Result<Option<Arc<Snapshot>>> {
        let Some(manifest) = self.saved(id).await? else { return Ok(None) };
        let ladder = self.ladder(None, vec![Arc::new(OfflineTier)]);
        let shared = (self.resources.clone(), self.contents.clone());
        Ok(Some(Arc::new(Snapshot::new(*id, manifest, Default::default(), shared, ladder))))
    }

    /// The manifest `id` in the cache, if it is there, whole.
    async fn saved(&self, id: &Digest) -> Result<Option<Arc<Manifest>>> {
        let (resources, id) = (self.resources.clone(), *id);
        let saved = blocking(move || Ok(saved_manifest(resources.cache.layout(), &id)));
        Ok(saved.await?.map(Arc::new))
    }
}

/// The tier of a snapshot that uses no network, in the place of a mirror: where another snapshot shares a blob and has an origin,
/// that origin is asked.
#[derive(Debug)]
struct OfflineTier;

impl Tier for OfflineTier {
    fn kind(&self) -> TierKind {
        TierKind::Mirror
    }

    fn fetch<'a>(&'a self, _: &'a Blob, _: Range<u64>, _: Urgency) -> BoxFuture<'a, Result<Option<Body>>> {
        let text =
            "the cache no longer has all of it, and no network may be used; mount it without --offline";
        future::ready(Err(Error::new(Kind::Unsupported, text))).boxed()
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
