//! Parallelism: how many requests the last tier is sent at once. It falls while that is too slow for so many.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::tier::Urgency;

/// The most requests at once: as many as a stage has flights.
const MAX_REQUESTS: usize = 64;

/// The fewest. A server that takes 6 s for each, one after the other, answers all of them within the deadline of a read.
const MIN_REQUESTS: usize = 4;

/// The bound, and the requests under way.
#[derive(Debug)]
pub(super) struct Parallelism {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug)]
struct State {
    limit: usize,
    used: usize,
}

/// The right to a request. It is given back when it is dropped.
pub(super) struct RequestSlot<'a>(&'a Parallelism);

impl Default for Parallelism {
    fn default() -> Self {
        Self { state: Mutex::new(State { limit: MAX_REQUESTS, used: 0 }), freed: Notify::new() }
    }
}

impl Parallelism {
    /// Waits for a slot. A reader takes one at once, also one that comes for the same blocks meanwhile and
    /// [tells](Self::reconsider) of it: `urgency` is asked again then.
    pub async fn acquire(&self, urgency: impl Fn() -> Urgency) -> RequestSlot<'_> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Enrolled before the look, so no slot can be freed unseen between the two.
            freed.as_mut().enable();
            if let Some(slot) = self.take(urgency() == Urgency::Read) {
                return slot;
            }
            freed.await;
        }
    }

    /// Lets those that wait for a slot look again whether a reader waits for them.
    pub fn reconsider(&self) {
        self.freed.notify_waiters();
    }

    /// A slot, if there is one now.
    pub fn try_acquire(&self) -> Option<RequestSlot<'_>> {
        self.take(false)
    }

    fn take(&self, at_once: bool) -> Option<RequestSlot<'_>> {
        let mut state = self.state.lock();
        if !at_once && state.used >= state.limit {
            return None;
        }
        state.used += 1;
        Some(RequestSlot(self))
    }

    /// Returns the number of requests that are under way.
    pub fn used(&self) -> usize {
        self.state.lock().used
    }

    /// Halves the bound: the tier is too slow for so many.
    pub fn shrink(&self) {
        let mut state = self.state.lock();
        state.limit = (state.limit / 2).max(MIN_REQUESTS);
    }

    /// Raises the bound by one: the tier has answered in time.
    pub fn grow(&self) {
        let mut state = self.state.lock();
        state.limit = (state.limit + 1).min(MAX_REQUESTS);
        drop(state);
        self.freed.notify_waiters();
    }
}

impl Drop for RequestSlot<'_> {
    fn drop(&mut self) {
        self.0.state.lock().used -= 1;
        self.0.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn parallelism_shrunk_makes_all_but_readers_wait() {
        let parallelism = Parallelism::default();
        let mut slots = Vec::new();
        for _ in 0..10 {
            parallelism.shrink();
        }
        for _ in 0..MIN_REQUESTS {
            slots.push(parallelism.try_acquire().expect("room"));
        }
        assert!(parallelism.try_acquire().is_none());
        slots.push(parallelism.acquire(|| Urgency::Read).now_or_never().expect("at once"));
        let waiting = parallelism.acquire(|| Urgency::Stage);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        slots.truncate(MIN_REQUESTS - 1);
        waiting.await;
    }

    #[tokio::test]
    async fn request_that_waits_for_a_slot_gets_one_when_a_reader_joins_it() {
        let parallelism = Parallelism::default();
        (0..10).for_each(|_| parallelism.shrink());
        let _slots: Vec<_> = (0..MIN_REQUESTS).map(|_| parallelism.try_acquire().expect("room")).collect();
        let urgency = Mutex::new(Urgency::Ahead);
        let waiting = parallelism.acquire(|| *urgency.lock());
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        *urgency.lock() = Urgency::Read;
        parallelism.reconsider();
        waiting.as_mut().now_or_never().expect("at once");
    }

    #[tokio::test]
    async fn parallelism_grown_lets_one_more_start() {
        let parallelism = Parallelism::default();
        for _ in 0..10 {
            parallelism.shrink();
        }
        let _slots: Vec<_> = (0..MIN_REQUESTS).map(|_| parallelism.try_acquire().expect("room")).collect();
        parallelism.grow();
        assert!(parallelism.try_acquire().is_some());
    }
}
