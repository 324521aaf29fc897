//! The deployment of a publication: mirrored, mounted, admitted, staged, bound; and taken down.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::task::{blocking, join_error};

use super::base::{Base, BaseKey};
use super::publication::Publication;
use super::{Publications, trust};
use crate::api::job::Verdict;
use crate::api::publication::{PublicationRequest, Staging};
use crate::api::{ApiResult, Failure, MountRequest, Weights};
use crate::mounts::ResolvedSnapshot;
use crate::{deploy, text};

impl Publications {
    /// Carries a publication from its first request to its end.
    pub(super) async fn run(self: Arc<Self>, publication: Arc<Publication>) {
        let (publications, deployed) = (Arc::clone(&self), Arc::clone(&publication));
        // In a task of its own: a panic is a failure, and whoever waits for the outcome gets it.
        let deployment = tokio::spawn(async move { publications.deploy(&deployed).await });
        match deployment.await.unwrap_or_else(|error| Err(join_error(error).into())) {
            Ok(message) => {
                publication.set_published(message);
                self.unpublish_when_cancelled(publication).await;
            }
            Err(failure) => {
                // What can't be unbound is an orphan, which is tried again.
                if let Err(error) = self.unbind(&publication).await {
                    tracing::error!("cannot unpublish {}: {error}", publication.key);
                }
                self.release_base(&publication, true).await;
                publication.set_failed(failure);
                // The next request gets the failure.
                tokio::select! {
                    () = publication.await_cancellation_or_suspension() => {}
                    () = publication.await_abandonment() => {}
                }
                self.forget(&publication);
            }
        }
    }

    /// Mirrors, mounts, admits, stages and binds; returns the outcome in one line.
    pub(super) async fn deploy(self: &Arc<Self>, publication: &Arc<Publication>) -> ApiResult<String> {
        let begin = Instant::now();
        let (publications, pending) = (Arc::clone(self), Arc::clone(publication));
        // The next agent resumes it.
        blocking(move || publications.records.put(&pending.key, &pending.record(None, &publications.boot)))
            .await?;
        let (request, found) = publication.unless_cancelled(self.resolve(publication)).await?;
        let tenant = request.tenant.clone().unwrap_or_else(|| self.tenant().to_owned());
        let key = BaseKey::new(tenant, found.snapshot.tree_id(), &request);
        let publications = Arc::clone(self);
        let base = blocking(move || publications.bases.join(key)).await?;
        publication.set_base(Some(Arc::clone(&base)));
        let weights = Weights { mountpoint: base.path().to_owned(), ..request.weights };
        // One step: a publication that is given up unmounts what it mounted.
        self.bases.mount(&base, MountRequest { weights, ..request }, found).await?;
        // Secrets may have come since, or another publication may have made the mount.
        self.renew_mount(publication).await;
        let was_staged = base.is_staged();
        if publication.request.staging == Staging::Wait {
            let name = format!("publication {}", publication.key);
            let stage = self.bases.stage(&base, &name, |text| publication.note(text));
            publication.unless_cancelled(stage).await?;
        }
        publication.unless_cancelled(std::future::ready(Ok(()))).await?;
        let (publications, bound, of) = (Arc::clone(self), Arc::clone(publication), Arc::clone(&base));
        blocking(move || {
            if of.is_unmounted()? {
                let text = format!("{} was unmounted by somebody else; try again", of.path().display());
                return Err(Error::new(Kind::Interrupted, text));
            }
            // Written first, so that no bind is without a record.
            publications.records.put(&bound.key, &bound.record(Some(&of), &publications.boot))?;
            let Some(target) = &bound.target else { return Ok(()) };
            target.bind(of.path())?;
            bound.set_bound();
            Ok(())
        })
        .await
        .map_err(Failure::of_rules)?;
        self.outcome(publication, &base, was_staged, begin).await
    }

