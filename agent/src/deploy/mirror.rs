//! Mirrors what is deployed: each source is copied once, however many jobs read it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bdnfs::blob::Key;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::ListingNotes;
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::{Ref, source_key};
use bdnfs::mirroring::{MirrorOutcome, MirrorProgress, MirrorSource, Repairs, find_mirrored, mirror_uri};
use bdnfs::source::{Patterns, Uri};
use bdnfs::task::{blocking, run_on_blocking_thread};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::sleep;

use super::tenant_slots::TenantSlots;
use crate::api::{ApiResult, MountRequest};
use crate::mirror::{self, MIRROR_CONFIG};
use crate::mounts::Mounter;
use crate::text;

/// The interval at which the progress is reported.
const MIRROR_PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// The number of sources that are copied at once, and of those of one tenant: each holds memory, and may take hours.
const PARALLEL_COPIES: (usize, usize) = (3, 2);
/// The number of sources that are looked up at once while no more are copied, and of those of one tenant.
const PARALLEL_LOOKUPS: (usize, usize) = (16, 8);

/// The sources that are being mirrored, and those that wait for it.
#[derive(Debug)]
pub struct MirrorQueue {
    /// A lock for each source and mirror: the second job to take it finds the source mirrored.
    locks: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
    copies: TenantSlots,
    lookups: TenantSlots,
}

impl Default for MirrorQueue {
    fn default() -> Self {
        let [copies, lookups] =
            [PARALLEL_COPIES, PARALLEL_LOOKUPS].map(|(all, share)| TenantSlots::new(all, share));
        Self { locks: Mutex::default(), copies, lookups }
    }
}

impl MirrorQueue {
    /// Makes sure that the mirror of `request`, if it has one, has its source as it is now. Manifests lie in the directory
    /// `scratch` while they are looked through. `note` is told what happens, `progress` every few seconds how far it is.
    ///
    /// # Errors
    /// Those of the origin and the mirror. Where the origin can't be reached and the mirror has an earlier state, that is
    /// taken.
    pub async fn mirror(
        &self,
        request: &MountRequest,
        scratch: &Path,
        note: &(dyn Fn(String) + Send + Sync),
        progress: &(dyn Fn(String) + Send + Sync),
    ) -> Result<()> {
        let uri: Uri = request.weights.source.expose().parse()?;
        let Some(at) = &request.mirror else { return Ok(()) };
        if let Uri::Bt(_) = uri {
            // A checkpoint lies in the mirror alone.
            return Ok(());
        }
        let patterns = Patterns::filter(request.weights.allow.as_deref(), &request.weights.ignore)?;
        let (location, of, selected) = (at.url.expose().parse()?, uri.clone(), patterns.clone());
        blocking(move || mirror::check_not_inside(&location, &of, &selected)).await?;
        let mirror = mirror::open(at, scratch.to_owned())?;
        let key = source_key(&uri.tree_identity(&request.weights.access), &patterns);
        let lock = self.source_lock(format!("{}\0{}\0{key}", at.tenant, mirror.name()));
        let _lock = match lock.try_lock() {
            Ok(lock) => lock,
            Err(_) => {
                note(format!("waits for another job that mirrors {uri}"));
                lock.lock().await
            }
        };
        let mirrored = async {
            let mut slot = self.copies.try_take(&at.tenant);
            if slot.is_none() {
                // What the mirror has needs none, and copies may take hours.
                let lookup = self.lookups.take(&at.tenant).await;
                if let Some(unchanged) = find_unchanged(&mirror, &uri, &patterns, request).await? {
                    return Ok(unchanged);
                }
                drop(lookup);
                note(format!("waits for its turn to mirror {uri}: other sources are copied"));
                slot = self.copies.take(&at.tenant).await;
            }
            let added = add(&mirror, &uri, patterns, request, progress).await;
            drop(slot);
            added
        };
        match mirrored.await {
            Ok(published) => note(text::mirror_outcome(&published)),
            Err(error) => {
                let found = if is_away(&error) { mirror.find(&key).await.ok().flatten() } else { None };
                let Some(Ref { listed, .. }) = found else {
                    return Err(error.context(format!("cannot mirror {uri}")));
                };
                let listed = text::minute(listed.timestamp());
                note(format!("cannot update the mirror of {uri}; using the copy of {listed}: {error}"));
            }
        }
        Ok(())
    }

    /// [Mirrors](Self::mirror) the source of `request`, with the defaults of `mounter`. Where nobody answers and the cache has all
    /// of a snapshot, that will do.
    ///
    /// # Errors
    /// Those of the origin, the mirror and the local disk.
    pub async fn mirror_or_use_cached(
        &self,
        mounter: &Mounter,
        request: &MountRequest,
        note: &(dyn Fn(String) + Send + Sync),
        progress: &(dyn Fn(String) + Send + Sync),
    ) -> ApiResult<()> {
        let completed = mounter.with_defaults(request).await?;
        match self.mirror(&completed, &mounter.cache, note, progress).await {
            Err(error) if is_away(&error) && mounter.is_cached(request).await? => {
                note(format!("goes on with what the cache has: {error}"));
                Ok(())
            }
            mirrored => Ok(mirrored?),
        }
    }

