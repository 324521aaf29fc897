//! Garbage collection: deletes what no ref reaches, safely beside publishers and readers.
//!
//! The danger is that a run finds an old blob, and begins to rely on it, while it is being collected. Therefore
//!
//! - an adding run takes a lease first, and dates every record that it finds anew before it relies on it;
//! - a collecting run takes a lease first, then reads the leases of the others, then the refs, then the dates. Nothing is
//!   deleted that was written after its own lease began or after that of an adding run, less the grace;
//! - an adding run waits, when all else is done, until no run collects, checks once more whether all of it is there, and only
//!   then makes its ref.
//!
//! So the run whose lease comes second sees the other's: either the dates are new enough, or the blob is missed in time. It
//! takes a store that lists at once what was written, as all of today's do.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;

use super::catalog::Generations;
use super::gc_report::GcReport;
use super::index::{checkpoint_key, complete_snapshots, id_of};
use super::keys::ObjectKind;
use super::lease::{MirrorLease, Purpose};
use super::record::MirrorRecord;
use super::{Mirror, damaged, digest_of, leftovers};
use crate::blob::Key;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::task::blocking;

/// The number of objects that are looked into or deleted at once.
const GC_REQUESTS_IN_FLIGHT: usize = 32;

/// The number of objects that are deleted before the lease may be renewed again, and the time from one renewal to the next: what a
/// run that was stopped meanwhile may delete too much. Services allow about one write a second to an object.
const GC_DELETIONS_PER_RENEWAL: usize = 128;
const GC_RENEWAL_INTERVAL: Duration = Duration::from_secs(2);

/// The objects that refs and leases reach.
#[derive(Debug, Default)]
struct ReachableObjects {
    /// The keys of the sources that are mirrored.
    sources: HashSet<Digest>,
    manifests: HashSet<Digest>,
    blobs: HashSet<Digest>,
    /// Blobs that lie elsewhere than under their digests.
    places: HashSet<Path>,
}

impl Mirror {
    /// Deletes objects that no ref reaches and that have not been written for `grace`; when `dry`, only counts it. A ref
    /// that was removed or replaced reaches what it did until `grace` is over.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when a ref or a manifest is damaged or missing, for then what they reach is unknown;
    /// those of the store.
    pub async fn collect(&self, grace: Duration, dry: bool) -> Result<GcReport> {
        let lease = self.sweep_lease().await?;
        let outcome = self.sweep(&lease, grace, dry).await;
        lease.release().await;
        outcome
    }

    /// Deletes what is not reached, as long as `lease` holds.
    pub(super) async fn sweep(&self, lease: &MirrorLease, grace: Duration, dry: bool) -> Result<GcReport> {
        let now = lease.began();
        let grace = TimeDelta::from_std(grace).unwrap_or(TimeDelta::MAX);
        let expired_before = now.checked_sub_signed(grace).unwrap_or(DateTime::<Utc>::MIN_UTC);
        let leases = self.leases().await?;
        let (live_leases, lapsed): (Vec<_>, Vec<_>) =
            leases.into_iter().partition(|found| found.is_live(now));
        let add_leases =
            live_leases.iter().filter(|found| found.purpose == Purpose::Add).map(|found| found.began);
        let before = add_leases.fold(expired_before, DateTime::min);

        let mut collector = Collector { mirror: self, lease, before, dry, collected: GcReport::default() };
        let generations = self.generations(self.tenant_key(ObjectKind::Refs.name())).await?;
        let serving = live_leases.iter().filter_map(|found| match found.purpose {
            Purpose::Serve(manifest) => Some(manifest),
            _ => None,
        });
        let mut reachable = ReachableObjects::default();
        let outdated = self.roots(&generations, expired_before, &mut reachable).await?;
        for manifest in reachable.manifests.clone() {
            if !self.mark(&manifest, &mut reachable).await? {
                let key = self.key(ObjectKind::Manifests, &manifest);
                return Err(damaged(self.url_of(&key), "it is missing"));
            }
        }
        for manifest in self.complete_checkpoints(&reachable.sources, expired_before).await? {
            // One that is missing was collected by an earlier version, which knows of none.
            if reachable.manifests.insert(manifest) {
                self.mark(&manifest, &mut reachable).await?;
            }
        }
        for manifest in serving {
            // A node may serve from its cache what is gone already.
            if reachable.manifests.insert(manifest) {
                self.mark(&manifest, &mut reachable).await.map(|_| ()).or_else(|e| match e.kind() {
                    Kind::Corrupt => Ok(()),
                    _ => Err(e),
                })?;
            }
        }
        collector.delete(lapsed.into_iter().map(|found| found.key).filter(|key| key != lease.key())).await?;
        collector.delete(outdated).await?;
        collector.sweep(&reachable).await?;
        collector.leftovers().await?;
        Ok(collector.collected)
    }

