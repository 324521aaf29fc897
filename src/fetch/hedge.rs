//! Hedging: a second request beside one that stalls.
//!
//! Where another tier is left, a request that stalls is given up for that. A peer, which is near, may take much less, and is
//! judged by its own tier, which hears from it even while it has nothing to send ([`crate::peer`]). The last tier has none below
//! it: there a second request starts beside the first, and what brings the next block first goes on alone. So one bad connection
//! costs [`REQUEST_STALL_TIMEOUT`], and a server that is slow with every response is still waited for by the first. A second one
//! that stalls as well is replaced, one that fails is followed by another soon.

use std::future::pending;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::FetchStep;
use super::attempt::REQUEST_STALL_TIMEOUT;
use super::parallelism::{Parallelism, RequestSlot};
use super::tier_request::{FetchContext, TierRequest};
use crate::backoff::{Backoff, entropy};
use crate::block::{Arrival, BLOCK};
use crate::error::{Error, Kind, Result};
use crate::extent::Extent;
use crate::tier::Urgency;

/// The time that a request to the last tier may take for a block: a slower one is useless to a reader, whatever its siblings do.
const BLOCK_DEADLINE: Duration = Duration::from_secs(30);

/// The time for which a second request may stall until it is replaced: several have their turn within the deadline of a read, and a
/// server that is slow with every response is not sent many.
const HEDGE_STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The least time after a failed second request until another one follows, and the least time after many.
const FAILED_HEDGE_WAITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(8)];

/// The ratio by which a request that is behind is slower than its siblings on average.
const SLOW_REQUEST_RATIO: u64 = 4;

/// One request to a tier, or two at once for the same blocks.
pub(super) struct HedgedRequest<'a> {
    context: &'a FetchContext<'a>,
    parallelism: &'a Parallelism,
    target: Target<'a>,
    first: (TierRequest<'a>, Option<RequestSlot<'a>>),
    second: Option<(TierRequest<'a>, Option<RequestSlot<'a>>)>,
}

/// The blob, in which units, the tier to ask, how urgently, and how long it may stall while another tier is left.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub step: FetchStep<'a>,
    pub blob: &'a crate::blob::Blob,
    /// The length of what is counted, in bytes.
    pub unit: u64,
    /// As it is now: readers join while it is under way.
    pub urgency: &'a (dyn Fn() -> Urgency + Sync),
    pub stall_timeout: Duration,
}

/// A while over which requests are judged, with what had arrived when it began.
struct Window {
    began: Instant,
    mine: u64,
    all: u64,
}

impl<'a> HedgedRequest<'a> {
    /// Asks for `extent`. Waits until the last tier can take one more request.
    pub async fn new(
        context: &'a FetchContext<'a>,
        parallelism: &'a Parallelism,
        target: Target<'a>,
        extent: Extent,
    ) -> Self {
        let slot = match target.step.last {
            true => Some(parallelism.acquire(target.urgency).await),
            false => None,
        };
        let first = (target.request(context, extent), slot);
        Self { context, parallelism, target, first, second: None }
    }

    /// The blocks that are still to come.
    pub fn extent(&self) -> Extent {
        self.first.0.extent
    }

    /// Returns the time until the tier's first byte, and the time since.
    pub fn latency_and_flow(&self) -> (Duration, Duration) {
        let (elapsed, latency) = (self.first.0.elapsed(), self.first.0.latency);
        let latency = latency.unwrap_or(elapsed);
        (latency, elapsed.saturating_sub(latency))
    }

