//! Recent failures of a content, which answer repeated reads at once.

use std::ops::Range;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::Error;

/// The least duration of a failed read whose error answers all reads of the same block that come within [`REPEAT_WINDOW`]. The
/// kernel reads ahead first and then asks again for the very page, and many readers of one page ask for it one after the other:
/// without this, the last of them would wait for as many deadlines.
const SLOW_FAILURE_DURATION: Duration = Duration::from_secs(10);
const REPEAT_WINDOW: Duration = Duration::from_secs(1);

/// The number of failures that are kept: those of a kernel's read-ahead, which asks for many blocks at once.
const RECORD_LIMIT: usize = 64;

/// The last failures of one content.
#[derive(Debug, Default)]
pub(super) struct RecentFailures(Mutex<Vec<RecentFailure>>);

#[derive(Debug)]
struct RecentFailure {
    blocks: Range<u64>,
    since: Instant,
    error: Error,
}

impl RecentFailures {
    /// Records why `blocks` could not be fetched, and how long that took to find out.
    pub(super) fn record(&self, blocks: Range<u64>, took: Duration, error: &Error) {
        if took < SLOW_FAILURE_DURATION {
            return;
        }
        let mut failures = self.0.lock();
        failures.retain(|failure| failure.blocks != blocks && failure.since.elapsed() < REPEAT_WINDOW);
        if failures.len() < RECORD_LIMIT {
            failures.push(RecentFailure { blocks, since: Instant::now(), error: error.share() });
        }
    }

    /// The error of a read of one of `blocks` that failed a moment ago.
    pub(super) fn find(&self, blocks: &Range<u64>) -> Option<Error> {
        let failures = self.0.lock();
        let overlaps = |failure: &RecentFailure| {
            failure.blocks.start < blocks.end
                && blocks.start < failure.blocks.end
                && failure.since.elapsed() < REPEAT_WINDOW
        };
        failures.iter().find(|failure| overlaps(failure)).map(|failure| failure.error.share())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[tokio::test(start_paused = true)]
    async fn recent_failure_is_returned_to_every_read_within_a_second() {
        let (failures, error) = (RecentFailures::default(), Error::new(Kind::Timeout, "late"));
        for block in 0..4 {
            failures.record(block..block + 2, SLOW_FAILURE_DURATION, &error);
        }
        for _ in 0..8 {
            assert_eq!(failures.find(&(0..1)).expect("the first").kind(), Kind::Timeout);
        }
        assert!(failures.find(&(4..5)).is_some(), "the end of the last");
        assert!(failures.find(&(5..6)).is_none(), "not asked for");
        tokio::time::advance(REPEAT_WINDOW).await;
        assert!(failures.find(&(2..3)).is_none(), "too long ago");
    }
}
