//! Flights: single fetches under way, each shared by all who wait for its blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::budget::Ticket;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::tier::Urgency;

/// The way in which a waiter gets its block.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The bytes themselves: they have just arrived.
    Bytes(Bytes),
    /// The cache has them.
    Stored,
}

#[derive(Clone, Debug)]
enum Slot {
    Pending,
    Delivered(Delivery),
}

/// The outcome of [`Flight::raise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaiseOutcome {
    /// It was as urgent before.
    Unchanged,
    /// It is more urgent, and so must be its ticket in the budget's queue, which has this number.
    RaisedInQueue(u64),
    /// It is more urgent, and in no queue of the budget.
    Raised,
}

/// One fetch of one extent.
#[derive(Debug)]
pub struct Flight {
    extent: Extent,
    began: Instant,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    slots: Vec<Slot>,
    urgency: Urgency,
    ticket: Option<u64>,
    ended: Option<Result<()>>,
    store_error: Option<Error>,
}

impl Flight {
    fn new(extent: Extent) -> Arc<Self> {
        let slots = vec![Slot::Pending; extent.blocks as usize];
        let state = State { slots, urgency: Urgency::Stage, ticket: None, ended: None, store_error: None };
        Arc::new(Self { extent, began: Instant::now(), state: Mutex::new(state), changed: Notify::new() })
    }

    /// The extent that the flight fetches.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Waits for block `index`, which the extent covers; not for the rest of it.
    ///
    /// # Errors
    /// What ended the flight without the block.
    pub async fn block(&self, index: u64) -> Result<Delivery> {
        let slot = (index - self.extent.first) as usize;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Enrolled before the state is looked at, so no change can slip between the two.
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                match (&state.slots[slot], &state.ended) {
                    (Slot::Delivered(delivery), _) => return Ok(delivery.clone()),
                    (Slot::Pending, Some(Err(error))) => return Err(error.share()),
                    (Slot::Pending, Some(Ok(()))) => return Ok(Delivery::Stored),
                    (Slot::Pending, None) => {}
                }
            }
            changed.await;
        }
    }

    /// Waits for the end of the flight.
    ///
    /// # Errors
    /// What the flight failed with, and what kept its blocks from being stored.
    pub async fn await_stored(&self) -> Result<()> {
        for index in self.extent.range() {
            self.block(index).await?;
        }
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                match (&state.ended, &state.store_error) {
                    (Some(Err(error)), _) | (Some(_), Some(error)) => return Err(error.share()),
                    (Some(Ok(())), None) => return Ok(()),
                    (None, _) => {}
                }
            }
            changed.await;
        }
    }

    /// Delivers a verified block to all who wait for it.
    pub fn deliver(&self, index: u64, delivery: Delivery) {
        let slot = (index - self.extent.first) as usize;
        self.state.lock().slots[slot] = Slot::Delivered(delivery);
        self.changed.notify_waiters();
    }

    /// Records that a block could not be stored: readers get it all the same, a stage fails.
    pub fn record_store_failure(&self, error: Error) {
        self.state.lock().store_error.get_or_insert(error);
    }

    /// Ends the flight.
    pub fn end(&self, outcome: Result<()>) {
        self.state.lock().ended = Some(outcome);
        self.changed.notify_waiters();
    }

    /// Makes it at least as urgent as `urgency`. What it waits for must be told where it has become more urgent.
    pub fn raise(&self, urgency: Urgency) -> RaiseOutcome {
        let mut state = self.state.lock();
        if state.urgency >= urgency {
            return RaiseOutcome::Unchanged;
        }
        state.urgency = urgency;
        state.ticket.map_or(RaiseOutcome::Raised, RaiseOutcome::RaisedInQueue)
    }

    /// When it began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// The current urgency.
    pub fn urgency(&self) -> Urgency {
        self.state.lock().urgency
    }

    /// Takes a place in the budget's queue by `queue`, at the urgency that the flight has. No caller can raise it between
    /// the two: either `queue` sees the new urgency, or the caller that raised it sees the place.
    pub fn queue(&self, queue: impl FnOnce(Urgency) -> Ticket) -> Ticket {
        let mut state = self.state.lock();
        let ticket = queue(state.urgency);
        state.ticket = Some(ticket.number());
        ticket
    }

    /// Leaves the budget's queue, and returns how urgent the flight is.
    pub fn leave_queue(&self) -> Urgency {
        let mut state = self.state.lock();
        state.ticket = None;
        state.urgency
    }
}

