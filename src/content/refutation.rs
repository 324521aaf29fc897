//! Refutations: content that turned out not to be what its origin publishes, and when it may be fetched anew.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backoff::{Backoff, entropy};
use crate::error::Error;

/// How long the first refutation keeps a content from being fetched anew, and the longest: each wait is twice the one before. A
/// server that is repaired is found out soon, one that never is costs little.
const REFETCH_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

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

    /// How often the content was refuted.
    pub(super) fn times(&self) -> u32 {
        self.last.lock().as_ref().map_or(0, |last| last.times)
    }

    /// The last error, whether it still counts or not.
    pub(super) fn last(&self) -> Option<Error> {
        self.last.lock().as_ref().map(|last| last.error.share())
    }

    /// Why the content must not be read now; `None` when it may be fetched anew.
    pub(super) fn active_error(&self) -> Option<Error> {
        let last = self.last.lock();
        last.as_ref().filter(|last| Instant::now() < last.retry_at).map(|last| last.error.share())
    }

    /// When the content may be fetched anew; `None` when it was never refuted.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.last.lock().as_ref().map(|last| last.retry_at)
    }
}
