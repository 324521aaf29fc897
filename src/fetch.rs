//! Fetch: asking one tier after the other until one has the right bytes.

mod attempt;
mod hedge;
mod parallelism;
#[cfg(test)]
mod tests;
mod tier_request;
mod wanted;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument;

use crate::backoff::{Backoff, entropy};
use crate::blob::Blob;
use crate::block::{self, Arrival};
use crate::buffer::BufferPool;
use crate::error::{Error, Kind, Result};
use crate::extent::{Extent, Pace};
use crate::metrics::SnapshotMetrics;
use crate::placement::Placement;
use crate::tier::{Tier, TierKind, Urgency};

use attempt::{FetchAttempt, FetchStep, REQUEST_STALL_TIMEOUT, combine_errors, may_pass};
use hedge::{HedgedRequest, Target};
use parallelism::Parallelism;
use tier_request::FetchContext;
pub use wanted::Wanted;

/// The first wait before the tiers are asked again, and the longest.
const ATTEMPT_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The number of times that a tier may send wrong bytes before no others are expected of it.
const WRONG_BYTES_LIMIT: u32 = 3;

/// The number of groups that a stage interleaves at a time: so many that each owner's part of them is in proportion to its share.
const INTERLEAVED_GROUPS: usize = 256;

/// The number of blocks of one flight that may be hashed and written at the same time as the next ones arrive.
const BLOCKS_IN_ACCEPTANCE: usize = 3;

/// The tiers that a fetch may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchScope {
    /// All tiers, also the owners among the peers, which may make it wait.
    All,
    /// Only tiers that wait for no other node, because other nodes may wait for this fetch.
    Direct,
}

/// The outcome of a fetch that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// All blocks were accepted.
    Complete,
    /// The node has become the owner of the missing blocks, and must fetch them as [`FetchScope::Direct`].
    BecameOwner,
}

/// The tiers below the node cache, nearest first.
#[derive(Debug)]
pub struct Ladder {
    /// The placement on the peers, which are asked first.
    placement: Option<Arc<dyn Placement>>,
    tiers: Vec<Arc<dyn Tier>>,
    counters: Arc<SnapshotMetrics>,
    pace: Mutex<Pace>,
    /// The number of requests that the last tier gets at once.
    parallelism: Parallelism,
    /// Bytes that arrived from all tiers.
    received: AtomicU64,
    buffers: Arc<BufferPool>,
    /// The seed of the jitter of retries.
    seed: fn() -> u64,
    /// The reason why the tiers lacked the last blocks that were asked for, and the time of that.
    last_failure: Mutex<Option<(Instant, Error)>>,
}

impl Ladder {
    /// A ladder of `tiers`, which counts into `counters` and puts what arrives into `buffers`.
    pub fn new(tiers: Vec<Arc<dyn Tier>>, counters: Arc<SnapshotMetrics>, buffers: Arc<BufferPool>) -> Self {
        Self {
            placement: None,
            tiers,
            counters,
            pace: Mutex::default(),
            parallelism: Parallelism::default(),
            received: AtomicU64::new(0),
            buffers,
            seed: entropy,
            last_failure: Mutex::default(),
        }
    }

    /// Places the ladder in a cluster: the peers of `placement` are asked before all other tiers.
    pub fn with_placement(mut self, placement: Option<Arc<dyn Placement>>) -> Self {
        self.placement = placement;
        self
    }

    /// Replaces the randomness of its backoff by `seed`, for a run that can be repeated.
    pub fn with_seed(mut self, seed: fn() -> u64) -> Self {
        self.seed = seed;
        self
    }

    /// The placement of `blob` in the cluster; `None` where its blocks could not be verified, so that no
    /// other node is asked.
    fn placement(&self, blob: &Blob) -> Option<&dyn Placement> {
        self.placement.as_deref().filter(|_| blob.checks.is_some())
    }

    /// Whether other nodes may have `blob`.
    pub(crate) fn is_shared(&self, blob: &Blob) -> bool {
        self.placement(blob).is_some()
    }

