//! What went wrong recent_failure, kept for who asks again at once.

use std::ops::Range;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::Error;

/// A read that failed after this long stands for the next one of the same block, if that comes within [`REPEAT_WINDOW`]. The
/// kernel reads ahead first, and at once asks once more for the very page: who reads would wait for two deadlines.
const SLOW_FAILURE: Duration = Duration::from_secs(10);
const REPEAT_WINDOW: Duration = Duration::from_secs(1);

/// The last failure of one content.
#[derive(Debug, Default)]
pub(super) struct RecentFailure {
    failed: Mutex<Option<(u64, Instant, Error)>>,
}

impl RecentFailure {
    /// Notes why block `index` could not be had, and how long that took to find out.
    pub(super) fn fail(&self, index: u64, took: Duration, error: &Error) {
        if took >= SLOW_FAILURE {
            let failed = Some((index, Instant::now(), error.share()));
            *self.failed.lock() = failed;
        }
    }

    /// Why one of `blocks` could not be had a moment ago. Told once: who asks a third time resources it.
    pub(super) fn failed(&self, blocks: &Range<u64>) -> Option<Error> {
        let mut failed = self.failed.lock();
        let told = failed.take_if(|(index, ..)| blocks.contains(index));
        told.filter(|(_, since, _)| since.elapsed() < REPEAT_WINDOW).map(|(.., error)| error)
    }
}