    /// Gathers the manifests of all current generations, and returns the superseded ones.
    async fn roots(
        &self,
        generations: &Generations,
        expired_before: DateTime<Utc>,
        reachable: &mut ReachableObjects,
    ) -> Result<Vec<Path>> {
        let mut outdated = Vec::new();
        for (key, all) in generations {
            let mut later: Option<DateTime<Utc>> = None;
            for (&number, &written) in all.iter().rev() {
                // A generation's time is over when the next one was made.
                let over = later.replace(written);
                if over.is_some_and(|over| over < expired_before) {
                    outdated.push(self.generation_key(key, number));
                    continue;
                }
                match self.generation(key, number).await {
                    Ok(Some(found))
                        if found.removed
                            && over.is_none()
                            && written < expired_before
                            && !found.is_home() =>
                    {
                        outdated.push(self.generation_key(key, number));
                    }
                    Ok(Some(found)) if !found.removed => {
                        reachable.manifests.insert(found.manifest);
                        if over.is_none() {
                            reachable.sources.insert(*key);
                        }
                    }
                    // A superseded manifest need not be readable.
                    Err(e) if over.is_none() => return Err(e),
                    _ => {}
                }
            }
        }
        Ok(outdated)
    }

    /// The manifests of the complete generations of the checkpoints among `sources` that may be mounted: their refs may be of
    /// later ones. What a complete generation has replaced is among them unless that was `expired_before`.
    async fn complete_checkpoints(
        &self,
        sources: &HashSet<Digest>,
        expired_before: DateTime<Utc>,
    ) -> Result<HashSet<Digest>> {
        let (mut manifests, mut all) = (HashSet::new(), Vec::new());
        for (id, found) in self.checkpoint_entries(None, None).await? {
            match found {
                Ok((saved, entered)) if sources.contains(&checkpoint_key(&id)) => {
                    let previous = saved.previous_complete.iter().filter(|_| entered >= expired_before);
                    manifests.extend(previous.map(|previous| previous.manifest));
                    all.push(saved);
                }
                Ok(_) => {}
                // Nobody finds them by it any more.
                Err(e) if e.kind() == Kind::Corrupt => {}
                Err(e) => return Err(e),
            }
        }
        manifests.extend(complete_snapshots(all).into_iter().map(|(_, manifest)| manifest));
        Ok(manifests)
    }

    /// Adds the blobs of a manifest to what is reached. False where it is missing.
    async fn mark(&self, digest: &Digest, reachable: &mut ReachableObjects) -> Result<bool> {
        let Some(manifest) = self.manifest(digest).await? else { return Ok(false) };
        for index in 0..manifest.blobs() {
            let blob = manifest.blob(index)?;
            let Key::Content(digest) = blob.key else { continue };
            reachable.blobs.insert(digest);
            if !blob.stored.object_key.is_empty() {
                reachable.places.insert(self.blob_key(&digest, &blob.stored));
            }
        }
        Ok(true)
    }
}

