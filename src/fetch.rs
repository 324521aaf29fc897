//! Fetch: going down the ladder of tiers until the bytes are right.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use crate::blob::Blob;
use crate::block::{self, Arrival};
use crate::buffer::{Buffer, Buffers};
use crate::error::{Error, Kind, Result};
use crate::extent::{Extent, Pace};
use crate::metrics::Counters;
use crate::peer;
use crate::tier::{Body, Rung, Tier, Urgency};

/// How long a tier may take until its first byte (DESIGN, section 6). A peer, which is near, may take much less, and
/// is judged by its own tier, which hears from it even while it has nothing to send ([`crate::peer`]).
const FIRST_BYTE: Duration = Duration::from_secs(5);

/// A body that brings less than a block in this time is given up for the next tier. The last tier may be slow, for
/// there is none to turn to, but not silent.
const STALL: Duration = Duration::from_secs(5);

/// The first wait before a tier is asked again, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How many times a tier may send wrong bytes before they are taken to be all it has.
const LIES: u32 = 3;

/// Within how many groups the owners take turns: so many that the share of each is told by it.
const STRETCH: usize = 256;

/// How many blocks of one flight may be hashed and written at the same time as the next ones arrive.
const PIPELINE: usize = 3;

/// How far down a fetch may go for help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To every tier.
    All,
    /// To those that wait for no other node: it is this node that others wait for.
    Direct,
}

/// The tiers below the node cache, nearest first.
#[derive(Debug)]
pub struct Ladder {
    tiers: Vec<Arc<dyn Tier>>,
    /// Whether some of them wait for other nodes.
    shared: bool,
    counters: Arc<Counters>,
    pace: Mutex<Pace>,
    buffers: Arc<Buffers>,
}

/// The state of one descent: what is still missing, and what went wrong on the way.
struct Descent<'a> {
    blob: &'a Blob,
    counters: &'a Counters,
    reach: Reach,
    urgency: Urgency,
    missing: Vec<u64>,
    /// Nothing has arrived since.
    still: Instant,
}

impl Ladder {
    /// A ladder of `tiers`, which counts into `counters` and puts what arrives into `buffers`.
    pub fn new(tiers: Vec<Arc<dyn Tier>>, counters: Arc<Counters>, buffers: Arc<Buffers>) -> Self {
        let shared = tiers.iter().any(|tier| tier.waits());
        Self { tiers, shared, counters, pace: Mutex::default(), buffers }
    }

    /// How many blocks of `blob` to ask for at once, from block `index` on. What is shared among nodes is cut alike in all of
    /// them.
    pub fn blocks(&self, blob: &Blob, index: u64) -> u64 {
        if self.is_shared(blob) {
            let group = peer::group(block::count(blob.size));
            return group - index % group;
        }
        self.pace.lock().blocks()
    }

    /// How far a fetch of block `index` may go: directly to where others can't have it from, if they turn to this node.
    pub fn reach(&self, blob: &Blob, index: u64) -> Reach {
        let ours = || self.tiers.iter().any(|tier| tier.is_ours(blob, index));
        if self.is_shared(blob) && !ours() { Reach::All } else { Reach::Direct }
    }

    /// Waits while it is not clear which node brings what of `blob`: what nobody waits for should not begin then.
    pub async fn calm(&self, blob: &Blob) {
        if let Some(tier) = self.tiers.iter().find(|tier| self.is_shared(blob) && tier.waits()) {
            tier.calm().await;
        }
    }

    /// Blocks of `blob` from `first` on, all or so many that it takes no time to tell, in the order in which a stage had best ask for
    /// them. What is shared among nodes comes group by group, the owners taking turns.
    pub fn turns(&self, blob: &Blob, first: u64) -> Vec<Range<u64>> {
        let count = block::count(blob.size);
        let group = if self.is_shared(blob) { peer::group(count) } else { count.max(1) };
        let mut firsts: Vec<_> = (first..count).step_by(group as usize).take(STRETCH).collect();
        self.tiers.iter().for_each(|tier| tier.turns(blob, &mut firsts));
        firsts.into_iter().map(|first| first..count.min(first + group)).collect()
    }

    /// Whether it reaches down to the origin.
    pub fn has_origin(&self) -> bool {
        self.tiers.iter().any(|tier| tier.rung() == Rung::Origin)
    }

    /// Whether other nodes may have `blob`: only what can be verified is asked of them.
    pub(crate) fn is_shared(&self, blob: &Blob) -> bool {
        self.shared && blob.checks.is_some()
    }