    /// Mirrors the source of `request` once more, with `damaged` blobs of it, which its origin still has.
    ///
    /// # Errors
    /// Those of the origin and the mirror.
    pub async fn repair(
        &self,
        request: &MountRequest,
        scratch: &Path,
        damaged: &[Key],
        note: &(dyn Fn(String) + Send + Sync),
    ) -> Result<()> {
        let Some(at) = &request.mirror else { return Ok(()) };
        let mirror = mirror::open(at, scratch.to_owned())?;
        for key in damaged {
            if let Key::Content(digest) = key {
                mirror.forget(digest).await?;
            }
        }
        self.mirror(request, scratch, note, &|_| ()).await
    }

    /// The lock to hold while the source with this key is mirrored.
    fn source_lock(&self, key: String) -> Arc<AsyncMutex<()>> {
        let mut locks = self.locks.lock();
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        locks.insert(key, Arc::downgrade(&lock));
        lock
    }
}

/// Whether `error` is that nobody answers.
fn is_away(error: &Error) -> bool {
    matches!(error.kind(), Kind::Unavailable | Kind::Timeout)
}

/// Finds the source of `request` in the mirror, if that has all of it as its origin lists it now.
async fn find_unchanged(
    mirror: &Mirror,
    uri: &Uri,
    patterns: &Patterns,
    request: &MountRequest,
) -> Result<Option<MirrorOutcome>> {
    let (mirror, of) = (mirror.clone(), uri.clone());
    let (patterns, access) = (patterns.clone(), request.weights.access.clone());
    let find = move || async move {
        let source = MirrorSource::open(&of, &access, patterns).await?;
        mirror.init().await?;
        if mirror.is_exclusive() {
            // Who looks is a writer there, and there is one at a time.
            return Ok(None);
        }
        find_mirrored(&mirror, &source, MIRROR_CONFIG).await
    };
    let unchanged = |found| MirrorOutcome {
        latest_ref: found,
        new: false,
        notes: ListingNotes::default(),
        repaired: Repairs::default(),
        read: 0,
        written: 0,
    };
    Ok(run_on_blocking_thread(find).await?.map(unchanged))
}

/// Mirrors the source of `request`. `progress` is told how far it is. Dropping the future cancels that.
async fn add(
    mirror: &Mirror,
    uri: &Uri,
    patterns: Patterns,
    request: &MountRequest,
    progress: &(dyn Fn(String) + Send + Sync),
) -> Result<MirrorOutcome> {
    let counters = Arc::new(MirrorProgress::default());
    let counted = Arc::clone(&counters);
    let (mirror, of, request) = (mirror.clone(), uri.clone(), request.clone());
    let work = run_on_blocking_thread(move || async move {
        mirror_uri(&mirror, &of, &request.weights.access, patterns, MIRROR_CONFIG, &counted).await
    });
    tokio::select! {
        done = work => done,
        never = report_progress(uri, &counters, progress) => match never {},
    }
}

/// Reports every second how much of `uri` is mirrored. Never ends.
async fn report_progress(
    uri: &Uri,
    counters: &MirrorProgress,
    report: &(dyn Fn(String) + Send + Sync),
) -> Infallible {
    loop {
        sleep(MIRROR_PROGRESS_INTERVAL).await;
        let [done, all] = [&counters.bytes_done, &counters.bytes].map(|bytes| bytes.load(Ordering::Relaxed));
        if all > 0 {
            let (done, all) = (text::size(done), text::size(all));
            report(format!("mirroring {uri}: {done} of {all}; it goes on"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use bdnfs::source::{Access, Secret};

    use super::*;
    use crate::api::{MirrorRequest, Weights};

    fn request(directory: &Path) -> MountRequest {
        let url = |name: &str| Secret::new(format!("file://{}", directory.join(name).display()));
        let (source, access) = (url("source"), Access::default());
        let weights = Weights {
            source,
            mountpoint: "/m".into(),
            allow: None,
            ignore: Vec::new(),
            access,
            layout: None,
        };
        let mirror = MirrorRequest { url: url("mirror"), tenant: "t".into(), access: Access::default() };
        MountRequest {
            weights,
            tenant: None,
            mirror: Some(mirror),
            direct: false,
            offline: false,
            snapshot: None,
            allow_other: false,
            uid: None,
            gid: None,
            via: None,
            cache_size: None,
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn source_that_the_mirror_has_waits_for_no_turn() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), "first").unwrap();
        let (queue, request, notes) =
            (MirrorQueue::default(), request(directory.path()), Mutex::new(Vec::new()));
        let note = |text| notes.lock().push(text);
        let mirror = || queue.mirror(&request, directory.path(), &note, &|_| ());
        mirror().await.unwrap();
        let others = [(); PARALLEL_COPIES.1].map(|()| queue.copies.try_take("t").unwrap());
        mirror().await.unwrap();
        fs::write(source.join("file"), "second").unwrap();
        let waits = async {
            while !notes.lock().iter().any(|note: &String| note.starts_with("waits for its turn")) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            changed = mirror() => panic!("{changed:?}: {:?}", notes.lock()),
            () = waits => {}
        }
        drop(others);
        mirror().await.unwrap();
        let begins = ["mirrored", "unchanged", "waits for its turn", "mirrored"];
        let notes = notes.into_inner();
        assert!(notes.iter().zip(begins).all(|(note, begin)| note.starts_with(begin)), "{notes:?}");
        assert_eq!(notes.len(), begins.len(), "{notes:?}");
    }
}
