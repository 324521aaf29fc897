//! Races for flights: one fetch for all that want a block, and no waiter that waits for ever.

use std::sync::Arc;

use bdnfs::error::{Error, Kind};
use bdnfs::tier::Urgency;
use bdnfs_races::budget::Budget;
use bdnfs_races::flight::{Delivery, Flight, Flights, JoinOutcome, RaiseOutcome};
use bytes::Bytes;
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use shuttle::{check_random, thread};

/// How many orders are tried: a bug of three steps in the wrong order shows within hundreds.
const ORDERS: usize = 3000;
const BLOCKS: u64 = 3;

/// A blob: its flights, which blocks are here, and how often each was fetched.
#[derive(Default)]
struct Blob {
    flights: Flights,
    here: [AtomicBool; BLOCKS as usize],
    fetched: [AtomicU64; BLOCKS as usize],
}

impl Blob {
    fn is_absent(&self, index: u64) -> bool {
        index < BLOCKS && !self.here[index as usize].load(SeqCst)
    }

    /// What a content does: joins a flight or flies it, in the order of its steps.
    fn read(&self, index: u64, most: u64) {
        match self.flights.join(index, most, |i| self.is_absent(i)) {
            JoinOutcome::Present => assert!(!self.is_absent(index)),
            JoinOutcome::Joined(flight) => drop(block_on(flight.block(index)).expect("the flight succeeds")),
            JoinOutcome::New(flight) => {
                for index in flight.extent().range() {
                    self.fetched[index as usize].fetch_add(1, SeqCst);
                    self.here[index as usize].store(true, SeqCst);
                    flight.deliver(index, Delivery::Bytes(Bytes::new()));
                }
                self.flights.remove(&flight);
                flight.end(Ok(()));
            }
        }
        assert!(!self.is_absent(index));
    }
}

#[test]
fn block_wanted_by_racing_readers_is_fetched_once() {
    let race = || {
        let blob = Arc::new(Blob::default());
        let readers = [(0, 3), (1, 2), (2, 1), (1, 1)].map(|(index, most)| {
            let blob = blob.clone();
            thread::spawn(move || blob.read(index, most))
        });
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        assert!(blob.flights.all().is_empty());
        for index in 0..BLOCKS {
            assert!(blob.is_absent(index) || blob.fetched[index as usize].load(SeqCst) == 1, "block {index}");
        }
    };
    check_random(race, ORDERS);
}

/// A flight of two blocks.
fn flight() -> Arc<Flight> {
    match Flights::default().join(0, 2, |_| true) {
        JoinOutcome::New(flight) => flight,
        other => panic!("{other:?}"),
    }
}

#[test]
fn waiters_of_a_flight_that_fails_halfway_all_end() {
    let race = || {
        let flight = flight();
        let waiters = [0, 1].map(|index| {
            let flight = flight.clone();
            thread::spawn(move || block_on(flight.block(index)).is_ok())
        });
        let stage = thread::spawn({
            let flight = flight.clone();
            move || block_on(flight.await_stored()).is_ok()
        });
        flight.deliver(0, Delivery::Stored);
        flight.end(Err(Error::new(Kind::Unavailable, "gone")));
        assert_eq!(waiters.map(|waiter| waiter.join().expect("no panic")), [true, false]);
        assert!(!stage.join().expect("no panic"));
    };
    check_random(race, ORDERS);
}

#[test]
fn flight_raised_while_it_queues_is_granted_as_a_reader() {
    let race = || {
        let budget = Budget::new(16);
        // All that staging may have is taken, until the flight is over: only a reader finds room.
        let taken = block_on(budget.queue(12, Urgency::Stage).await_grant()).expect("room");
        let flight = flight();
        let reader = thread::spawn({
            let (flight, budget) = (flight.clone(), budget.clone());
            move || {
                if let RaiseOutcome::RaisedInQueue(ticket) = flight.raise(Urgency::Read) {
                    budget.promote(ticket, Urgency::Read);
                }
            }
        });
        let ticket = flight.queue(|urgency| budget.queue(4, urgency));
        // Were the raise lost between the two, this would wait for ever.
        let permit = block_on(ticket.await_grant()).expect("the budget lives");
        reader.join().expect("no panic");
        assert_eq!(flight.leave_queue(), Urgency::Read);
        drop((permit, taken));
        assert_eq!(budget.usage().used, 0);
    };
    check_random(race, ORDERS);
}
