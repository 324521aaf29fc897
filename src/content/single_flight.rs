//! Single-flight: one fetch of a missing block, however many wait for it.
//!
//! There are two tables of flights, one for each [`FetchScope`]: flights that may wait for other nodes, and direct ones, which
//! never do because other nodes wait for them. A block may be in both for a moment, while nodes differ on who owns it; that
//! costs one more fetch.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_ok;
use tracing::Instrument;

use crate::block::{self, BLOCK};
use crate::error::{Error, Kind, Result};
use crate::extent::{Extent, MAX_EXTENT_BLOCKS};
use crate::fetch::{FetchOutcome, FetchScope};
use crate::flight::{Delivery, Flight, Flights, JoinOutcome, RaiseOutcome};
use crate::tier::Urgency;
use crate::timeout::within;

use super::Content;

/// The time that a reader waits for other nodes before it also starts a direct fetch (a hedged request), however often they say
/// that the block is on its way.
const HEDGE_DELAY: Duration = Duration::from_secs(1);

impl Content {
    /// Joins the flight that fetches block `index`, or starts one of up to `most` blocks. `None` when the block is present.
    pub fn join_or_start(self: &Arc<Self>, index: u64, most: u64, urgency: Urgency) -> Option<Arc<Flight>> {
        self.join_or_start_in(self.ladder().scope(&self.blob, index), index, most, urgency)
    }

    /// Joins or starts a flight of `scope`. A direct one serves both scopes.
    pub(super) fn join_or_start_in(
        self: &Arc<Self>,
        scope: FetchScope,
        index: u64,
        most: u64,
        urgency: Urgency,
    ) -> Option<Arc<Flight>> {
        let count = block::count(self.blob.size);
        if index >= count {
            return None;
        }
        let most = most.clamp(1, self.ladder().extent_blocks(&self.blob, index).min(count - index));
        loop {
            if self.is_present(index) {
                return None;
            }
            // Direct flights are checked for the other table only, whose lock is held meanwhile.
            let direct = |i: u64| if scope == FetchScope::All { self.direct_flights.find(i) } else { None };
            // A blob that is verified as a whole is brought by one flight, whatever is here of it.
            let whole = self.fits_one_flight() && (0..count).all(|i| direct(i).is_none());
            let lacks = |i: u64| !self.is_present(if whole { index } else { i });
            let absent = |i: u64| i < count && lacks(i) && direct(i).is_none();
            let flights = self.flights(scope);
            let (first, most) = match whole {
                true => (0, count),
                false if self.is_sequential() => {
                    // A request can only begin where something is missing, and goes to the end.
                    let is_free = |i: &u64| absent(*i) && flights.find(*i).is_none();
                    ((0..=index).rev().take_while(is_free).last().unwrap_or(index), count)
                }
                false => (index, most),
            };
            let (found, outcome) = match direct(index) {
                Some(flight) => (FetchScope::Direct, JoinOutcome::Joined(flight)),
                None => (scope, flights.join(first, most, absent)),
            };
            // Another flight, which ends before the block, may have started meanwhile.
            let (found, outcome) = match outcome {
                JoinOutcome::Joined(other) if !other.extent().range().contains(&index) => {
                    (scope, flights.join(index, most, absent))
                }
                outcome => (found, outcome),
            };
            match outcome {
                // Present, or in flight since the check: the next iteration finds that flight.
                JoinOutcome::Present => {}
                JoinOutcome::Joined(flight) => {
                    match flight.raise(urgency) {
                        RaiseOutcome::Unchanged => {}
                        RaiseOutcome::RaisedInQueue(ticket) => {
                            self.resources.budget(found).promote(ticket, urgency);
                        }
                        RaiseOutcome::Raised => self.ladder().reconsider_urgency(),
                    }
                    return Some(flight);
                }
                JoinOutcome::New(flight) => {
                    flight.raise(urgency);
                    // The span's parent is the request that starts the flight; others may join it.
                    let Extent { first, blocks } = flight.extent();
                    let span = tracing::debug_span!("flight", blob = %self.blob, first, blocks, ?urgency);
                    self.resources
                        .runtime
                        .spawn(self.clone().run_flight(flight.clone(), scope).instrument(span));
                    if flight.extent().range().contains(&index) {
                        return Some(flight);
                    }
                }
            }
        }
    }

