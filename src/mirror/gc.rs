//! Collection: what no ref reaches is deleted, safely beside those who add and those who read.
//!
//! The danger is that somebody finds an old blob, and begins to rely on it, while it is being collected. Therefore
//!
//! - who adds takes a lease first, and dates every record that it finds anew before it relies on it;
//! - who collects takes a lease first, then reads the leases of the others, then the refs, then the dates. Nothing is
//!   deleted that was written after its own lease began or after that of anybody who adds, less the grace;
//! - who adds waits, when all else is done, until nobody collects, looks once more whether all of it is there, and only
//!   then makes its ref.
//!
//! So whoever's lease comes second sees the other's: either the dates are new enough, or the blob is missed in time. It
//! takes a store that lists at once what was written, as all of today's do.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;

use super::catalog::Generations;
use super::layout::Shelf;
use super::lease::{Lease, Purpose};
use super::record::Record;
use super::{Mirror, damaged, digest_of, local};
use crate::blob::Key;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::task::blocking;

/// How many objects are looked into or deleted at once.
const AT_ONCE: usize = 32;

/// What was collected, or would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Collected {
    /// Objects deleted.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that nothing reaches, kept because they are young, or somebody at work may need them.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
}

/// What refs and leases reach.
#[derive(Debug, Default)]
struct Reached {
    manifests: HashSet<Digest>,
    blobs: HashSet<Digest>,
    /// Blobs that lie elsewhere than under their digests.
    places: HashSet<Path>,
}

impl Mirror {
    /// Deletes what no ref reaches and has not been written for `grace`; when `dry`, only counts it. A ref that was
    /// removed or replaced reaches what it did until `grace` is over.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when a ref or a manifest is damaged or missing, for then nobody
    /// can tell what they reach; those of the store.
    pub async fn collect(&self, grace: Duration, dry: bool) -> Result<Collected> {
        let lease = self.lease(Purpose::Sweep).await?;
        let outcome = self.sweep(&lease, grace, dry).await;
        lease.release().await;
        outcome
    }

    async fn sweep(&self, lease: &Lease, grace: Duration, dry: bool) -> Result<Collected> {
        let now = lease.began();
        let grace = TimeDelta::from_std(grace).unwrap_or(TimeDelta::MAX);
        let grown = now.checked_sub_signed(grace).unwrap_or(DateTime::<Utc>::MIN_UTC);
        let leases = self.leases().await?;
        let (living, lapsed): (Vec<_>, Vec<_>) = leases.into_iter().partition(|found| found.lives(now));
        let adding = living.iter().filter(|found| found.purpose == Purpose::Add).map(|found| found.began);
        let before = adding.fold(grown, DateTime::min);

        let mut sweeper = Sweeper { mirror: self, before, dry, collected: Collected::default() };
        let generations = self.generations(self.below(Shelf::Refs.name())).await?;
        let serving = living.iter().filter_map(|found| match found.purpose {
            Purpose::Serve(manifest) => Some(manifest),
            _ => None,
        });
        let mut reached = Reached::default();
        let outdated = self.roots(&generations, grown, &mut reached).await?;
        for manifest in reached.manifests.clone() {
            self.reach(&manifest, &mut reached).await?;
        }
        for manifest in serving {
            // Somebody may serve from its cache what is gone already.
            self.reach(&manifest, &mut reached).await.or_else(|e| match e.kind() {
                Kind::Corrupt => Ok(()),
                _ => Err(e),
            })?;
            reached.manifests.insert(manifest);
        }
        sweeper.delete(lapsed.into_iter().map(|found| found.key).filter(|key| key != lease.key())).await?;
        sweeper.delete(outdated).await?;
        sweeper.sweep(&reached).await?;
        sweeper.leftovers().await?;
        Ok(sweeper.collected)
    }

    /// Gathers the manifests of all generations that count, and answers with those that do no more.
    async fn roots(
        &self,
        generations: &Generations,
        grown: DateTime<Utc>,
        reached: &mut Reached,
    ) -> Result<Vec<Path>> {
        let mut outdated = Vec::new();
        for (key, all) in generations {
            let mut later: Option<DateTime<Utc>> = None;
            for (&number, &written) in all.iter().rev() {
                // A generation's time is over when the next one was made.
                let over = later.replace(written);
                if over.is_some_and(|over| over < grown) {
                    outdated.push(self.generation_key(key, number));
                    continue;
                }
                match self.generation(key, number).await {
                    Ok(Some(found)) if found.removed && over.is_none() && written < grown => {
                        outdated.push(self.generation_key(key, number));
                    }
                    Ok(Some(found)) if !found.removed => {
                        reached.manifests.insert(found.manifest);
                    }
                    // What was replaced already need not be readable.
                    Err(e) if over.is_none() => return Err(e),
                    _ => {}
                }
            }
        }
        Ok(outdated)
    }

    /// Adds the blobs of a manifest to what is reached.
    async fn reach(&self, digest: &Digest, reached: &mut Reached) -> Result<()> {
        let Some(manifest) = self.manifest(digest).await? else {
            return Err(damaged(self.shown(&self.key(Shelf::Manifests, digest)), "it is missing"));
        };
        for index in 0..manifest.blobs() {
            let blob = manifest.blob(index)?;
            let Key::Content(digest) = blob.key else { continue };
            reached.blobs.insert(digest);
            if !blob.stored.place.is_empty() {
                reached.places.insert(self.blob_key(&digest, &blob.stored));
            }
        }
        Ok(())
    }
}

/// A collection under way.
struct Sweeper<'a> {
    mirror: &'a Mirror,
    /// What was written since then is spared.
    before: DateTime<Utc>,
    dry: bool,
    collected: Collected,
}

