//! Mirroring: copies a source into the mirror, once.
//!
//! ```text
//!  Origin::list ──> listing ──> plan: which files make which blob
//!                                 │
//!            known recipe? ── yes ──────────────────────────────┐
//!                 │ no                                          v
//!                 └──> read ──> hash, compress ──> blobs, records ──> manifest ──> ref
//! ```
//!
//! Nothing is seen of it before the ref is made, and a blob that was stored is found again by its recipe: so a run may
//! break off anywhere, and the next one reads again at most what was under way. Every read is conditional on the version
//! that was listed. When the source changes meanwhile, it is listed again, once.

mod builder;
mod encoding;
mod hash_first;
mod origin_reader;
mod packing;
mod progress;
mod repairs;
mod reuse;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::fetch::Ladder;
use crate::manifest::{ListingNotes, Manifest, MirroredBlob, MirroredListing};
use crate::mirror::Mirror;
use crate::mirror::catalog::Ref;
use crate::mirror::lease::MirrorLease;
use crate::mirror::record::MirrorRecord;
use crate::mirror::verification::VerifyProgress;
use crate::source::{Access, Patterns, Uri};
use crate::task::blocking;
use crate::tier::Tier;

use builder::BlobBuilder;
use packing::Recipe;
use reuse::PreviousSnapshot;

pub use progress::{MirrorPhase, MirrorProgress};
pub use repairs::Repairs;
pub use source::{MirrorSource, PreviousState};

/// The number of blobs that are looked up or built at once. Their memory is bounded separately.
const BLOBS_IN_FLIGHT: usize = 32;
/// The number of times that missing blobs are put again because some vanished meanwhile: only another process can delete them.
const PUT_ROUND_LIMIT: u32 = 3;

/// The limits of a mirroring run.
#[derive(Clone, Copy, Debug)]
pub struct MirrorConfig {
    /// The most memory for content on its way, in bytes.
    pub memory: u64,
}

/// The outcome of a mirroring run.
#[derive(Clone, Debug)]
pub struct MirrorOutcome {
    /// The ref that the source is mirrored as now.
    pub latest_ref: Ref,
    /// Whether this run made it.
    pub new: bool,
    /// Notes on the listing, for users.
    pub notes: ListingNotes,
    /// Damage of the earlier mirrored state that this run repaired.
    pub repaired: Repairs,
    /// Bytes read from the origin.
    pub read: u64,
    /// Bytes written to the mirror.
    pub written: u64,
}

/// Copies what `patterns` select of the source at `uri` into `mirror`, which is created if there is none; its origin is opened with
/// `access`.
///
/// # Errors
/// Those of [`MirrorSource::open`], [`Mirror::init`] and [`mirror_source`].
pub async fn mirror_uri(
    mirror: &Mirror,
    uri: &Uri,
    access: &Access,
    patterns: Patterns,
    config: MirrorConfig,
    progress: &MirrorProgress,
) -> Result<MirrorOutcome> {
    let source = MirrorSource::open(uri, access, patterns).await?;
    mirror.init().await?;
    mirror_source(mirror, &source, config, progress).await
}

/// Copies `source` into `mirror`, which is there. When the source changes meanwhile, it is listed again, once.
///
/// # Errors
/// [`Kind::Changed`] when the source changes all the time; those of the origin and of the store.
pub async fn mirror_source(
    mirror: &Mirror,
    source: &MirrorSource,
    config: MirrorConfig,
    progress: &MirrorProgress,
) -> Result<MirrorOutcome> {
    mirror_source_announced(mirror, source, config, progress, &to_nobody).await
}

