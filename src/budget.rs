//! Budget: how many bytes may be in flight at once, given out by urgency.
//!
//! Memory is the bound that counts: a flight takes as many bytes as it will hold before it starts. Readers go before
//! what is fetched ahead of them, and that before staging; and some of the budget is kept out of reach of the less
//! urgent, so that a reader finds room at once however much staging is under way.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::tier::Urgency;

/// The divisor that gives the part of the budget for readers: a quarter, half of which is also for reading ahead.
const RESERVED_PART: u64 = 4;

/// A bounded number of bytes, given out by urgency.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: u64,
    next: u64,
    /// One queue an urgency, the least urgent first; each in order of arrival.
    queues: [VecDeque<Waiter>; 3],
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    bytes: u64,
    grant: oneshot::Sender<Permit>,
}

/// The right to hold some bytes, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    bytes: u64,
}

/// The use of a budget at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BudgetUsage {
    /// The size, in bytes.
    pub total: u64,
    /// Bytes that are given out.
    pub used: u64,
    /// Bytes that are waited for.
    pub waiting: u64,
}

/// A place in the queue of a [`Budget`].
#[derive(Debug)]
pub struct Ticket {
    number: u64,
    granted: oneshot::Receiver<Permit>,
}

impl Budget {
    /// A budget of `total` bytes.
    pub fn new(total: u64) -> Arc<Self> {
        let state = State { free: total, next: 0, queues: Default::default() };
        Arc::new(Self { total, state: Mutex::new(state) })
    }

    /// Queues for `bytes`. More than the whole budget counts as the share that `urgency` may have.
    pub fn queue(self: &Arc<Self>, bytes: u64, urgency: Urgency) -> Ticket {
        let (grant, granted) = oneshot::channel();
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next += 1;
        let waiter = Waiter { ticket, bytes: bytes.min(self.total - self.reserved(urgency)), grant };
        state.queues[urgency as usize].push_back(waiter);
        self.serve(state);
        Ticket { number: ticket, granted }
    }

    /// Moves a ticket that still waits to the end of a more urgent queue.
    pub fn promote(self: &Arc<Self>, ticket: u64, urgency: Urgency) {
        let mut state = self.state.lock();
        for queue in 0..urgency as usize {
            if let Some(at) = state.queues[queue].iter().position(|w| w.ticket == ticket) {
                if let Some(waiter) = state.queues[queue].remove(at) {
                    state.queues[urgency as usize].push_back(waiter);
                }
                break;
            }
        }
        self.serve(state);
    }

    /// The current use of the budget.
    pub fn usage(&self) -> BudgetUsage {
        let state = self.state.lock();
        let waiting = state.queues.iter().flatten().map(|waiter| waiter.bytes).sum();
        BudgetUsage { total: self.total, used: self.total - state.free, waiting }
    }

    /// The bytes that `urgency` must not take.
    fn reserved(&self, urgency: Urgency) -> u64 {
        match urgency {
            Urgency::Read => 0,
            Urgency::Ahead => self.total / RESERVED_PART / 2,
            Urgency::Stage => self.total / RESERVED_PART,
        }
    }

    /// Grants what can be granted: the most urgent first, none out of order within one queue.
    fn serve(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let mut grants = Vec::new();
        for urgency in [Urgency::Read, Urgency::Ahead, Urgency::Stage] {
            let reserved = self.reserved(urgency);
            while let Some(first) = state.queues[urgency as usize].front() {
                if first.bytes + reserved > state.free {
                    break;
                }
                let Some(waiter) = state.queues[urgency as usize].pop_front() else { break };
                state.free -= waiter.bytes;
                grants.push((waiter.grant, Permit { budget: self.clone(), bytes: waiter.bytes }));
            }
        }
        drop(state);
        for (grant, permit) in grants {
            // If its waiter is gone, the permit is given back here, dropped without the lock.
            drop(grant.send(permit));
        }
    }
}

impl Ticket {
    /// The handle for [`Budget::promote`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits until the bytes are granted; `None` when the budget is gone.
    pub async fn await_grant(self) -> Option<Permit> {
        self.granted.await.ok()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        state.free += self.bytes;
        self.budget.serve(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(ticket: &mut Ticket) -> Option<Permit> {
        ticket.granted.try_recv().ok()
    }

    #[test]
    fn budget_full_of_staging_still_grants_readers() {
        let budget = Budget::new(16);
        let mut stage = [(); 4].map(|()| budget.queue(4, Urgency::Stage));
        let held: Vec<_> = stage.iter_mut().filter_map(granted).collect();
        assert_eq!(held.len(), 3, "the last quarter is not for staging");
        let mut reader = budget.queue(4, Urgency::Read);
        let read = granted(&mut reader).expect("room at once");
        let mut second = budget.queue(8, Urgency::Read);
        drop(held);
        assert!(granted(&mut second).is_some(), "the reader goes first");
        drop(read);
        assert!(granted(&mut stage[3]).is_some());
    }

    #[test]
    fn ticket_promoted_is_granted_first() {
        let budget = Budget::new(16);
        let mut first = budget.queue(12, Urgency::Stage);
        let all = granted(&mut first).expect("free");
        let mut waiting = budget.queue(4, Urgency::Stage);
        assert!(granted(&mut waiting).is_none());
        assert_eq!(budget.usage(), BudgetUsage { total: 16, used: 12, waiting: 4 });
        budget.promote(waiting.number(), Urgency::Read);
        assert!(granted(&mut waiting).is_some());
        drop(all);
    }

    #[test]
    fn ticket_dropped_returns_its_bytes() {
        let budget = Budget::new(16);
        let mut first = budget.queue(16, Urgency::Read);
        let all = granted(&mut first).expect("free");
        drop(budget.queue(16, Urgency::Read));
        drop(all);
        let mut last = budget.queue(99, Urgency::Read);
        assert!(granted(&mut last).is_some(), "more than there is counts as all");
    }
}