    /// Finds the snapshot, after it was mirrored.
    async fn resolve(&self, publication: &Arc<Publication>) -> ApiResult<(MountRequest, ResolvedSnapshot)> {
        let mounter = self.mounts.mounter();
        let request = mount_request(publication.complete().await, &self.config.inline_sources)?;
        let (note, progress) = (|text| publication.note(text), |text| publication.show_progress(text));
        self.mirrors.mirror_or_use_cached(mounter, &request, &note, &progress).await?;
        // The secrets may have expired meanwhile.
        let request = mount_request(publication.complete().await, &self.config.inline_sources)?;
        let found = mounter.resolve(&request).await?;
        Ok((request, found))
    }

    /// The outcome of a publication, in one line.
    async fn outcome(
        &self,
        publication: &Publication,
        base: &Base,
        was_staged: bool,
        begin: Instant,
    ) -> ApiResult<String> {
        let Some(mount) = base.mount().filter(|_| publication.request.staging == Staging::Wait) else {
            return Ok("published before it is staged: bytes are fetched as they are read".to_owned());
        };
        let report = deploy::report(vec![(Arc::clone(mount), base.path().to_owned())]).await?;
        let (bytes, seconds) = (text::size(report.total.bytes), begin.elapsed().as_secs_f64());
        // What an earlier one brought is here for the next.
        let verdict = if was_staged { Verdict::Node } else { report.verdict };
        Ok(format!("staged {bytes} in {seconds:.1} s, {verdict}"))
    }

    /// Waits until a published one is cancelled, and takes it down. One that was suspended while it was bound stays as it is.
    pub(super) async fn unpublish_when_cancelled(self: Arc<Self>, publication: Arc<Publication>) {
        loop {
            publication.await_cancellation().await;
            match self.take_down(&publication).await {
                Ok(()) => break,
                Err(error) => publication.set_unpublish_failed(error.into()),
            }
        }
        tracing::info!("unpublished {} ({})", publication.source, publication.key);
        self.forget(&publication);
    }

    /// Unbinds a publication, and gives its record and its base back.
    ///
    /// # Errors
    /// Why it can't be unbound; then nothing of it has changed.
    pub(super) async fn take_down(self: &Arc<Self>, publication: &Arc<Publication>) -> Result<()> {
        self.unbind(publication).await?;
        self.release_base(publication, false).await;
        Ok(())
    }

    /// Unbinds a publication, and removes its record, unless the next agent resumes it.
    pub(super) async fn unbind(self: &Arc<Self>, publication: &Arc<Publication>) -> Result<()> {
        let bound = Arc::clone(publication);
        blocking(move || match bound.target.as_ref().filter(|_| bound.is_bound()) {
            Some(target) => target.unbind(),
            None => Ok(()),
        })
        .await?;
        publication.set_unbound();
        let (publications, unbound) = (Arc::clone(self), Arc::clone(publication));
        blocking(move || {
            // One that stays is of a publication that has ended, as the next agent finds.
            if !unbound.is_suspended()
                && let Err(error) = publications.records.remove(&unbound.key)
            {
                tracing::error!("publication {}: {error}", unbound.key);
            }
            Ok(())
        })
        .await
    }

    /// Gives the base of a publication back; with `wait`, it is gone when this returns if nobody else has it.
    pub(super) async fn release_base(&self, publication: &Arc<Publication>, wait: bool) {
        if let Some(base) = publication.base() {
            publication.set_base(None);
            self.bases.release(&base, wait).await;
        }
        // Taken first: of those that end at once, the last one finds no other.
        let Some(path) = publication.take_lost_base() else { return };
        if !self.all().iter().any(|other| other.has_lost_base(&path)) {
            self.mounts.forget_failed(&path).await;
        }
    }
}

/// The mount request for `asked`, without a mount point yet.
pub(super) fn mount_request(asked: PublicationRequest, inline_sources: &[String]) -> Result<MountRequest> {
    let access = trust::access(&asked, inline_sources)?;
    let PublicationRequest { source, allow, ignore, mirror, tenant, uid, gid, layout, .. } = asked;
    let weights = Weights { source, mountpoint: PathBuf::new(), allow, ignore, access, layout };
    Ok(MountRequest {
        weights,
        tenant,
        mirror,
        direct: false,
        offline: false,
        snapshot: None,
        allow_other: rustix::process::geteuid().is_root(),
        uid,
        gid,
        via: None,
        cache_size: None,
    })
}