/// Like [`mirror_source`], and calls `announce` with the new ref before it is committed. Where `announce` fails, the ref is not
/// committed.
///
/// # Errors
/// Those of [`mirror_source`] and of `announce`.
pub async fn mirror_source_announced(
    mirror: &Mirror,
    source: &MirrorSource,
    config: MirrorConfig,
    progress: &MirrorProgress,
    announce: &AnnounceRef<'_>,
) -> Result<MirrorOutcome> {
    let lease = mirror.add_lease().await?;
    let run = MirrorRun { mirror, source, config, progress, lease: &lease, announce };
    let mut outcome = run.attempt().await;
    if let Err(error) = &outcome
        && error.kind() == Kind::Changed
    {
        tracing::info!(%error, "the source changed while it was copied: listing it again");
        outcome = run.attempt().await;
    }
    lease.release().await;
    outcome
}

/// Copies the content of `source` into `mirror`, which is there, ahead of its snapshot: nothing is seen of it there, a later run
/// finds what has not changed, and the garbage collection removes the rest.
///
/// # Errors
/// [`Kind::Changed`] when the source changes; those of the origin and of the store.
pub async fn mirror_ahead(
    mirror: &Mirror,
    source: &MirrorSource,
    config: MirrorConfig,
    progress: &MirrorProgress,
) -> Result<()> {
    let lease = mirror.add_lease().await?;
    let run = MirrorRun { mirror, source, config, progress, lease: &lease, announce: &to_nobody };
    let outcome = run.put_content().await;
    lease.release().await;
    outcome
}

/// The ref of `source`, if `mirror`, which is there, has all of it as its origin lists it now. Nothing of it is read.
///
/// # Errors
/// Those of listing the origin and of the store.
pub async fn find_mirrored(
    mirror: &Mirror,
    source: &MirrorSource,
    config: MirrorConfig,
) -> Result<Option<Ref>> {
    let (lease, progress) = (mirror.add_lease().await?, MirrorProgress::default());
    let run = MirrorRun { mirror, source, config, progress: &progress, lease: &lease, announce: &to_nobody };
    let find = async { run.find_unchanged(&run.list().await?, &mut Repairs::default()).await };
    let found = find.await;
    lease.release().await;
    found
}

/// The function that is called with a ref before that is committed.
pub type AnnounceRef<'a> = dyn Fn(&Ref) -> BoxFuture<'static, Result<()>> + Send + Sync + 'a;

/// Tells nobody what is about to be committed.
fn to_nobody(_: &Ref) -> BoxFuture<'static, Result<()>> {
    async { Ok(()) }.boxed()
}

/// A mirroring run under way.
struct MirrorRun<'a> {
    mirror: &'a Mirror,
    source: &'a MirrorSource,
    config: MirrorConfig,
    progress: &'a MirrorProgress,
    lease: &'a MirrorLease,
    announce: &'a AnnounceRef<'a>,
}

/// The listing of the origin at one moment.
struct OriginListing {
    manifest: Arc<Manifest>,
    digest: Digest,
    at: DateTime<Utc>,
    began: Instant,
    notes: ListingNotes,
}

