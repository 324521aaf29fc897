//! One publication: its request and its state.

mod end;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bdnfs::error::Kind;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::base::{Base, ENDED_MOUNT_FAULT};
use super::bind::BindTarget;
use super::record::{PendingRecord, PublicationRecord, identity, without_rules};
use crate::api::publication::{PublicationRequest, PublicationState, PublicationStatus};
use crate::api::{ApiResult, Failure};
use crate::text;
use end::EndRequest;

/// The time for which a publication may be pending without a request, and a failure is remembered: kubelets ask again at the latest
/// after two minutes.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// A publication.
#[derive(Debug)]
pub struct Publication {
    /// The key of the publication.
    pub key: String,
    /// The request without its secrets.
    pub request: PublicationRequest,
    /// The request with its secrets, as it came last; `None` where it had some that ended with the agent that knew them.
    complete: watch::Sender<Option<PublicationRequest>>,
    /// The sources and the target, which another request under the key must share.
    identity: PublicationRequest,
    /// The source, as it may be shown.
    pub source: String,
    /// The target of the bind.
    pub target: Option<BindTarget>,
    state: watch::Sender<State>,
    end: watch::Sender<Option<EndRequest>>,
    waiters: Mutex<WaiterCount>,
    /// Whether its target was bound to: the mount there is ours.
    bound: AtomicBool,
    /// The base of an earlier run, as long as that could not be restored.
    lost_base: Mutex<Option<PathBuf>>,
    /// Whether containers may still have a mount that has ended with an earlier agent.
    lost_mount: AtomicBool,
}

/// The progress of a publication: its step, base and last event.
#[derive(Clone, Debug, Default)]
struct State {
    step: Step,
    base: Option<Arc<Base>>,
    message: String,
    /// The reason why it could not be unpublished.
    unpublish_failure: Option<Failure>,
    /// Whether it has ended, and nothing is bound to its target any more.
    is_unbound: bool,
}

#[derive(Clone, Debug, Default)]
enum Step {
    #[default]
    Staging,
    Published,
    Failed(Failure),
    /// The publication was removed from the table, after it had failed for this reason, or was unpublished.
    Gone(Option<Failure>),
}

/// The waiters for a pending publication, and when the last one left.
#[derive(Debug)]
struct WaiterCount {
    waiting: usize,
    last: Instant,
}

/// A request that waits for a publication.
pub struct PublicationWaiter<'a>(&'a Publication);

impl Drop for PublicationWaiter<'_> {
    fn drop(&mut self) {
        let mut waiters = self.0.waiters.lock();
        waiters.waiting -= 1;
        waiters.last = Instant::now();
    }
}

impl Publication {
    /// A pending publication.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a source that is none.
    pub fn new(
        key: String,
        request: PublicationRequest,
        target: Option<BindTarget>,
    ) -> bdnfs::error::Result<Self> {
        let (identity, _) = identity(&request)?;
        let bare =
            PublicationRequest { consumer: request.consumer.clone(), keep: request.keep, ..identity.clone() };
        Ok(Self::with_identity(key, bare, Some(request), identity, target))
    }

    /// A publication of an earlier run.
    pub fn restore(key: String, record: PublicationRecord, target: Option<BindTarget>) -> Self {
        let PublicationRecord { request, pending, lost_mount, .. } = record;
        let identity = PublicationRequest { consumer: None, keep: false, ..request.clone() };
        let complete = pending.is_some_and(|pending| !pending.lacks_secrets).then(|| request.clone());
        let restored = Self::with_identity(key, request, complete, identity, target);
        restored.lost_mount.store(lost_mount, Ordering::Relaxed);
        restored
    }

    fn with_identity(
        key: String,
        request: PublicationRequest,
        complete: Option<PublicationRequest>,
        identity: PublicationRequest,
        target: Option<BindTarget>,
    ) -> Self {
        // The source is shown without a signature.
        let source = identity.source.expose().to_owned();
        let message = match &complete {
            Some(_) => format!("resolving {source}; it goes on"),
            None => "its secrets came with the request and were not kept when the agent ended: it goes on when it is \
                     asked for again"
                .to_owned(),
        };
        Self {
            key,
            request,
            complete: watch::Sender::new(complete),
            identity,
            source,
            target,
            state: watch::Sender::new(State { message, ..State::default() }),
            end: watch::Sender::new(None),
            waiters: Mutex::new(WaiterCount { waiting: 0, last: Instant::now() }),
            bound: AtomicBool::new(false),
            lost_base: Mutex::default(),
            lost_mount: AtomicBool::new(false),
        }
    }

    /// Whether `other` asks for the same.
    pub fn is_same(&self, other: &PublicationRequest) -> bool {
        identity(other).is_ok_and(|(other, _)| other == self.identity)
    }

    /// Whether `other` asks for the same, but for what the rules of the node make of it: tenant, trust and authorities.
    pub fn is_same_but_for_rules(&self, other: &PublicationRequest) -> bool {
        let own = without_rules(self.identity.clone());
        identity(other).is_ok_and(|(other, _)| without_rules(other) == own)
    }