    /// What counts the traffic.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Fetches the blocks `wanted` of `blob`. Each that arrives is given to `accept`, which verifies it and keeps it;
    /// the next ones arrive meanwhile. Ends when all were accepted, or when nothing has arrived for `patience`.
    ///
    /// # Errors
    /// The last tier's, when no tier had the right bytes; [`Kind::Interrupted`] when the reach is [`Reach::All`] and should
    /// by now be [`Reach::Direct`].
    pub async fn fetch<F, A>(
        &self,
        blob: &Blob,
        wanted: Vec<u64>,
        (reach, urgency): (Reach, Urgency),
        patience: Duration,
        accept: F,
    ) -> Result<()>
    where
        F: Fn(Arrival) -> A + Send + Sync,
        A: Future<Output = Result<u64>> + Send,
    {
        let (counters, still) = (&*self.counters, Instant::now());
        let mut descent = Descent { blob, counters, reach, urgency, missing: wanted, still };
        let mut lies = 0;
        let mut wait = BACKOFF.0;
        loop {
            let began = descent.still;
            let error = match self.descend(&mut descent, &accept).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if descent.still > began {
                wait = BACKOFF.0;
            }
            lies += u32::from(error.kind() == Kind::Corrupt);
            let hopeful = matches!(error.kind(), Kind::Unavailable | Kind::Timeout | Kind::Corrupt);
            if !hopeful || lies >= LIES || descent.still.elapsed() + wait > patience {
                return Err(error.within(blob));
            }
            tracing::debug!(%blob, %error, ?wait, "asking again");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    /// Asks each tier once for what is missing.
    async fn descend<F, A>(&self, descent: &mut Descent<'_>, accept: &F) -> Result<()>
    where
        F: Fn(Arrival) -> A + Send + Sync,
        A: Future<Output = Result<u64>> + Send,
    {
        let mut failure: Option<Error> = None;
        let direct = descent.reach == Reach::Direct;
        for (at, tier) in self.tiers.iter().enumerate().filter(|(_, tier)| !(direct && tier.waits())) {
            let last = at + 1 == self.tiers.len();
            self.check_reach(descent, tier.as_ref())?;
            while let Some(extent) = descent.next() {
                let span = tracing::debug_span!("ask", tier = %tier.rung(), first = extent.first, blocks = extent.blocks);
                let asked = self.ask(tier.as_ref(), descent, extent, last, accept).instrument(span).await;
                self.counters.ended(tier.rung(), &asked);
                match asked {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        if error.kind() == Kind::Corrupt {
                            tracing::warn!(%error, "wrong bytes");
                        }
                        failure = Some(match failure {
                            Some(first) => both(&first, &error),
                            None => error,
                        });
                        break;
                    }
                }
            }
        }
        if descent.missing.is_empty() {
            return Ok(());
        }
        Err(failure.unwrap_or_else(|| Error::new(Kind::Corrupt, "no tier has it")))
    }

    /// Refuses to ask `tier` for a node that has come to be the one whom others turn to: what it asks for it must fetch for
    /// all of them, and directly.
    fn check_reach(&self, descent: &Descent<'_>, tier: &dyn Tier) -> Result<()> {
        let beyond = descent.reach == Reach::All && (tier.waits() || tier.rung() != Rung::Peer);
        match descent.missing.first() {
            Some(first)
                if beyond
                    && self.is_shared(descent.blob)
                    && self.reach(descent.blob, *first) == Reach::Direct =>
            {
                Err(Error::new(Kind::Interrupted, "other nodes turn to this one for it"))
            }
            _ => Ok(()),
        }
    }

    /// One request. True when all of `extent` arrived, false when the tier does not have it.
    async fn ask<F, A>(
        &self,
        tier: &dyn Tier,
        descent: &mut Descent<'_>,
        extent: Extent,
        last: bool,
        accept: &F,
    ) -> Result<bool>
    where
        F: Fn(Arrival) -> A + Send + Sync,
        A: Future<Output = Result<u64>> + Send,
    {
        let (blob, rung) = (descent.blob, tier.rung());
        let slow = || Error::new(Kind::Timeout, format!("the {rung} did not answer within {FIRST_BYTE:?}"));
        let began = Instant::now();
        self.counters.asked();
        let answer = tier.fetch(blob, extent.bytes(blob.size), descent.urgency);
        let patience = (rung != Rung::Peer).then_some(FIRST_BYTE);
        let Some(body) = within(patience, answer).await.ok_or_else(slow)?? else { return Ok(false) };
        let latency = began.elapsed();
        self.counters.began(rung, latency);
        let mut blocks =
            Blocks { body, rung, size: blob.size, extent, rest: None, last, buffers: &self.buffers };
        let mut accepting = FuturesUnordered::new();
        let mut outcome = Ok(());
        while outcome.is_ok() && blocks.extent.blocks > 0 {
            match blocks.next().await {
                Ok(arrival) => {
                    self.counters.arrived(rung, arrival.bytes.len() as u64);
                    descent.still = Instant::now();
                    let index = arrival.index;
                    accepting.push(accept(arrival).map(move |accepted| (index, accepted)));
                }
                Err(error) => outcome = Err(error),
            }
            while accepting.len() >= PIPELINE {
                outcome = outcome.and(descent.accepted(tier, accepting.next().await));
            }
        }
        let flow = began.elapsed().saturating_sub(latency);
        while let Some(accepted) = accepting.next().await {
            outcome = outcome.and(descent.accepted(tier, Some(accepted)));
        }
        tracing::debug!(?latency, ?flow, whole = outcome.is_ok(), "answered");
        let bytes = extent.bytes(blob.size);
        let arrived = (bytes.end - bytes.start) * u64::from(outcome.is_ok());
        if rung != Rung::Peer {
            self.pace.lock().observe(latency, arrived, flow);
        }
        outcome.map(|()| true).map_err(|e| match e.kind() {
            Kind::Corrupt => e.within(tier.locate(blob)),
            _ => e,
        })
    }
}

/// What `work` comes to, if that is within `limit`.
async fn within<T>(limit: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => timeout(limit, work).await.ok(),
        None => Some(work.await),
    }
}

/// The failures of two tiers in one. What to do follows from the last, but for wrong bytes that it can't make up for.
fn both(first: &Error, last: &Error) -> Error {
    let later = matches!(last.kind(), Kind::Unavailable | Kind::Timeout);
    let kind = if first.kind() == Kind::Corrupt && !later { Kind::Corrupt } else { last.kind() };
    Error::new(kind, format!("{first}; {last}"))
}

impl Descent<'_> {
    /// The next run of missing blocks.
    fn next(&self) -> Option<Extent> {
        let first = *self.missing.first()?;
        let blocks = self.missing.iter().zip(first..).take_while(|(have, want)| *have == want).count();
        Some(Extent { first, blocks: blocks as u64 })
    }