/// A collection under way.
struct Collector<'a> {
    mirror: &'a Mirror,
    lease: &'a MirrorLease,
    /// The cutoff time: newer objects are spared.
    before: DateTime<Utc>,
    dry: bool,
    collected: GcReport,
}

impl Collector<'_> {
    /// Deletes what is not reached: records first, because a run that looks for a blob finds its record first.
    async fn sweep(&mut self, reachable: &ReachableObjects) -> Result<()> {
        let mut spared = HashSet::new();
        let mut dead = Vec::new();
        let mut records = self.mirror.list(self.mirror.tenant_key(ObjectKind::Records.name()));
        while let Some(meta) = records.try_next().await? {
            let Some(digest) = digest_of(&meta.location) else { continue };
            if reachable.blobs.contains(&digest) {
                continue;
            }
            if self.count(meta.last_modified, meta.size) {
                dead.push(meta.location);
            } else {
                // Its content may be old, but its record was dated anew.
                spared.insert(digest);
            }
        }
        let places = self.places_of(&spared).await?;
        self.delete(dead).await?;
        self.drafts().await?;
        self.sweep_kind(ObjectKind::Blobs, |_, digest| {
            !reachable.blobs.contains(&digest) && !spared.contains(&digest)
        })
        .await?;
        let placed = |key: &Path| reachable.places.contains(key) || places.contains(key);
        self.uploads(placed).await?;
        self.sweep_kind(ObjectKind::Manifests, |_, digest| !reachable.manifests.contains(&digest)).await?;
        self.checkpoints(reachable).await?;
        self.recipes(reachable, &spared).await
    }

    /// Counts an object that nothing reaches. True when it is to be deleted.
    fn count(&mut self, written: DateTime<Utc>, size: u64) -> bool {
        let old = written < self.before;
        let collected = &mut self.collected;
        let (objects, bytes) = match old {
            true => (&mut collected.objects, &mut collected.bytes),
            false => (&mut collected.kept, &mut collected.kept_bytes),
        };
        *objects += 1;
        *bytes += size;
        old
    }

    /// Deletes the objects of this `kind` for which `dead` is true.
    async fn sweep_kind(&mut self, kind: ObjectKind, dead: impl Fn(&Path, Digest) -> bool) -> Result<()> {
        let mut listed = self.mirror.list(self.mirror.tenant_key(kind.name()));
        let mut gone = Vec::new();
        while let Some(meta) = listed.try_next().await? {
            let digest = digest_of(&meta.location);
            if digest.is_some_and(|digest| dead(&meta.location, digest))
                && self.count(meta.last_modified, meta.size)
            {
                gone.push(meta.location);
            }
        }
        self.delete(gone).await
    }

    /// Deletes drafts that no run has resumed.
    async fn drafts(&mut self) -> Result<()> {
        for draft in self.mirror.drafts(self.mirror.tenant_key(ObjectKind::Drafts.name())).await? {
            let uploaded = self.mirror.uploaded(&draft).await?;
            if self.count(draft.written, draft.size + uploaded) && !self.dry {
                self.lease.renew_now().await?;
                self.mirror.discard_draft(draft).await?;
            }
        }
        Ok(())
    }

    /// Deletes entries of the index whose checkpoints are removed.
    async fn checkpoints(&mut self, reachable: &ReachableObjects) -> Result<()> {
        let mut listed = self.mirror.list(self.mirror.tenant_key(ObjectKind::Checkpoints.name()));
        let mut gone = Vec::new();
        while let Some(meta) = listed.try_next().await? {
            let key = id_of(&meta.location).map(|id| checkpoint_key(&id));
            if key.is_some_and(|key| !reachable.sources.contains(&key))
                && self.count(meta.last_modified, meta.size)
            {
                gone.push(meta.location);
            }
        }
        self.delete(gone).await
    }

    /// Deletes uploads that broke off when they had ended.
    async fn uploads(&mut self, placed: impl Fn(&Path) -> bool) -> Result<()> {
        let mut listed = self.mirror.list(self.mirror.tenant_key(ObjectKind::Uploads.name()));
        let mut gone = Vec::new();
        while let Some(meta) = listed.try_next().await? {
            if !placed(&meta.location) && self.count(meta.last_modified, meta.size) {
                gone.push(meta.location);
            }
        }
        self.delete(gone).await
    }

    /// Deletes the recipes of blobs that are gone.
    async fn recipes(&mut self, reachable: &ReachableObjects, spared: &HashSet<Digest>) -> Result<()> {
        let mirror = self.mirror;
        let listed = mirror.list(mirror.tenant_key(ObjectKind::Recipes.name()));
        let checked = listed.map_ok(|meta| async move {
            let made = mirror
                .get(&meta.location)
                .await?
                .and_then(|got| super::record::decode_recipe(&got.bytes, &digest_of(&meta.location)?));
            Ok((meta, made))
        });
        let mut checked = checked.try_buffer_unordered(GC_REQUESTS_IN_FLIGHT);
        let mut gone = Vec::new();
        while let Some((meta, made)) = checked.try_next().await? {
            let is_live = made.is_some_and(|made| reachable.blobs.contains(&made) || spared.contains(&made));
            if !is_live && self.count(meta.last_modified, meta.size) {
                gone.push(meta.location);
            }
        }
        drop(checked);
        self.delete(gone).await
    }

    /// The paths of the blobs of young records, if not under their digests.
    async fn places_of(&self, spared: &HashSet<Digest>) -> Result<HashSet<Path>> {
        let mirror = self.mirror;
        let places = stream::iter(spared.iter().copied()).map(|digest| async move {
            let got = mirror.get(&mirror.key(ObjectKind::Records, &digest)).await?;
            let record = got.and_then(|got| MirrorRecord::decode(&got.bytes, &digest));
            Ok(record.map(|record| mirror.blob_key(&digest, &record.stored)))
        });
        places
            .buffer_unordered(GC_REQUESTS_IN_FLIGHT)
            .try_filter_map(|place| std::future::ready(Ok(place)))
            .try_collect()
            .await
    }

    /// Deletes what a local directory keeps of objects that were never finished.
    async fn leftovers(&mut self) -> Result<()> {
        let Some(root) = &self.mirror.local else { return Ok(()) };
        if !self.dry {
            self.lease.renew_now().await?;
        }
        let tenant = root.join("tenants").join(&*self.mirror.tenant);
        let (before, dry, mut collected) = (self.before.into(), self.dry, self.collected);
        self.collected = blocking(move || {
            let fault = |e| Error::disk(format!("cannot look through {}", tenant.display()), e);
            leftovers::collect(&tenant, before, dry, &mut collected).map_err(fault)?;
            Ok(collected)
        })
        .await?;
        Ok(())
    }

    /// Deletes objects, as long as the lease holds: a run that saw it lapsed does not wait, and may use what was to be deleted.
    async fn delete(&self, keys: impl IntoIterator<Item = Path>) -> Result<()> {
        if self.dry {
            return Ok(());
        }
        let (mirror, keys) = (Arc::new(self.mirror.clone()), keys.into_iter().collect::<Vec<_>>());
        let mut renewed: Option<Instant> = None;
        for some in keys.chunks(GC_DELETIONS_PER_RENEWAL) {
            if renewed.is_none_or(|at| at.elapsed() > GC_RENEWAL_INTERVAL) {
                self.lease.renew_now().await?;
                renewed = Some(Instant::now());
            }
            let deleted = stream::iter(some.iter().cloned()).map(|key| {
                let mirror = mirror.clone();
                async move { mirror.delete(&key).await }
            });
            deleted.buffer_unordered(GC_REQUESTS_IN_FLIGHT).try_collect::<()>().await?;
        }
        Ok(())
    }
}
