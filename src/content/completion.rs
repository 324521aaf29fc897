//! Completion: proving a blob and making it durable once no block of it is missing.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use sha2::{Digest as _, Sha256};

use crate::block;
use crate::cache::partial::PartialBlob;
use crate::error::{Error, Kind, Result};

use super::Content;

impl Content {
    /// Makes the blob whole once nothing of it is missing. False as long as something is.
    pub(crate) fn finish(self: &Arc<Self>) -> bool {
        if self.is_whole() {
            return true;
        }
        let complete = self.part().is_some_and(|p| p.presence().missing() == 0);
        if complete && !self.committing.swap(true, Ordering::Relaxed) {
            // A disk that failed a while ago may work by now.
            self.commit_error().take();
            let content = self.clone();
            self.resources.runtime.spawn_blocking(move || content.commit());
        }
        complete
    }

    /// Whether all of it is here, and it is on its way to be whole.
    pub(crate) fn is_finishing(&self) -> bool {
        self.committing.load(Ordering::Relaxed)
    }

    fn commit(self: Arc<Self>) {
        let Some(partial) = self.part() else {
            return self.committing.store(false, Ordering::Relaxed);
        };
        match self.verify_sha256(&partial) {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::Corrupt => return self.discard_wrong(&partial, error),
            Err(error) => return self.on_committed(Err(error)),
        }
        let resources = self.resources.clone();
        resources.cache.committer().commit(partial, move |whole| self.on_committed(whole));
    }

    /// Holds the whole content against the SHA-256 that its origin publishes, where it does and nothing better is known.
    fn verify_sha256(&self, partial: &PartialBlob) -> Result<()> {
        let Some(expected) = self.published_sha256() else { return Ok(()) };
        let mut hasher = Sha256::new();
        for index in 0..block::count(self.blob.size) {
            hasher.update(partial.read_once(index)?);
        }
        self.compare(hasher, expected)
    }

    /// The SHA-256 that the origin publishes, where nothing better is known.
    pub(super) fn published_sha256(&self) -> Option<&[u8; 32]> {
        self.blob.sha256.as_ref().filter(|_| self.blob.checks.is_none())
    }

    /// Compares what was hashed of the whole content with what its origin publishes.
    pub(super) fn compare(&self, hasher: Sha256, expected: &[u8; 32]) -> Result<()> {
        if hasher.finalize().as_slice() == expected {
            return Ok(());
        }
        let path = String::from_utf8_lossy(&self.blob.path);
        let text = "the origin sent content that does not have the SHA-256 it publishes; it was discarded";
        Err(Error::new(Kind::Corrupt, format!("{path}: {text}")))
    }

    /// Discards what came, which is not the content, and allows fetching it again.
    fn discard_wrong(&self, partial: &PartialBlob, error: Error) {
        tracing::warn!(%error, "a blob was refuted");
        self.record_refutation(error);
        self.discard(partial);
        self.committing.store(false, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Keeps the content, of which some was read and discarded, from being fetched anew for a while.
    pub(super) fn refute(&self, error: Error) {
        self.record_refutation(error);
        self.changed.notify_waiters();
    }

    /// Records why what came is not the content: for its users, and for those who open it anew once it is closed.
    fn record_refutation(&self, error: Error) {
        self.refutation.record(error);
        self.resources.refutations.remember(self.blob.key, &self.refutation);
    }

    /// Discards the part in the cache. Listeners drop the blocks that they cached.
    pub(super) fn discard(&self, partial: &PartialBlob) {
        let removal = self.resources.cache.mark_removal(&self.blob.key);
        if let Err(error) = self.resources.cache.discard(partial) {
            tracing::warn!(%error, "cannot discard damaged content");
        }
        *self.slot() = None;
        self.resources.cache.notify_removed(&removal, None);
    }

    /// Drops the removed file, and opens the one that replaced it, if any.
    pub(crate) fn reopen(&self) {
        self.removals.fetch_add(1, Ordering::SeqCst);
        self.resources.recent_blocks.forget(&self.blob.key);
        let mut whole = self.whole.write();
        if let Some(removed) = whole.take() {
            self.resources.cache.watch_removed(&self.blob.key, &removed);
            self.committing.store(false, Ordering::Relaxed);
            *whole =
                self.resources.cache.open_whole(&self.blob.key, self.blob.size).ok().flatten().map(Arc::new);
        }
    }

    /// Waits until the content may be fetched anew, after it was refuted.
    pub(crate) async fn await_retry(&self) {
        if let Some(at) = self.refutation.retry_at() {
            tokio::time::sleep_until(at).await;
        }
    }

    fn on_committed(&self, whole: Result<File>) {
        match whole {
            Ok(file) => {
                self.resources.refutations.forget(&self.blob.key);
                *self.whole.write() = Some(Arc::new(file));
                // The part's descriptors are no longer needed.
                *self.slot() = None;
            }
            Err(error) => {
                tracing::warn!(%error, "a blob did not become whole");
                self.commit_error().get_or_insert(error);
                self.committing.store(false, Ordering::Relaxed);
            }
        }
        self.changed.notify_waiters();
    }

    fn commit_error(&self) -> MutexGuard<'_, Option<Error>> {
        self.commit_error.lock()
    }

    /// Waits until the blob is whole and durable.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when what came was not right, now or a moment ago; [`Kind::Disk`] when it could not be made durable.
    pub async fn became_whole(&self) -> Result<Arc<File>> {
        let refuted = self.refutation.times();
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(file) = self.whole() {
                return Ok(file);
            }
            let anew = self.refutation.last().filter(|_| self.refutation.times() > refuted);
            if let Some(error) = anew.or_else(|| self.refutation.active_error()) {
                return Err(error);
            }
            if let Some(error) = &*self.commit_error() {
                return Err(error.share());
            }
            changed.await;
        }
    }
}