    /// Takes note of what became of a block that `tier` sent.
    fn accepted(&mut self, tier: &dyn Tier, accepted: Option<(u64, Result<u64>)>) -> Result<()> {
        let Some((index, accepted)) = accepted else { return Ok(()) };
        if accepted.as_ref().is_err_and(|error| error.kind() == Kind::Corrupt) {
            self.counters.refuted(tier.rung());
            tier.refute(self.blob, index);
        }
        accepted?;
        self.missing.retain(|missing| *missing != index);
        Ok(())
    }
}

/// A body, cut into blocks.
struct Blocks<'a> {
    body: Body,
    rung: Rung,
    size: u64,
    /// What is still to come.
    extent: Extent,
    /// What arrived behind the end of the last block.
    rest: Option<Bytes>,
    last: bool,
    buffers: &'a Arc<Buffers>,
}

impl Blocks<'_> {
    /// The next block, unverified.
    async fn next(&mut self) -> Result<Arrival> {
        let index = self.extent.first;
        let want = block::len(self.size, index) as usize;
        let mut buffer: Option<Buffer> = None;
        let began = Instant::now();
        loop {
            if let Some(mut piece) = self.rest.take() {
                if buffer.is_none() && piece.len() >= want {
                    let whole = piece.split_to(want);
                    self.rest = (!piece.is_empty()).then_some(piece);
                    return Ok(self.arrival(whole));
                }
                let filled = buffer.get_or_insert_with(|| self.buffers.take(want as u64));
                let take = piece.split_to(piece.len().min(want - filled.len()));
                filled.extend_from_slice(&take);
                self.rest = (!piece.is_empty()).then_some(piece);
            }
            if let Some(full) = buffer.take_if(|buffer| buffer.len() == want) {
                return Ok(self.arrival(full.freeze()));
            }
            let left = if self.last { STALL } else { STALL.saturating_sub(began.elapsed()) };
            let left = (self.rung != Rung::Peer).then_some(left);
            let stalled = || {
                Error::new(Kind::Timeout, format!("the {} stopped sending within block {index}", self.rung))
            };
            match within(left, self.body.next()).await.ok_or_else(stalled)? {
                Some(piece) => self.rest = Some(piece?).filter(|p| !p.is_empty()),
                None => {
                    let text = format!("the {} broke off within block {index}", self.rung);
                    return Err(Error::new(Kind::Unavailable, text));
                }
            }
        }
    }

    fn arrival(&mut self, bytes: Bytes) -> Arrival {
        let index = self.extent.first;
        self.extent = Extent { first: index + 1, blocks: self.extent.blocks - 1 };
        Arrival { size: self.size, index, bytes }
    }
}