/// The flights of one blob. No two overlap.
#[derive(Debug, Default)]
pub struct Flights {
    by_first: Mutex<BTreeMap<u64, Arc<Flight>>>,
}

/// The outcome of [`Flights::join`].
#[derive(Debug)]
pub enum JoinOutcome {
    /// The block is here by now.
    Present,
    /// A flight under way fetches it.
    Joined(Arc<Flight>),
    /// The caller must start this one.
    New(Arc<Flight>),
}

impl Flights {
    /// Joins the flight that brings block `index`, or plans one of up to `most` blocks from there, as long as
    /// `absent` says that they are missing and no other flight fetches them.
    pub fn join(&self, index: u64, most: u64, absent: impl Fn(u64) -> bool) -> JoinOutcome {
        let mut flights = self.by_first.lock();
        if let Some((_, flight)) = flights.range(..=index).next_back()
            && flight.extent.range().contains(&index)
        {
            return JoinOutcome::Joined(flight.clone());
        }
        // Under the lock, after the table: a flight leaves the table only when its blocks are present.
        if !absent(index) {
            return JoinOutcome::Present;
        }
        let next = flights.range(index..).next().map_or(u64::MAX, |(first, _)| *first);
        let blocks = (index..next).take(most as usize).take_while(|i| absent(*i)).count().max(1);
        let flight = Flight::new(Extent { first: index, blocks: blocks as u64 });
        flights.insert(index, flight.clone());
        JoinOutcome::New(flight)
    }

    /// The flight that brings block `index`.
    pub fn find(&self, index: u64) -> Option<Arc<Flight>> {
        let flights = self.by_first.lock();
        let (_, flight) = flights.range(..=index).next_back()?;
        flight.extent.range().contains(&index).then(|| flight.clone())
    }

    /// All flights under way.
    pub fn all(&self) -> Vec<Arc<Flight>> {
        self.by_first.lock().values().cloned().collect()
    }

    /// Removes a flight that has ended.
    pub fn remove(&self, flight: &Flight) {
        self.by_first.lock().remove(&flight.extent.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn flights_joined_within_an_extent_do_not_overlap() {
        let flights = Flights::default();
        let absent = |index: u64| index < 20 && index != 12;
        let JoinOutcome::New(first) = flights.join(8, 16, absent) else { panic!("none was under way") };
        assert_eq!(first.extent(), Extent { first: 8, blocks: 4 }, "up to what is present");
        let JoinOutcome::New(second) = flights.join(2, 16, absent) else { panic!("not covered") };
        assert_eq!(second.extent(), Extent { first: 2, blocks: 6 }, "up to what is in flight");
        assert!(
            matches!(flights.join(11, 1, absent), JoinOutcome::Joined(f) if f.extent() == first.extent())
        );
        assert!(matches!(flights.join(12, 1, absent), JoinOutcome::Present));
        flights.remove(&first);
        assert!(matches!(flights.join(11, 1, absent), JoinOutcome::New(_)));
    }

    #[tokio::test]
    async fn waiter_of_one_block_gets_it_before_the_rest_or_the_error() {
        let flight = Flight::new(Extent { first: 3, blocks: 2 });
        flight.deliver(3, Delivery::Bytes(Bytes::from_static(b"x")));
        assert!(matches!(flight.block(3).await, Ok(Delivery::Bytes(b)) if b == "x"));
        let waiter = tokio::spawn({
            let flight = flight.clone();
            async move { flight.block(4).await }
        });
        tokio::task::yield_now().await;
        flight.end(Err(Error::new(Kind::Timeout, "no answer")));
        assert_eq!(waiter.await.expect("no panic").expect_err("failed").kind(), Kind::Timeout);
        assert!(flight.block(3).await.is_ok());
    }

    #[tokio::test]
    async fn flight_with_failed_store_fails_stage_and_no_reader() {
        let flight = Flight::new(Extent { first: 0, blocks: 1 });
        flight.record_store_failure(Error::new(Kind::NoSpace, "full"));
        flight.deliver(0, Delivery::Bytes(Bytes::new()));
        flight.end(Ok(()));
        assert!(flight.block(0).await.is_ok());
        assert_eq!(flight.await_stored().await.expect_err("not stored").kind(), Kind::NoSpace);
    }
}
