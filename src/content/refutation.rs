//! Refutations: content that turned out not to be what its origin publishes, and when it may be fetched anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backoff::{Backoff, entropy};
use crate::blob::Key;
use crate::error::Error;

/// The first and the longest time for which a refutation keeps a content from being fetched anew: each wait is twice the one
/// before. A server that is repaired is found out soon, one that never is costs little.
const REFETCH_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// The time for which a refutation is remembered after the content may be fetched anew: another one by then is followed by a longer
/// wait.
const MEMORY_DURATION: Duration = REFETCH_BACKOFF.1;

/// The number of refuted contents that are remembered, in some hundred bytes each. An origin that lies about more files than these
/// is asked more often about those that nobody has open.
const MAX_REMEMBERED_CONTENTS: usize = 1024;

/// A tenant's contents that were refuted a while ago. Readers that open one anew wait as long as those that still have it open.
#[derive(Debug, Default)]
pub struct Refutations(Mutex<HashMap<Key, Arc<Refutation>>>);

impl Refutations {
    /// The refutations of the content of `key`.
    pub(super) fn of(&self, key: &Key) -> Arc<Refutation> {
        let remembered = self.0.lock();
        remembered.get(key).filter(|refutation| refutation.is_recent()).cloned().unwrap_or_default()
    }

    /// Remembers that the content of `key` was refuted, in the place of the one that may be fetched anew the soonest.
    pub(super) fn remember(&self, key: Key, refutation: &Arc<Refutation>) {
        let mut remembered = self.0.lock();
        remembered.retain(|_, refutation| refutation.is_recent());
        if remembered.len() >= MAX_REMEMBERED_CONTENTS && !remembered.contains_key(&key) {
            let soonest = remembered.iter().min_by_key(|(_, refutation)| refutation.retry_at());
            if let Some(soonest) = soonest.map(|(key, _)| *key) {
                remembered.remove(&soonest);
            }
        }
        remembered.insert(key, refutation.clone());
    }

    /// Forgets the refutations of the content of `key`, which is right now.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

/// The refutations of one content.
#[derive(Debug, Default)]
pub(super) struct Refutation {
    last: Mutex<Option<LastRefutation>>,
}

#[derive(Debug)]
struct LastRefutation {
    times: u32,
    waits: Backoff,
    retry_at: Instant,
    error: Error,
}

impl Refutation {
    /// Records why what came is not the content.
    pub(super) fn record(&self, error: Error) {
        let mut last = self.last.lock();
        let first = || (0, Backoff::new(REFETCH_BACKOFF.0, REFETCH_BACKOFF.1, entropy()));
        let (times, mut waits) = last.take().map_or_else(first, |last| (last.times, last.waits));
        let retry_at = Instant::now() + waits.wait();
        *last = Some(LastRefutation { times: times + 1, waits, retry_at, error });
    }

    /// Returns the number of times that the content was refuted.
    pub(super) fn times(&self) -> u32 {
        self.last.lock().as_ref().map_or(0, |last| last.times)
    }

    /// The last error, whether it still counts or not.
    pub(super) fn last(&self) -> Option<Error> {
        self.last.lock().as_ref().map(|last| last.error.share())
    }

    /// Returns the reason why the content must not be read now; `None` when it may be fetched anew.
    pub(super) fn active_error(&self) -> Option<Error> {
        let last = self.last.lock();
        last.as_ref().filter(|last| Instant::now() < last.retry_at).map(|last| last.error.share())
    }

    /// When the content may be fetched anew; `None` when it was never refuted.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.last.lock().as_ref().map(|last| last.retry_at)
    }

    /// Whether the content may not be fetched anew yet, or only since a while ago.
    fn is_recent(&self) -> bool {
        self.retry_at().is_some_and(|at| Instant::now() < at + MEMORY_DURATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn key(n: usize) -> Key {
        Key::origin("test://", b"file", &n.to_le_bytes())
    }

    fn refute(refutations: &Refutations, n: usize) {
        let refutation = refutations.of(&key(n));
        refutation.record(Error::new(Kind::Corrupt, "not it"));
        refutations.remember(key(n), &refutation);
    }

    #[tokio::test(start_paused = true)]
    async fn refutations_are_remembered_for_a_while_and_up_to_a_limit() {
        let refutations = Refutations::default();
        refute(&refutations, 0);
        tokio::time::advance(REFETCH_BACKOFF.0).await;
        assert!(refutations.of(&key(0)).active_error().is_none(), "it may be fetched anew");
        refute(&refutations, 0);
        assert_eq!(refutations.of(&key(0)).times(), 2, "and the next wait is longer");
        tokio::time::advance(REFETCH_BACKOFF.0 * 2 + MEMORY_DURATION).await;
        assert_eq!(refutations.of(&key(0)).times(), 0, "that is long ago");
        (0..=MAX_REMEMBERED_CONTENTS).for_each(|n| refute(&refutations, n));
        assert_eq!(refutations.0.lock().len(), MAX_REMEMBERED_CONTENTS);
        assert!(refutations.of(&key(MAX_REMEMBERED_CONTENTS)).active_error().is_some());
        refutations.forget(&key(MAX_REMEMBERED_CONTENTS));
        assert!(refutations.of(&key(MAX_REMEMBERED_CONTENTS)).active_error().is_none());
    }
}