impl Sweeper<'_> {
    /// Deletes what is not reached. Whoever looks for a blob finds its record first, so that goes first.
    async fn sweep(&mut self, reached: &Reached) -> Result<()> {
        let mut spared = HashSet::new();
        let mut dead = Vec::new();
        let mut records = self.mirror.list(self.mirror.below(Shelf::Records.name()));
        while let Some(meta) = records.try_next().await? {
            let Some(digest) = digest_of(&meta.location) else { continue };
            if reached.blobs.contains(&digest) {
                continue;
            }
            if self.counts(meta.last_modified, meta.size) {
                dead.push(meta.location);
            } else {
                // Its content may be old, but somebody has dated its record anew.
                spared.insert(digest);
            }
        }
        let places = self.places_of(&spared).await?;
        self.delete(dead).await?;
        self.drafts().await?;
        self.shelf(Shelf::Blobs, |_, digest| !reached.blobs.contains(&digest) && !spared.contains(&digest))
            .await?;
        let placed = |key: &Path| reached.places.contains(key) || places.contains(key);
        self.uploads(placed).await?;
        self.shelf(Shelf::Manifests, |_, digest| !reached.manifests.contains(&digest)).await?;
        self.recipes(reached, &spared).await
    }

    /// Counts an object that nothing reaches. True when it is to be deleted.
    fn counts(&mut self, written: DateTime<Utc>, size: u64) -> bool {
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

    /// Deletes what lies on `shelf` and is `dead`.
    async fn shelf(&mut self, shelf: Shelf, dead: impl Fn(&Path, Digest) -> bool) -> Result<()> {
        let mut listed = self.mirror.list(self.mirror.below(shelf.name()));
        let mut gone = Vec::new();
        while let Some(meta) = listed.try_next().await? {
            let digest = digest_of(&meta.location);
            if digest.is_some_and(|digest| dead(&meta.location, digest))
                && self.counts(meta.last_modified, meta.size)
            {
                gone.push(meta.location);
            }
        }
        self.delete(gone).await
    }

    /// Gives up drafts that nobody has gone on with.
    async fn drafts(&mut self) -> Result<()> {
        for draft in self.mirror.drafts(self.mirror.below(Shelf::Drafts.name())).await? {
            let uploaded = self.mirror.uploaded(&draft).await?;
            if self.counts(draft.written, draft.size + uploaded) && !self.dry {
                self.mirror.give_up(draft).await?;
            }
        }
        Ok(())
    }

    /// Deletes uploads that broke off when they had ended.
    async fn uploads(&mut self, placed: impl Fn(&Path) -> bool) -> Result<()> {
        let mut listed = self.mirror.list(self.mirror.below(Shelf::Uploads.name()));
        let mut gone = Vec::new();
        while let Some(meta) = listed.try_next().await? {
            if !placed(&meta.location) && self.counts(meta.last_modified, meta.size) {
                gone.push(meta.location);
            }
        }
        self.delete(gone).await
    }

    /// Deletes the recipes of blobs that are gone.
    async fn recipes(&mut self, reached: &Reached, spared: &HashSet<Digest>) -> Result<()> {
        let mirror = self.mirror;
        let listed = mirror.list(mirror.below(Shelf::Known.name()));
        let looked = listed.map_ok(|meta| async move {
            let made = mirror
                .get(&meta.location)
                .await?
                .and_then(|got| super::record::known(&got.bytes, &digest_of(&meta.location)?));
            Ok((meta, made))
        });
        let mut looked = looked.try_buffer_unordered(AT_ONCE);
        let mut gone = Vec::new();
        while let Some((meta, made)) = looked.try_next().await? {
            let lives = made.is_some_and(|made| reached.blobs.contains(&made) || spared.contains(&made));
            if !lives && self.counts(meta.last_modified, meta.size) {
                gone.push(meta.location);
            }
        }
        drop(looked);
        self.delete(gone).await
    }

    /// Where the blobs of young records lie, if not under their digests.
    async fn places_of(&self, spared: &HashSet<Digest>) -> Result<HashSet<Path>> {
        let mirror = self.mirror;
        let places = stream::iter(spared.iter().copied()).map(|digest| async move {
            let got = mirror.get(&mirror.key(Shelf::Records, &digest)).await?;
            let record = got.and_then(|got| Record::decode(&got.bytes, &digest));
            Ok(record.map(|record| mirror.blob_key(&digest, &record.stored)))
        });
        places
            .buffer_unordered(AT_ONCE)
            .try_filter_map(|place| std::future::ready(Ok(place)))
            .try_collect()
            .await
    }

    /// Deletes what a local directory keeps of objects that were never finished.
    async fn leftovers(&mut self) -> Result<()> {
        let Some(root) = &self.mirror.local else { return Ok(()) };
        let tenant = root.join("tenants").join(&*self.mirror.tenant);
        let (before, dry, mut collected) = (self.before.into(), self.dry, self.collected);
        self.collected = blocking(move || {
            let fault = |e| Error::disk(format!("cannot look through {}", tenant.display()), e);
            local::collect(&tenant, before, dry, &mut collected).map_err(fault)?;
            Ok(collected)
        })
        .await?;
        Ok(())
    }

    async fn delete(&self, keys: impl IntoIterator<Item = Path>) -> Result<()> {
        if self.dry {
            return Ok(());
        }
        let mirror = Arc::new(self.mirror.clone());
        let deleted = stream::iter(keys).map(|key| {
            let mirror = mirror.clone();
            async move { mirror.delete(&key).await }
        });
        deleted.buffer_unordered(AT_ONCE).try_collect().await
    }
}