    /// Waits for block `index` of `flight`, and when that takes longer than [`HEDGE_DELAY`], also for that of a direct flight.
    pub(super) async fn await_hedged(self: &Arc<Self>, flight: &Flight, index: u64) -> Result<Delivery> {
        if !self.is_shared() {
            return flight.block(index).await;
        }
        if let Some(delivery) = within(HEDGE_DELAY, flight.block(index)).await {
            return delivery;
        }
        match self.join_or_start_in(FetchScope::Direct, index, 1, Urgency::Read) {
            Some(direct) => {
                let both = [flight, &direct].map(|flight| flight.block(index).boxed());
                select_ok(both).await.map(|(delivery, _)| delivery)
            }
            None => Ok(Delivery::Stored),
        }
    }

    /// Completes `flight` by direct flights: this node has become the owner of its blocks, and other nodes may wait for them.
    async fn complete_directly(self: &Arc<Self>, flight: &Flight, urgency: Urgency) -> Result<()> {
        let blocks = flight.extent().range();
        let mut joined = Vec::new();
        for index in blocks.clone() {
            match self.join_or_start_in(FetchScope::Direct, index, blocks.end - index, urgency) {
                Some(direct) => joined.push((index, direct)),
                None => flight.deliver(index, Delivery::Stored),
            }
        }
        for (index, direct) in &joined {
            flight.deliver(*index, direct.block(*index).await?);
        }
        for (_, direct) in joined {
            if let Err(error) = direct.await_stored().await {
                flight.record_store_failure(error);
            }
        }
        Ok(())
    }

    fn flights(&self, scope: FetchScope) -> &Flights {
        match scope {
            FetchScope::All => &self.flights,
            FetchScope::Direct => &self.direct_flights,
        }
    }

    /// Waits for the end of all flights that are under way now.
    pub(crate) async fn await_flights(&self) {
        for flight in self.flights.all().into_iter().chain(self.direct_flights.all()) {
            flight.await_stored().await.ok();
        }
    }

    /// Runs a flight: waits for its share of the budget, fetches what is missing, and ends it.
    async fn run_flight(self: Arc<Self>, flight: Arc<Flight>, scope: FetchScope) {
        let guard = FlightGuard { content: &self, flight: &flight, scope, finished: false };
        let Range { start, end } = flight.extent().bytes(self.blob.size);
        // Blocks of a longer flight are stored as they arrive, so it never holds more.
        let held = (end - start).min(MAX_EXTENT_BLOCKS * BLOCK);
        let _flying = self.resources.metrics.start_flight();
        let budget = self.resources.budget(scope);
        let ticket = flight.queue(|urgency| budget.queue(held, urgency));
        let permit = ticket.await_grant().await;
        let urgency = flight.leave_queue();
        let outcome = match self.ladders.fetch(|| self.fetch_missing(&flight, (scope, urgency))).await {
            Ok(FetchOutcome::Complete) => Ok(()),
            Ok(FetchOutcome::BecameOwner) => self.complete_directly(&flight, urgency).await,
            Err(error) => Err(error),
        };
        guard.finish(outcome);
        drop(permit);
    }
}

/// Ends a flight when it is dropped. Were its task lost without that, its waiters would wait for ever.
struct FlightGuard<'a> {
    content: &'a Arc<Content>,
    flight: &'a Flight,
    scope: FetchScope,
    finished: bool,
}

impl FlightGuard<'_> {
    fn finish(mut self, outcome: Result<()>) {
        self.finished = true;
        self.end(outcome);
    }

    fn end(&self, outcome: Result<()>) {
        // Off the table first: a waiter that sees the end and finds its block missing must be able to start a new flight.
        self.content.flights(self.scope).remove(self.flight);
        self.content.finish();
        self.flight.end(outcome);
    }
}

impl Drop for FlightGuard<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.end(Err(Error::new(Kind::Disk, "a fetch was abandoned: its task ended early")));
        }
    }
}
