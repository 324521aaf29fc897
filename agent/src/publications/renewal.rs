//! Requests for what is published: they bring newer secrets, and never take it away.

use std::sync::Arc;

use bdnfs::task::blocking;

use super::bind::BindTarget;
use super::publication::Publication;
use super::{Publications, trust};
use crate::api::ApiResult;
use crate::api::publication::{PublicationRequest, PublicationStatus};

impl Publications {
    /// The publication with this key that is published as `request` asks for, whatever the rules make of that by now.
    pub(super) fn find_published(&self, key: &str, request: &PublicationRequest) -> Option<Arc<Publication>> {
        let found = self.table.lock().get(key).cloned()?;
        let is_it = found.is_published() && !found.is_cancelled() && found.is_same_but_for_rules(request);
        is_it.then_some(found)
    }

    /// Whether whoever asks again for a published one finds its content: in its base, or at its target, which outlives that. Where
    /// this can't be told, it is likely: nothing is taken away.
    pub(super) async fn is_shown(&self, publication: &Arc<Publication>) -> bool {
        let own = Arc::clone(publication);
        let is_shown = move || {
            let is_unmounted = own.base().is_some_and(|base| base.is_unmounted().unwrap_or(false));
            let is_bound = |target: &BindTarget| !matches!(target.mounted(), Ok(None));
            Ok(!is_unmounted || own.target.as_ref().is_some_and(is_bound))
        };
        blocking(is_shown).await.unwrap_or(true)
    }

    /// Answers a repeated request. What is published stays, but only a request that the rules allow brings new secrets.
    pub(super) async fn republish(
        &self,
        publication: &Arc<Publication>,
        request: &PublicationRequest,
    ) -> ApiResult<PublicationStatus> {
        match self.check(&publication.key, request).await {
            // What failed without them, as the fetch of lost data, may succeed now.
            Ok(_) if self.renew(publication, request).await => {
                publication.base().into_iter().for_each(|base| base.retry_refill());
            }
            Ok(_) => {}
            Err(refused) => tracing::warn!("publication {} stays published: {refused}", publication.key),
        }
        self.rebind(publication).await?;
        publication.status_unless_cancelled()
    }

    /// Takes over the secrets of a repeated request, which may be newer, for its mount, made or to be made. True if they are new.
    pub(super) async fn renew(&self, publication: &Publication, request: &PublicationRequest) -> bool {
        // Secrets that only come again are not newer than those of another publication with the same mount.
        let is_new = publication.renew(request);
        if is_new {
            self.renew_mount(publication).await;
        }
        is_new
    }

    /// Gives the mount of a publication, if there is one, the secrets that came last for the publication.
    pub(super) async fn renew_mount(&self, publication: &Publication) {
        let Some(mount) = publication.base().and_then(|base| base.mount().cloned()) else { return };
        let asked = publication.complete().await;
        let Ok(access) = trust::access(&asked, &self.config.inline_sources) else { return };
        self.mounts.renew_secret(mount, access).await;
    }

    /// Binds a target again that was unmounted from outside.
    pub(super) async fn rebind(&self, publication: &Arc<Publication>) -> ApiResult<()> {
        let (Some(target), Some(base)) = (publication.target.clone(), publication.base()) else {
            return Ok(());
        };
        let own = Arc::clone(publication);
        let bind = move || {
            match target.mounted() {
                Ok(None) => {}
                Ok(Some(_)) => return Ok(()),
                // An error would take away what is likely to be there.
                Err(error) => {
                    tracing::warn!("publication {} stays published: {error}", own.key);
                    return Ok(());
                }
            }
            target.bind(base.path())?;
            // It may have been unbound in between, for good.
            if own.is_cancelled() { target.unbind() } else { Ok(()) }
        };
        Ok(blocking(bind).await?)
    }
}