    /// Takes over the secrets of `request`, which asks for the same. True if they are new.
    pub fn renew(&self, request: &PublicationRequest) -> bool {
        self.complete.send_if_modified(|complete| {
            let is_new = complete.as_ref().is_none_or(|known| {
                (&known.source, &known.access, &known.secrets)
                    != (&request.source, &request.access, &request.secrets)
            });
            *complete = Some(request.clone());
            is_new
        })
    }

    /// The request with its secrets, once they are known.
    pub async fn complete(&self) -> PublicationRequest {
        let mut complete = self.complete.subscribe();
        let known = complete.wait_for(Option::is_some).await;
        // The sender lives as long as `self`, so there is one.
        known.ok().and_then(|known| known.clone()).unwrap_or_else(|| self.request.clone())
    }

    /// The record of the publication, with its `base` once it is published.
    pub fn record(&self, base: Option<&Base>, boot: &str) -> PublicationRecord {
        let complete = self.complete.borrow();
        let lacks_secrets = complete.as_ref().is_none_or(|known| identity(known).is_ok_and(|(_, had)| had));
        let pending = base.is_none().then_some(PendingRecord { lacks_secrets });
        let base = base.map_or_else(PathBuf::new, |base| base.path().to_owned());
        let (request, lost_mount) = (self.request.clone(), self.has_lost_mount());
        PublicationRecord { request, base, boot: boot.to_owned(), pending, lost_mount }
    }

    /// The base of the publication, once it has one.
    pub fn base(&self) -> Option<Arc<Base>> {
        self.state.borrow().base.clone()
    }

    /// Sets or takes its base.
    pub fn set_base(&self, base: Option<Arc<Base>>) {
        self.state.send_modify(|state| state.base = base);
    }

    /// Sets the last event, one line.
    pub fn note(&self, text: String) {
        tracing::info!("publication {}: {text}", self.key);
        self.state.send_modify(|state| state.message = text);
    }

    /// Sets the last event without a word in the log: progress, which comes often.
    pub fn show_progress(&self, text: String) {
        self.state.send_modify(|state| state.message = text);
    }

    fn enter(&self, step: Step, message: Option<String>) {
        self.state.send_modify(|state| {
            state.step = step;
            state.message = message.unwrap_or_else(|| std::mem::take(&mut state.message));
        });
    }

    /// Marks it as published.
    pub fn set_published(&self, message: String) {
        tracing::info!("published {} ({}): {message}", self.source, self.key);
        self.enter(Step::Published, Some(message));
    }

    /// Marks it as failed, with nothing left behind.
    pub fn set_failed(&self, failure: Failure) {
        tracing::warn!("publication {} failed: {failure}", self.key);
        self.enter(Step::Failed(failure.clone()), Some(failure.message));
    }

    /// Marks it as removed from the table.
    pub fn set_gone(&self) {
        self.enter(Step::Gone(self.failure()), None);
    }

    /// Marks its target as bound to.
    pub fn set_bound(&self) {
        self.bound.store(true, Ordering::Release);
    }

    /// Whether its target was bound to.
    pub fn is_bound(&self) -> bool {
        self.bound.load(Ordering::Acquire)
    }

    /// Whether it is published.
    pub fn is_published(&self) -> bool {
        matches!(self.state.borrow().step, Step::Published)
    }

    /// Returns the reason why it failed.
    pub fn failure(&self) -> Option<Failure> {
        match &self.state.borrow().step {
            Step::Failed(failure) | Step::Gone(Some(failure)) => Some(failure.clone()),
            _ => None,
        }
    }

