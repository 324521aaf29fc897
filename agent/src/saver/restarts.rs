//! Keeps a saver alive: it is started, and again where it died, until too much time has passed since its job ended.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bdnfs::error::Result;
use chrono::{DateTime, Utc};
use tokio::time::sleep;

use super::order::SaveOrder;
use super::process::start;
use crate::api::saving::SaveReport;

/// The least time between two starts of a saver, as it may die at once.
const SAVER_RESTART_INTERVAL: Duration = Duration::from_secs(5);

/// The starts of the saver of one job or container.
#[derive(Debug, Default)]
pub struct SaverRestarts {
    /// When it was last tried to start it.
    tried: Option<Instant>,
    /// The reason why the last start failed.
    failed: Option<String>,
}

impl SaverRestarts {
    /// The final report, once the saver will not be restarted: it does not live, has been tried, and the one whose checkpoints it
    /// saves `ended` more than `give_up` ago. `report` is the one that it left.
    pub fn final_report(
        &self,
        ended: Option<DateTime<Utc>>,
        give_up: Duration,
        report: &SaveReport,
        checkpoints: PathBuf,
    ) -> Option<SaveReport> {
        let since = (Utc::now() - ended?).to_std().ok()?;
        // A saver that gave up can't say so where the disk is full. One is tried in any case.
        if self.tried.is_none() || since <= give_up {
            return None;
        }
        let report = self.with_failure(report.clone());
        let why = report.why.or_else(|| Some("the saver ended before it was done".to_owned()));
        Some(SaveReport { given_up: true, why, directory: checkpoints, ..report })
    }

    /// The `report` of a saver, with the reason why it can't be started again, if it can't.
    pub fn with_failure(&self, report: SaveReport) -> SaveReport {
        SaveReport { why: self.failed.clone().or(report.why), ..report }
    }

    /// Starts a saver with the `order`, or only waits where that was tried just before. Returns why it can't be started, once for
    /// each reason.
    pub async fn start(&mut self, order: impl Future<Output = Result<SaveOrder>>) -> Option<String> {
        let left = self.tried.and_then(|tried| SAVER_RESTART_INTERVAL.checked_sub(tried.elapsed()));
        if let Some(left) = left {
            // Much may change meanwhile: the caller looks again.
            sleep(left).await;
            return None;
        }
        self.tried = Some(Instant::now());
        let started = async { start(&order.await?).await };
        let failed = started.await.err().map(|error| format!("checkpoints are not being saved: {error}"));
        let new = failed.clone().filter(|text| self.failed.as_ref() != Some(text));
        self.failed = failed;
        new
    }
}

#[cfg(test)]
mod tests {
    use bdnfs::error::{Error, Kind};
    use chrono::TimeDelta;

    use super::*;

    #[tokio::test]
    async fn saver_that_cannot_be_started_is_told_of_once_and_given_up_after_a_while() {
        let mut restarts = SaverRestarts::default();
        let (give_up, report) = (Duration::from_secs(60), SaveReport::default());
        let ended = |minutes| Some(Utc::now() - TimeDelta::minutes(minutes));
        let final_report =
            |restarts: &SaverRestarts, at| restarts.final_report(at, give_up, &report, "checkpoints".into());
        assert!(final_report(&restarts, ended(2)).is_none(), "one is tried in any case");
        let refused = || async { Err(Error::new(Kind::Refused, "no secret")) };
        let text = restarts.start(refused()).await;
        assert_eq!(text.as_deref(), Some("checkpoints are not being saved: no secret"));
        assert!(final_report(&restarts, None).is_none() && final_report(&restarts, ended(0)).is_none());
        let last = final_report(&restarts, ended(2)).unwrap();
        assert!(last.given_up && last.why == text && last.directory.ends_with("checkpoints"));
        restarts.tried = Some(Instant::now() - SAVER_RESTART_INTERVAL);
        assert_eq!(restarts.start(refused()).await, None, "it is known");
    }

    #[tokio::test(start_paused = true)]
    async fn saver_that_was_just_started_is_not_started_again() {
        let mut restarts = SaverRestarts { tried: Some(Instant::now()), failed: None };
        let tried = restarts.tried;
        assert_eq!(restarts.start(async { Err(Error::new(Kind::Refused, "it only waits")) }).await, None);
        assert_eq!(restarts.tried, tried);
    }
}