impl MirrorRun<'_> {
    /// Lists the source and copies what the mirror lacks.
    async fn attempt(&self) -> Result<MirrorOutcome> {
        let listed = self.list().await?;
        let mut repaired = Repairs::default();
        if let Some(found) = self.find_unchanged(&listed, &mut repaired).await? {
            return Ok(self.outcome(found, false, listed.notes, repaired));
        }
        let recipes = packing::plan(&listed.manifest, &self.source.identity)?;
        self.progress.begin(&listed.manifest);
        let records = self.put_blobs(&listed.manifest, &recipes).await?;
        self.progress.enter(MirrorPhase::Finishing);
        let blobs: HashMap<_, _> = records.iter().map(|record| (record.digest, record)).collect();
        let stored = blobs.values().filter_map(|record| record.stored.len(record.size)).sum();
        let (allow, ignore) = self.source.patterns.texts();
        let ours = Ref {
            source: self.source.name.clone(),
            identity: self.source.tree_identity(),
            resolved: self.source.origin.name().into(),
            allow,
            ignore,
            removed: false,
            manifest: self.write_manifest(listed.manifest.clone(), recipes, &records).await?,
            listing: listed.digest,
            files: listed.manifest.files(),
            bytes: listed.manifest.bytes(),
            blobs: blobs.len() as u64,
            stored,
            listed: listed.at,
            took: listed.began.elapsed().as_secs_f64(),
            tool: env!("CARGO_PKG_VERSION").into(),
        };
        (self.announce)(&ours).await?;
        let found = match self.source.previous {
            PreviousState::LatestListing => self.mirror.commit_ref(&ours, Some(self.lease)).await?,
            PreviousState::OneWriter => self.mirror.commit_newest_ref(ours.clone(), self.lease).await?,
            PreviousState::After(generation) => {
                self.mirror.commit_ref_after(generation, &ours, self.lease).await?;
                ours.clone()
            }
        };
        // It may be dated anew.
        let new = found == Ref { listed: found.listed, ..ours };
        Ok(self.outcome(found, new, listed.notes, repaired))
    }

    /// Lists the source and copies the content that the mirror lacks.
    async fn put_content(&self) -> Result<()> {
        let listed = self.list().await?;
        let recipes = packing::plan(&listed.manifest, &self.source.identity)?;
        self.put_blobs(&listed.manifest, &recipes).await.map(drop)
    }

    fn outcome(&self, latest_ref: Ref, new: bool, notes: ListingNotes, repaired: Repairs) -> MirrorOutcome {
        let (read, written) = (self.progress.read.load(Relaxed), self.progress.written.load(Relaxed));
        MirrorOutcome { latest_ref, new, notes, repaired, read, written }
    }

    async fn list(&self) -> Result<OriginListing> {
        self.progress.enter(MirrorPhase::Querying);
        // By the store's clock: of two that add the same, the one that listed later counts.
        let (at, began) = (self.lease.renew_now().await?, Instant::now());
        let mut listing = self.mirror.listing(&self.source.origin.identity(), self.source.patterns.clone());
        self.progress.enter(MirrorPhase::Listing);
        self.source.origin.list(&mut listing).await?;
        let notes = listing.notes();
        let mut file = self.mirror.unnamed_file()?;
        let written = blocking(move || {
            let digest = listing.finish(&mut file)?;
            Ok((Arc::new(Manifest::open(&file)?), digest))
        });
        let (manifest, digest) = written.await?;
        // Errors from here on are the mirror's.
        self.progress.enter(MirrorPhase::Querying);
        Ok(OriginListing { manifest, digest, at, began, notes })
    }

    /// The latest ref of the source, if it is complete and of the same listing. Its faults go to `faults`.
    async fn find_unchanged(&self, listed: &OriginListing, faults: &mut Repairs) -> Result<Option<Ref>> {
        let found = match self.mirror.latest(&self.source.key()).await?.content {
            Ok(Some(found)) if !found.removed && found.listing == listed.digest => found,
            _ => return Ok(None),
        };
        let tell = |fault| faults.add(&fault);
        self.mirror.verify(vec![Ok(found.clone())], false, &VerifyProgress::default(), tell).await?;
        Ok((faults.count == 0).then_some(found))
    }

    /// The snapshot that the source is mirrored as now, if any.
    async fn previous_snapshot(&self) -> Option<PreviousSnapshot> {
        let found = self.mirror.latest(&self.source.key()).await.ok()?.content.ok()??;
        let manifest = self.mirror.manifest(&found.manifest).await.ok()??;
        let mirror = ladder(Arc::new(self.mirror.clone()));
        Some(PreviousSnapshot::new(manifest, mirror))
    }

    /// Puts missing blobs into the mirror, and returns how each blob is kept.
    async fn put_blobs(&self, listing: &Manifest, recipes: &[Recipe]) -> Result<Vec<MirrorRecord>> {
        let ladder = ladder(self.source.origin.clone());
        let previous = self.previous_snapshot().await;
        let builder =
            BlobBuilder::new(self.mirror, listing, ladder, previous, self.lease, self.config.memory)
                .hash_first(self.source.hash_first);
        let mut kept: Vec<Option<MirrorRecord>> = vec![None; recipes.len()];
        let mut firsts = HashMap::new();
        for (at, recipe) in recipes.iter().enumerate() {
            firsts.entry(recipe.name).or_insert(at);
        }
        for _ in 0..PUT_ROUND_LIMIT {
            let firsts = recipes.iter().map(|recipe| firsts[&recipe.name]);
            let missing = recipes.iter().enumerate().zip(firsts.clone());
            // Equal content is built once.
            let missing =
                missing.filter(|((at, _), first)| at == first && kept[*at].is_none()).map(|(one, _)| one);
            let made = stream::iter(missing.map(Ok)).map_ok(|(at, recipe)| {
                let (builder, progress) = (&builder, self.progress);
                async move { Ok((at, builder.find_or_build(recipe, progress).await?)) }
            });
            let made: Vec<_> = made.try_buffer_unordered(BLOBS_IN_FLIGHT).try_collect().await?;
            made.into_iter().for_each(|(at, record)| kept[at] = Some(record));
            firsts.enumerate().for_each(|(at, first)| kept[at] = kept[first].clone());
            self.lease.wait_for_collectors().await?;
            if self.check_blobs(&mut kept).await? {
                return Ok(kept.into_iter().flatten().collect());
            }
        }
        let text = format!(
            "blobs of the mirror {} are deleted while they are written; stop what deletes them and try again",
            self.mirror.name()
        );
        Err(Error::new(Kind::Unavailable, text))
    }

    /// Checks that all blobs are there, and forgets those that are not.
    async fn check_blobs(&self, kept: &mut [Option<MirrorRecord>]) -> Result<bool> {
        let looked = stream::iter(kept.iter().enumerate()).map(|(at, record)| async move {
            let Some(record) = record else { return Ok(Some(at)) };
            if self.mirror.has_blob(record).await? {
                return Ok(None);
            }
            self.mirror.forget(&record.digest).await?;
            Ok::<_, Error>(Some(at))
        });
        let missing: Vec<_> = looked.buffer_unordered(BLOBS_IN_FLIGHT).try_collect().await?;
        let mut all = true;
        for at in missing.into_iter().flatten() {
            (kept[at], all) = (None, false);
        }
        Ok(all)
    }

    /// Writes the manifest of the mirrored snapshot into the mirror.
    async fn write_manifest(
        &self,
        listing: Arc<Manifest>,
        recipes: Vec<Recipe>,
        records: &[MirrorRecord],
    ) -> Result<Digest> {
        let kept = recipes.into_iter().zip(records).map(|(recipe, record)| MirroredBlob {
            files: recipe.files,
            digest: record.digest,
            size: record.size,
            checks: record.checks.clone(),
            stored: record.stored.clone(),
        });
        let (kept, mut file) = (kept.collect(), self.mirror.unnamed_file()?);
        let written = blocking(move || {
            let digest = MirroredListing::new(&listing, kept)?.write(&mut file)?;
            Ok((digest, file))
        });
        let (digest, file) = written.await?;
        self.mirror.put_manifest(&digest, file, self.lease).await?;
        Ok(digest)
    }
}

/// A ladder of `tier` alone.
fn ladder(tier: Arc<dyn Tier>) -> Ladder {
    Ladder::new(vec![tier], Arc::default(), Arc::default())
}

impl MirrorProgress {
    /// Starts the progress of copying, now that the totals are known.
    fn begin(&self, listing: &Manifest) {
        self.files.store(listing.files(), Relaxed);
        self.bytes.store(listing.bytes(), Relaxed);
        self.files_done.store(0, Relaxed);
        self.bytes_done.store(0, Relaxed);
        self.enter(MirrorPhase::Copying);
    }
}