    /// The next block, unverified; `None` when the tier does not have it.
    ///
    /// # Errors
    /// [`Kind::Timeout`] when it stalls: where another tier is left at once, else at `deadline`.
    pub async fn next(&mut self, deadline: Instant) -> Result<Option<Arrival>> {
        let (mut window, mut stall_limit, mut in_time) = (self.window(), REQUEST_STALL_TIMEOUT, true);
        let mut failed = None;
        let step = self.target.step;
        let unanswered = self.first.0.latency.is_none();
        let arrived = loop {
            let limit = if step.last { stall_limit } else { self.block_timeout(unanswered) };
            let until = deadline.min(window.began + limit);
            tokio::select! {
                biased;
                arrived = self.first.0.next() => match (arrived, self.second.take()) {
                    (Ok(None) | Err(_), Some(second)) => {
                        self.first = second;
                        window = self.window();
                    }
                    (arrived, _) => break arrived,
                },
                arrived = second(&mut self.second) => match (arrived, self.second.take()) {
                    (Ok(Some(arrival)), Some(second)) => {
                        self.first = second;
                        break Ok(Some(arrival));
                    }
                    _ => {
                        let [first, longest] = FAILED_HEDGE_WAITS;
                        let waits = failed.get_or_insert_with(|| Backoff::new(first, longest, entropy()));
                        (window, stall_limit) = (self.window(), waits.wait());
                    }
                },
                () = sleep_until(until), if step.peer.is_none() => {
                    if step.last && until < deadline {
                        in_time = false;
                        if self.is_slow(&window) {
                            self.hedge();
                            (window, stall_limit) = (self.window(), HEDGE_STALL_TIMEOUT);
                        } else {
                            // What stalls from now on has stalled since its last byte.
                            window = Window { began: self.last_byte(), ..self.window() };
                            stall_limit = stall_limit.max(REQUEST_STALL_TIMEOUT);
                        }
                    } else if until == deadline || window.began.elapsed() >= self.block_timeout(unanswered) {
                        return Err(self.stalled(window.began.elapsed()));
                    }
                }
            }
        };
        if step.last && in_time {
            self.parallelism.grow();
        }
        arrived
    }

    /// Returns the time that a block may take where another tier is left. The first byte has a window of its own, if it was still
    /// `unanswered` when the block was asked for.
    fn block_timeout(&self, unanswered: bool) -> Duration {
        self.target.stall_timeout + self.first.0.latency.filter(|_| unanswered).unwrap_or_default()
    }

    fn window(&self) -> Window {
        Window { began: Instant::now(), mine: self.received(), all: self.context.received.load(Relaxed) }
    }

    fn received(&self) -> u64 {
        self.first.0.received + self.second.as_ref().map_or(0, |(second, _)| second.received)
    }

    /// When the last byte arrived, or the last request was made.
    fn last_byte(&self) -> Instant {
        let second = self.second.as_ref().map(|(second, _)| second.last_byte);
        self.first.0.last_byte.max(second.unwrap_or(self.first.0.last_byte))
    }

    /// Whether what arrived since `window` began is too little: for a reader, or compared with the siblings. If it is too
    /// little for these, too, fewer requests are made from now on.
    fn is_slow(&self, window: &Window) -> bool {
        let mine = self.received() - window.mine;
        let all = self.context.received.load(Relaxed) - window.all;
        let siblings = self.parallelism.used().saturating_sub(1) as u64;
        let theirs = all.saturating_sub(mine) / siblings.max(1);
        let due = BLOCK as f64 * window.began.elapsed().as_secs_f64() / BLOCK_DEADLINE.as_secs_f64();
        let useless = |bytes: u64| (bytes as f64) < due;
        if useless(mine) && useless(theirs) {
            self.parallelism.shrink();
        }
        useless(mine) || mine < theirs / SLOW_REQUEST_RATIO
    }

    /// Starts a second request, in place of the slower one where there are two, if the tier can take it.
    fn hedge(&mut self) {
        if let Some(second) = self.second.take()
            && second.0.received > self.first.0.received
        {
            self.first = second;
        }
        let Some(slot) = self.parallelism.try_acquire() else { return };
        tracing::debug!(kind = %self.target.step.tier.kind(), "a request stalls: asking once more beside it");
        self.second = Some((self.target.request(self.context, self.extent()), Some(slot)));
    }

    fn stalled(&self, waited: Duration) -> Error {
        let kind = self.target.step.tier.kind();
        let text = match self.first.0.latency {
            None => format!("the {kind} did not respond within {} s", waited.as_secs()),
            Some(_) => format!("the {kind} stopped sending within block {}", self.first.0.block()),
        };
        Error::new(Kind::Timeout, text)
    }
}

impl<'a> Target<'a> {
    fn request(&self, context: &'a FetchContext<'a>, extent: Extent) -> TierRequest<'a> {
        TierRequest::new(context, self.step.tier, (self.blob, self.unit), extent, (self.urgency)())
    }
}

/// The next block of a second request, where there is one.
async fn second(second: &mut Option<(TierRequest<'_>, Option<RequestSlot<'_>>)>) -> Result<Option<Arrival>> {
    match second {
        Some((request, _)) => request.next().await,
        None => pending().await,
    }
}
