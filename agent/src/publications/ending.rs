//! The end of publications: of one, when its runtime asks for that, and of all, with their agent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bdnfs::task::blocking;

use super::Publications;
use super::publication::Publication;
use crate::api::{ApiResult, Failure};

impl Publications {
    /// Ends a publication, whatever its state, and waits until what was bound is gone. It is no error where there is none. Its
    /// record goes after that, where the cache's disk hangs.
    ///
    /// # Errors
    /// Why it can't be unbound; then it stays published. [`Kind::Busy`] also for one of an earlier run whose record can't be read,
    /// where nothing else tells what it has bound.
    pub async fn unpublish(self: &Arc<Self>, key: &str) -> ApiResult<()> {
        self.lifecycle.ready().await;
        self.await_adoption(key).await?;
        let found = self.table.lock().get(key).cloned();
        if let Some(publication) = found {
            publication.cancel();
            if publication.failure().is_some() {
                self.forget(&publication);
            }
            tokio::select! {
                () = publication.await_removal() => {}
                // Its record goes when the cache's disk answers. By its target the next agent finds that it has ended.
                () = publication.await_unbound(), if !publication.is_suspended() && publication.target.is_some() => {
                    return Ok(());
                }
                failure = publication.unpublish_failure() => return Err(failure),
                () = self.lifecycle.await_closing() => return Err(Failure::closing()),
            }
        }
        // A suspended publication leaves its record, with which the next agent would publish it again.
        let (publications, key) = (Arc::clone(self), key.to_owned());
        blocking(move || publications.end_unknown(&key)).await?;
        self.release_kept_bases().await;
        Ok(())
    }

    /// Ends pending publications, which the next agent resumes; with `all` for good, and published ones too.
    pub async fn end_all(self: &Arc<Self>, all: bool) {
        self.ending.store(true, Ordering::Release);
        if all {
            let publications = Arc::clone(self);
            // No container is to be started with what is about to go. That it failed is logged.
            let removed = blocking(move || {
                publications.remove_devices();
                Ok(())
            });
            let _ = removed.await;
        }
        for publication in self.all() {
            if !publication.is_published() {
                if all {
                    publication.cancel()
                } else {
                    publication.suspend()
                }
                if publication.failure().is_none() {
                    publication.await_outcome().await;
                }
            } else if let Some(target) = publication.target.clone().filter(|_| all)
                && let Err(error) = blocking(move || target.unbind()).await
            {
                tracing::warn!("{error}");
            }
        }
    }

    /// Removes a publication from the table.
    pub(super) fn forget(&self, publication: &Arc<Publication>) {
        let mut table = self.table.lock();
        if table.get(&publication.key).is_some_and(|known| Arc::ptr_eq(known, publication)) {
            table.remove(&publication.key);
        }
        drop(table);
        publication.set_gone();
    }
}