    /// Returns the number of blocks of `blob` to ask for at once, from block `index` on: as many as suit the tiers' pace, or in a
    /// cluster the rest of the group, which all nodes cut alike.
    pub fn extent_blocks(&self, blob: &Blob, index: u64) -> u64 {
        match self.placement(blob) {
            Some(placement) => {
                let group = placement.group_blocks(blob);
                group - index % group
            }
            None => self.pace.lock().blocks(),
        }
    }

    /// The tiers that a fetch of block `index` of `blob` may ask. An owner waits for no other node.
    pub fn scope(&self, blob: &Blob, index: u64) -> FetchScope {
        match self.placement(blob) {
            Some(placement) if !placement.is_owner(blob, index) => FetchScope::All,
            _ => FetchScope::Direct,
        }
    }

    /// Waits while the membership of the cluster is unstable, if `blob` is shared there.
    pub async fn await_stable_membership(&self, blob: &Blob) {
        if let Some(placement) = self.placement(blob) {
            placement.await_stable_membership().await;
        }
    }

    /// The next runs of blocks for a stage of `blob` to ask for, from block `first` on: in a cluster groups of many owners,
    /// interleaved, else all the rest. Empty at the end of the blob.
    pub fn stage_order(&self, blob: &Blob, first: u64) -> Vec<Range<u64>> {
        let count = block::count(blob.size);
        let placement = self.placement(blob);
        let group = placement.map_or(count.max(1), |placement| placement.group_blocks(blob));
        let mut groups: Vec<_> = (first..count).step_by(group as usize).take(INTERLEAVED_GROUPS).collect();
        if let Some(placement) = placement {
            placement.interleave_owners(blob, &mut groups);
        }
        groups.into_iter().map(|first| first..count.min(first + group)).collect()
    }

    /// Whether the origin is one of the tiers.
    pub fn has_origin(&self) -> bool {
        self.tiers.iter().any(|tier| tier.kind() == TierKind::Origin)
    }

