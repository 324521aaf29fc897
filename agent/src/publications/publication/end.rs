//! The end of a publication: asked for, awaited, failed.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bdnfs::error::Kind;

use super::{Publication, Step};
use crate::api::publication::PublicationStatus;
use crate::api::{ApiResult, Failure};

/// The time that the removal of what is no longer bound is waited for. It takes milliseconds; a kubelet waits for two minutes.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A request for a publication to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndRequest {
    /// For now: the next agent resumes it.
    Suspended,
    /// For good.
    Cancelled,
}

impl Publication {
    /// Waits until it is not in the table any more.
    pub async fn await_removal(&self) {
        let _ = self.state.subscribe().wait_for(|state| matches!(state.step, Step::Gone(_))).await;
    }

    /// Waits until nothing is bound to its target any more, and for a while that it is removed, unless the cache's disk hangs:
    /// nobody needs that to go on.
    pub async fn await_unbound(&self) {
        let _ = self.state.subscribe().wait_for(|state| state.is_unbound).await;
        tokio::time::sleep(REMOVAL_TIMEOUT).await;
    }

    /// Notes that nothing is bound to its target any more.
    pub fn set_unbound(&self) {
        self.state.send_modify(|state| state.is_unbound = true);
    }

    /// Asks it to end for good.
    pub fn cancel(&self) {
        self.state.send_modify(|state| state.unpublish_failure = None);
        self.end.send_replace(Some(EndRequest::Cancelled));
    }

    /// Asks it to end for now, unless it is to end for good: the next agent resumes it.
    pub fn suspend(&self) {
        self.end.send_modify(|end| *end = end.or(Some(EndRequest::Suspended)));
    }

    /// Whether the next agent resumes it.
    pub fn is_suspended(&self) -> bool {
        *self.end.borrow() == Some(EndRequest::Suspended)
    }

    /// Whether it was asked to end for good.
    pub fn is_cancelled(&self) -> bool {
        *self.end.borrow() == Some(EndRequest::Cancelled)
    }

    /// The answer for a request whose publication was asked to end for good meanwhile.
    pub fn unpublished(&self) -> Failure {
        let text = format!("{} was unpublished meanwhile; publish it again", self.key);
        Failure::new(Kind::Busy, text)
    }

    /// The status for a request that waited for it.
    ///
    /// # Errors
    /// [`Kind::Busy`] where it was asked to end for good meanwhile.
    pub fn status_unless_cancelled(&self) -> ApiResult<PublicationStatus> {
        if self.is_cancelled() { Err(self.unpublished()) } else { Ok(self.status()) }
    }

    /// Waits until it is asked to end for good.
    pub async fn await_cancellation(&self) {
        let _ = self.end.subscribe().wait_for(|end| *end == Some(EndRequest::Cancelled)).await;
    }

    /// Waits until it is asked to end, for now or for good.
    pub async fn await_cancellation_or_suspension(&self) {
        let _ = self.end.subscribe().wait_for(Option::is_some).await;
    }

    /// Says that it could not be unpublished: it stays as it is until it is asked to end again.
    pub fn set_unpublish_failed(&self, failure: Failure) {
        tracing::error!("cannot unpublish {}: {failure}", self.key);
        self.end.send_replace(None);
        self.state.send_modify(|state| state.unpublish_failure = Some(failure));
    }

    /// Waits until it could not be unpublished, and returns why.
    pub async fn unpublish_failure(&self) -> Failure {
        let mut states = self.state.subscribe();
        let failed = states.wait_for(|state| state.unpublish_failure.is_some()).await;
        // The sender lives as long as `self`, so there is one.
        failed.ok().and_then(|state| state.unpublish_failure.clone()).unwrap_or_else(Failure::closing)
    }

    /// Notes the base of an earlier run that could not be restored.
    pub fn set_lost_base(&self, base: PathBuf) {
        *self.lost_base.lock() = Some(base);
    }

    /// Notes that its base was mounted anew: containers keep the mount of an earlier agent, which is dead.
    pub fn set_lost_mount(&self) {
        self.lost_mount.store(true, Ordering::Relaxed);
    }

    /// Whether containers may still have a mount that has ended with an earlier agent.
    pub fn has_lost_mount(&self) -> bool {
        self.lost_mount.load(Ordering::Relaxed)
    }

    /// Whether it is one of those whose base, at `path`, could not be restored.
    pub fn has_lost_base(&self, path: &PathBuf) -> bool {
        self.lost_base.lock().as_ref() == Some(path)
    }

    /// Takes the base of an earlier run that could not be restored.
    pub fn take_lost_base(&self) -> Option<PathBuf> {
        self.lost_base.lock().take()
    }
}
