//! Mirrors what is deployed: each source is copied once, however many jobs read it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};

use bdnfs::blob::Key;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::{Ref, source_key};
use bdnfs::mirroring::{MirrorOutcome, MirrorProgress, mirror_uri};
use bdnfs::source::{Patterns, Uri};
use bdnfs::task::on_own_thread;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use crate::api::{ApiResult, MountRequest};
use crate::mirror::{self, MIRROR_CONFIG};
use crate::mounts::Mounter;
use crate::text;

/// How many sources are mirrored at once: together they hold as much memory as fetches may.
const PARALLEL_SOURCES: usize = 2;

/// The sources that are being mirrored, and those that wait for it.
#[derive(Debug)]
pub struct MirrorQueue {
    /// A lock for each source and mirror: the second job to take it finds the source mirrored.
    locks: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
    slots: Semaphore,
}

impl Default for MirrorQueue {
    fn default() -> Self {
        Self { locks: Mutex::default(), slots: Semaphore::new(PARALLEL_SOURCES) }
    }
}

impl MirrorQueue {
    /// Makes sure that the mirror of `request`, if it has one, has its source as it is now. Manifests lie in the directory
    /// `scratch` while they are looked through. `note` is told what happens.
    ///
    /// # Errors
    /// Those of the origin and the mirror. Where the origin can't be reached and the mirror has an earlier state, that is
    /// taken.
    pub async fn mirror(
        &self,
        request: &MountRequest,
        scratch: &Path,
        note: &(dyn Fn(String) + Send + Sync),
    ) -> Result<()> {
        let uri: Uri = request.weights.source.expose().parse()?;
        let Some(at) = &request.mirror else { return Ok(()) };
        if let Uri::Bt(_) = uri {
            // A checkpoint lies in the mirror alone.
            return Ok(());
        }
        let patterns = Patterns::filter(request.weights.allow.as_deref(), &request.weights.ignore)?;
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
        if self.slots.available_permits() == 0 {
            note(format!(
                "waits for its turn to mirror {uri}: {PARALLEL_SOURCES} sources are copied at once"
            ));
        }
        let _slot = self.slots.acquire().await;
        match add(&mirror, &uri, patterns, request).await {
            Ok(published) => note(text::mirror_outcome(&published)),
            Err(error) => {
                let found = if is_away(&error) { mirror.find(&key).await.ok().flatten() } else { None };
                let Some(Ref { listed, .. }) = found else {
                    return Err(error.context(format!("cannot mirror {uri}")));
                };
                let listed = text::minute(listed.timestamp());
                note(format!("{uri} can't be mirrored anew, so it is as of {listed}: {error}"));
            }
        }
        Ok(())
    }

    /// [Mirrors](Self::mirror) the source of `request`, with the defaults of `mounter`. Where nobody answers and the cache has all of
    /// a snapshot, that will do.
    ///
    /// # Errors
    /// Those of the origin, the mirror and the local disk.
    pub async fn mirror_or_use_cached(
        &self,
        mounter: &Mounter,
        request: &MountRequest,
        note: &(dyn Fn(String) + Send + Sync),
    ) -> ApiResult<()> {
        let completed = mounter.with_defaults(request).await?;
        match self.mirror(&completed, &mounter.cache, note).await {
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
        self.mirror(request, scratch, note).await
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

/// Mirrors the source of `request`. Dropping the future cancels that.
async fn add(
    mirror: &Mirror,
    uri: &Uri,
    patterns: Patterns,
    request: &MountRequest,
) -> Result<MirrorOutcome> {
    let (mirror, uri, request) = (mirror.clone(), uri.clone(), request.clone());
    on_own_thread(move || async move {
        let progress = MirrorProgress::default();
        mirror_uri(&mirror, &uri, &request.weights.access, patterns, MIRROR_CONFIG, &progress).await
    })
    .await
}