    /// The tiers that `attempt` may ask, in order.
    fn steps<'a, 'b>(
        &'a self,
        attempt: &FetchAttempt<'b>,
    ) -> impl Iterator<Item = FetchStep<'a>> + use<'a, 'b> {
        let (blob, scope) = (attempt.blob, attempt.scope);
        let peers = self.placement(blob).map_or(&[][..], |placement| placement.peers());
        let asked = peers.iter().filter(move |peer| scope == FetchScope::All || !peer.is_owner());
        let peers =
            asked.map(|peer| FetchStep { tier: &**peer, peer: Some(&**peer), place: None, last: false });
        let last = (0..self.tiers.len()).rev().find(|place| attempt.refusal(*place).is_none());
        let tiers = self.tiers.iter().enumerate().map(move |(place, tier)| FetchStep {
            tier: &**tier,
            peer: None,
            place: Some(place),
            last: last == Some(place),
        });
        peers.chain(tiers)
    }

    /// Tells requests that wait for their turn that one of them has become more urgent.
    pub(crate) fn reconsider_urgency(&self) {
        self.parallelism.reconsider();
    }

    /// Returns the reason why the tiers lacked the last blocks that were asked for, if that was within `age`.
    pub fn recent_failure(&self, age: Duration) -> Option<Error> {
        let last = self.last_failure.lock();
        last.as_ref().filter(|(since, _)| since.elapsed() < age).map(|(_, error)| error.share())
    }

    /// The traffic counters.
    pub fn counters(&self) -> &SnapshotMetrics {
        &self.counters
    }

    /// Fetches the blocks `wanted` of `blob`, or a fragment of one. Each that arrives is given to `accept`, which verifies it and
    /// keeps it; the next ones arrive meanwhile. `urgency` is asked before each request. Ends when all were accepted, when no tier
    /// may serve the blob, or when nothing has arrived for `stall_limit`.
    ///
    /// # Errors
    /// The last tier's, or that of the last one that could have helped, when no tier had the right bytes.
    pub async fn fetch<F, A>(
        &self,
        blob: &Blob,
        wanted: impl Into<Wanted>,
        (scope, urgency): (FetchScope, &(dyn Fn() -> Urgency + Sync)),
        stall_limit: Duration,
        accept: F,
    ) -> Result<FetchOutcome>
    where
        F: Fn(Arrival) -> A + Send + Sync,
        A: Future<Output = Result<u64>> + Send,
    {
        let wanted = wanted.into();
        let mut attempt = FetchAttempt::new(blob, &self.counters, (scope, urgency), wanted, stall_limit);
        let mut wrong_bytes = 0;
        let mut backoff = Backoff::new(ATTEMPT_BACKOFF.0, ATTEMPT_BACKOFF.1, (self.seed)());
        let mut earlier: Option<Error> = None;
        loop {
            let (began, missing) = (attempt.last_arrival, attempt.missing.len());
            let asked = Instant::now();
            (attempt.wrong_bytes, attempt.stalled, attempt.waited) = (false, false, Duration::ZERO);
            let error = match self.ask_tiers(&mut attempt, &accept).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            // One that the deadline cut short says less than the one before it.
            let is_cut_short =
                Instant::now() >= attempt.deadline() && asked.elapsed() < REQUEST_STALL_TIMEOUT;
            let error = earlier.take().filter(|_| is_cut_short).unwrap_or(error);
            earlier = Some(error.share());
            *self.last_failure.lock() = Some((Instant::now(), error.share()));
            if attempt.missing.len() < missing {
                backoff.reset();
                attempt.reset();
                wrong_bytes = 0;
            } else {
                // Wrong bytes are no progress.
                attempt.last_arrival = began + attempt.waited;
                attempt.grow_stall_timeout();
            }
            wrong_bytes += u32::from(attempt.wrong_bytes);
            let is_retryable = match error.kind() {
                kind if may_pass(kind) => wrong_bytes < WRONG_BYTES_LIMIT,
                Kind::Changed | Kind::Unsupported => attempt.has_doubtful_refusal(),
                _ => false,
            };
            let wait = backoff.wait();
            if !is_retryable || attempt.last_arrival.elapsed() + wait > stall_limit {
                let is_unreachable = matches!(error.kind(), Kind::Unavailable | Kind::Timeout);
                let error = match wrong_bytes {
                    // An unreachable tier does not explain wrong bytes.
                    1.. if is_unreachable => Error::new(Kind::Corrupt, error.to_string()),
                    _ => error,
                };
                return Err(error.context(blob));
            }
            tracing::debug!(%blob, %error, ?wait, "asking again");
            tokio::time::sleep(wait).await;
        }
    }

    /// Asks each tier once for what is missing.
    async fn ask_tiers<F, A>(&self, attempt: &mut FetchAttempt<'_>, accept: &F) -> Result<FetchOutcome>
    where
        F: Fn(Arrival) -> A + Send + Sync,
        A: Future<Output = Result<u64>> + Send,
    {
        let mut failure: Option<Error> = None;
        let combine = |failure: Option<Error>, error: Error| match failure {
            Some(first) => combine_errors(&first, &error),
            None => error,
        };
        for step in self.steps(attempt) {
            if self.became_owner(attempt, step) {
                return Ok(FetchOutcome::BecameOwner);
            }
            if let Some(refusal) = step.place.and_then(|place| attempt.refusal(place)) {
                failure = Some(combine(failure, refusal.share()));
                continue;
            }
            let kind = step.tier.kind();
            while let Some(extent) = attempt.next() {
                let span =
                    tracing::debug_span!("ask", tier = %kind, first = extent.first, blocks = extent.blocks);
                let began = Instant::now();
                let asked = self.ask(step, attempt, extent, accept).instrument(span).await;
                self.counters.count_outcome(kind, &asked);
                match asked {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        if error.kind() == Kind::Corrupt {
                            attempt.wrong_bytes = true;
                            if kind == TierKind::Mirror {
                                self.counters.record_damage(attempt.blob.key, &error);
                            }
                            tracing::warn!(%error, "wrong bytes");
                        }
                        if let Some(place) = step.place {
                            attempt.record_refusal(place, &error);
                            let is_timeout = error.kind() == Kind::Timeout;
                            attempt.stalled |=
                                is_timeout && began.elapsed() >= attempt.stall_timeout && !step.last;
                        }
                        failure = Some(combine(failure, error));
                        break;
                    }
                }
            }
        }
        if attempt.missing.is_empty() {
            return Ok(FetchOutcome::Complete);
        }
        Err(failure.unwrap_or_else(|| Error::new(Kind::Corrupt, "no tier has it")))
    }

    /// Whether this node has come to own blocks for which it would now ask an owner or a lower tier: others
    /// may wait for it.
    fn became_owner(&self, attempt: &FetchAttempt<'_>, step: FetchStep<'_>) -> bool {
        let (Some(placement), Some(first)) = (self.placement(attempt.blob), attempt.missing.first()) else {
            return false;
        };
        attempt.scope == FetchScope::All
            && step.peer.is_none_or(|peer| peer.is_owner())
            && placement.is_owner(attempt.blob, *first)
    }

    /// Sends one request. True when all of `extent` arrived, false when the tier does not have it.
    async fn ask<F, A>(
        &self,
        step: FetchStep<'_>,
        attempt: &mut FetchAttempt<'_>,
        extent: Extent,
        accept: &F,
    ) -> Result<bool>
    where
        F: Fn(Arrival) -> A + Send + Sync,
        A: Future<Output = Result<u64>> + Send,
    {
        let (blob, tier, kind) = (attempt.blob, step.tier, step.tier.kind());
        let context =
            FetchContext { counters: &self.counters, buffers: &self.buffers, received: &self.received };
        let FetchAttempt { unit, urgency, stall_timeout, .. } = *attempt;
        let target = Target { step, blob, unit, urgency, stall_timeout };
        let waiting = Instant::now();
        let mut request = HedgedRequest::new(&context, &self.parallelism, target, extent).await;
        // While no request was under way nothing could arrive.
        attempt.waited += waiting.elapsed();
        attempt.last_arrival += waiting.elapsed();
        let mut accepting = FuturesUnordered::new();
        let mut outcome = Ok(());
        while outcome.is_ok() && request.extent().blocks > 0 {
            match request.next(attempt.deadline()).await {
                Ok(Some(arrival)) => {
                    self.counters.count_bytes(kind, arrival.bytes.len() as u64);
                    attempt.last_arrival = Instant::now();
                    let index = arrival.index;
                    accepting.push(accept(arrival).map(move |accepted| (index, accepted)));
                }
                Ok(None) => return Ok(false),
                Err(error) => outcome = Err(error),
            }
            while accepting.len() >= BLOCKS_IN_ACCEPTANCE {
                outcome = outcome.and(attempt.accepted(step, accepting.next().await));
            }
        }
        let (latency, flow) = request.latency_and_flow();
        // A peer is held responsible for wrong bytes as long as its body is there.
        let body = step.peer.is_some().then_some(request);
        while let Some(accepted) = accepting.next().await {
            outcome = outcome.and(attempt.accepted(step, Some(accepted)));
        }
        drop(body);
        tracing::debug!(?latency, ?flow, whole = outcome.is_ok(), "answered");
        let bytes = extent.bytes_in(unit, blob.size);
        let arrived = (bytes.end - bytes.start) * u64::from(outcome.is_ok());
        if step.peer.is_none() {
            self.pace.lock().observe(latency, arrived, flow);
        }
        outcome.map(|()| true).map_err(|e| match e.kind() {
            Kind::Corrupt => e.context(tier.locate(blob)),
            _ => e,
        })
    }
}