    /// Waits until it is not pending any more.
    pub async fn await_outcome(&self) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.state.subscribe().wait_for(|state| !matches!(state.step, Step::Staging)).await;
    }

    /// Waits until its snapshot is known, or it is not pending any more.
    pub async fn await_resolution(&self) {
        let is_over = |state: &State| state.base.is_some() || !matches!(state.step, Step::Staging);
        let _ = self.state.subscribe().wait_for(is_over).await;
    }

    /// Registers a request that waits for it.
    pub fn wait(&self) -> PublicationWaiter<'_> {
        self.waiters.lock().waiting += 1;
        PublicationWaiter(self)
    }

    /// Waits until no request has come for [`ABANDON_TIMEOUT`].
    pub async fn await_abandonment(&self) {
        loop {
            let last = {
                let waiters = self.waiters.lock();
                if waiters.waiting > 0 { Instant::now() } else { waiters.last }
            };
            if last.elapsed() >= ABANDON_TIMEOUT {
                return;
            }
            tokio::time::sleep_until(last + ABANDON_TIMEOUT).await;
        }
    }

    /// The outcome of `work`, unless the publication is asked to end or is abandoned.
    pub async fn unless_cancelled<T>(&self, work: impl Future<Output = ApiResult<T>>) -> ApiResult<T> {
        let abandoned = async {
            if self.request.keep { std::future::pending().await } else { self.await_abandonment().await }
        };
        tokio::select! {
            biased;
            // Whoever waits for it is to ask the next agent.
            () = self.await_cancellation_or_suspension() => match self.is_suspended() {
                true => Err(Failure::closing()),
                false => Err(self.unpublished()),
            },
            () = abandoned => {
                Err(Failure::new(Kind::Interrupted, "nobody has asked for it for five minutes"))
            }
            done = work => done,
        }
    }

    /// The status for clients. Needs no disk.
    pub fn status(&self) -> PublicationStatus {
        let state = self.state.borrow().clone();
        let failure = self.failure();
        let (is_published, base) = (matches!(state.step, Step::Published), state.base);
        let step = match (&failure, is_published) {
            (Some(_), _) => PublicationState::Failed,
            (None, true) => PublicationState::Published,
            (None, false) => PublicationState::Staging,
        };
        let progress = base.as_ref().and_then(|base| base.progress());
        let message = match (step, progress) {
            (PublicationState::Staging, Some(progress)) if progress.bytes > 0 => {
                let rate = text::size(progress.rate);
                let left = progress.seconds_left.map(|left| format!(", about {left} s left"));
                let (done, all) = (text::size(progress.bytes_done), text::size(progress.bytes));
                format!(
                    "staging {}: {done} of {all}, {rate}/s{}; it goes on",
                    self.source,
                    left.unwrap_or_default()
                )
            }
            _ => state.message,
        };
        let ended = || Some(ENDED_MOUNT_FAULT.to_owned());
        let live = base.as_ref().filter(|_| !self.has_lost_mount());
        let fault = if is_published { live.map_or_else(ended, |base| base.fault()) } else { None };
        let path = || match &self.target {
            Some(target) => Some(target.path()),
            None => base.as_ref().map(|base| base.path().to_owned()),
        };
        PublicationStatus {
            key: self.key.clone(),
            state: step,
            source: self.source.clone(),
            tenant: self.request.tenant.clone(),
            consumer: self.request.consumer.clone(),
            path: is_published.then(path).flatten(),
            target: self.request.target.clone(),
            snapshot: base.as_ref().map(|base| base.snapshot().to_string()),
            progress,
            abnormal: fault.is_some(),
            message: fault.unwrap_or(message),
            failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(json: &str) -> Publication {
        Publication::new("key".to_owned(), serde_json::from_str(json).expect("a request"), None).expect("one")
    }

    #[test]
    fn publication_request_with_rotated_secrets_or_other_holder_is_the_same() {
        let one = publication(r#"{"source": "https://h/x?sig=1", "secrets": {"a": "1"}, "holder": "pod a"}"#);
        let is_same = |json| one.is_same(&serde_json::from_str(json).expect("a request"));
        assert!(is_same(r#"{"source": "https://h/x?sig=1", "secrets": {"a": "2"}, "holder": "pod b"}"#));
        assert!(!is_same(r#"{"source": "https://h/y?sig=1"}"#));
        assert!(!is_same(r#"{"source": "https://h/x?sig=1", "uid": 7}"#));
        let by_rules = r#"{"source": "https://h/x?sig=1", "tenant": "t", "trusted": true, "access": {"authorities": "PEM"}}"#;
        let (ruled, other) = [by_rules, r#"{"source": "https://h/x?sig=1", "uid": 7}"#]
            .map(|json| serde_json::from_str::<PublicationRequest>(json).expect("a request"))
            .into();
        assert!(!one.is_same(&ruled) && one.is_same_but_for_rules(&ruled));
        assert!(!one.is_same_but_for_rules(&other));
    }

    #[tokio::test(start_paused = true)]
    async fn pending_publication_without_requests_is_abandoned_unless_kept() {
        let pending = || std::future::pending::<ApiResult<()>>();
        let one = publication(r#"{"source": "hf://o/m"}"#);
        let waiter = one.wait();
        let waited = tokio::time::timeout(ABANDON_TIMEOUT * 3, one.unless_cancelled(pending())).await;
        assert!(waited.is_err(), "somebody waits for it");
        drop(waiter);
        let begin = Instant::now();
        let failure = one.unless_cancelled(pending()).await.expect_err("nobody waits any more");
        assert!(failure.is(Kind::Interrupted) && begin.elapsed() >= ABANDON_TIMEOUT);
        let kept = publication(r#"{"source": "hf://o/m", "keep": true}"#);
        assert!(tokio::time::timeout(ABANDON_TIMEOUT * 3, kept.unless_cancelled(pending())).await.is_err());
        kept.suspend();
        let failure = kept.unless_cancelled(pending()).await.expect_err("suspended");
        assert_eq!(failure.kind, Failure::CLOSING, "whoever waits is to ask the next agent");
        kept.cancel();
        assert!(kept.unless_cancelled(pending()).await.expect_err("cancelled").is(Kind::Busy));
    }
}
