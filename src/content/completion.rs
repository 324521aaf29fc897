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
        if self.whole.get().is_some() {
            return true;
        }
        let complete = self.part().is_some_and(|p| p.presence().missing() == 0);
        if complete && !self.committing.swap(true, Ordering::Relaxed) {
            // A disk that failed a while ago may do by now.
            self.broken().take_if(|error| error.kind() != Kind::Corrupt);
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
        let Some(partial) = self.part() else { return };
        if let Err(error) = self.prove(&partial) {
            if error.kind() == Kind::Corrupt
                && let Err(error) = partial.discard()
            {
                tracing::warn!(%error, "cannot discard what is not right");
            }
            return self.completed(Err(error));
        }
        let resources = self.resources.clone();
        resources.cache.committer().commit(partial, move |whole| self.completed(whole));
    }

    /// Holds the whole content against the SHA-256 that its origin publishes, where it does and nothing better is known.
    fn prove(&self, partial: &PartialBlob) -> Result<()> {
        let proved = self.blob.checks.is_some();
        let Some(expected) = self.blob.sha256.as_ref().filter(|_| !proved) else { return Ok(()) };
        let mut hasher = Sha256::new();
        for index in 0..block::count(self.blob.size) {
            hasher.update(partial.read_once(index)?);
        }
        if hasher.finalize().as_slice() == expected {
            return Ok(());
        }
        let path = String::from_utf8_lossy(&self.blob.path);
        Err(Error::new(
            Kind::Corrupt,
            format!(
                "{path}: the origin sent content that does not have the SHA-256 it publishes; it was discarded"
            ),
        ))
    }

    fn completed(&self, whole: Result<File>) {
        match whole {
            Ok(file) => {
                self.whole.set(Arc::new(file)).ok();
                // Its descriptors are of no more use.
                *self.slot() = None;
            }
            Err(error) => {
                tracing::warn!(%error, "a blob did not become whole");
                let hopeful = error.kind() != Kind::Corrupt;
                self.broken().get_or_insert(error);
                self.committing.store(!hopeful, Ordering::Relaxed);
            }
        }
        self.news.notify_waiters();
    }

    /// Why what is here must not be read. A disk that can't commit a blob is no reason: its bytes are right.
    pub(super) fn wrong_blocks(&self) -> Option<Error> {
        self.broken().as_ref().filter(|error| error.kind() == Kind::Corrupt).map(Error::share)
    }

    fn broken(&self) -> MutexGuard<'_, Option<Error>> {
        self.broken.lock()
    }

    /// Waits until the blob is whole and durable.
    ///
    /// # Errors
    /// What keeps it from ever being so.
    pub async fn became_whole(&self) -> Result<Arc<File>> {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if let Some(file) = self.whole.get() {
                return Ok(file.clone());
            }
            if let Some(error) = &*self.broken() {
                return Err(error.share());
            }
            news.await;
        }
    }
}
