//! Claims: of several nodes that are about to begin with the saved state of a cache, one does, and the others wait for what it
//! saves.
//!
//! ```text
//!   tell that it is about to begin ──> see who else is or has begun ──> begin: tell that it is used
//!                                                                   └─> give way: take it back
//! ```

use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::mirror::homes::HomeReport;
use tokio::time::{Instant, sleep};

use super::CacheSync;
use super::home_report::{UnsavedElsewhere, is_recent, now, unsaved_message};
use crate::volumes::cache_home::CacheHome;

/// The time that a node waits for another to give way, and the interval at which it looks. The other one asks the mirror twice
/// meanwhile.
const CONTENTION_LIMIT: Duration = Duration::from_secs(20);
const CONTENTION_POLL_INTERVAL: Duration = Duration::from_millis(200);

impl CacheSync {
    /// Claims the cache for this node: of several nodes that ask at once, one begins and the others wait for what it saves. Returns
    /// `None` where this node may begin. Each tells that it is about to begin before it looks who else is; of two that see each
    /// other, the one with the lesser id goes on.
    ///
    /// # Errors
    /// Those of the mirror; [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub async fn claim(&self) -> Result<Option<UnsavedElsewhere>> {
        let contend = |home: &CacheHome| Ok(HomeReport { beginning: true, ..home.report(false)? });
        let own = self.with_home(contend).await?;
        self.mirror.put_home_report(&self.home.key(), &own).await?;
        let claimed = self.contend(&own.node).await;
        // Also where it failed: it may have been told.
        let reported = self.report_use(matches!(claimed, Ok(None))).await;
        match claimed {
            Ok(None) => reported.map(|()| None),
            claimed => claimed,
        }
    }

    /// Waits until the nodes that contended before this node, the node `own`, give way. Later ones have seen its report. Returns
    /// what is to be waited for where another node goes first.
    async fn contend(&self, own: &str) -> Result<Option<UnsavedElsewhere>> {
        let give_up = Instant::now() + CONTENTION_LIMIT;
        let mut rivals: Option<Vec<HomeReport>> = None;
        loop {
            let (reports, now) = (self.reports_elsewhere(own).await?, now());
            let unsaved = UnsavedElsewhere::of(&reports, now);
            if unsaved.is_some() {
                return Ok(unsaved);
            }
            let contends = |report: &HomeReport| report.beginning && !report.in_use && is_recent(report, now);
            let left: Vec<_> = match &rivals {
                None => reports.into_iter().filter(contends).collect(),
                Some(first) => first.iter().filter(|rival| reports.contains(rival)).cloned().collect(),
            };
            let Some(first) = left.iter().min_by(|one, other| one.node.cmp(&other.node)) else {
                return Ok(None);
            };
            if first.node.as_str() < own || Instant::now() > give_up {
                let message = unsaved_message(first, now);
                return Ok(Some(UnsavedElsewhere { message, is_awaited: true }));
            }
            rivals = Some(left);
            sleep(CONTENTION_POLL_INTERVAL).await;
        }
    }
}
