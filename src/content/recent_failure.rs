//! The recent failure of a content, which answers a repeated read at once.

use std::ops::Range;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::Error;

/// How long a read must have taken to fail for its error to answer the next read of the same block, if that comes within
/// [`REPEAT_WINDOW`]. The kernel reads ahead first and then asks again for the very page: without this, a reader would wait for
/// two deadlines.
const SLOW_FAILURE: Duration = Duration::from_secs(10);
const REPEAT_WINDOW: Duration = Duration::from_secs(1);

/// The last failure of one content.
#[derive(Debug, Default)]
pub(super) struct RecentFailure {
    failed: Mutex<Option<(u64, Instant, Error)>>,
}

impl RecentFailure {
    /// Records why block `index` could not be had, and how long that took to find out.
    pub(super) fn record(&self, index: u64, took: Duration, error: &Error) {
        if took >= SLOW_FAILURE {
            let failed = Some((index, Instant::now(), error.share()));
            *self.failed.lock() = failed;
        }
    }

    /// Takes the error of a read of one of `blocks` that failed a moment ago. It answers once: a third read is in earnest.
    pub(super) fn take(&self, blocks: &Range<u64>) -> Option<Error> {
        let mut failed = self.failed.lock();
        let told = failed.take_if(|(index, ..)| blocks.contains(index));
        told.filter(|(_, since, _)| since.elapsed() < REPEAT_WINDOW).map(|(.., error)| error)
    }
}
