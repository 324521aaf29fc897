//! Reports of nodes on a cache, stored in its mirror: where its homes are, and which have unsaved changes.

use std::time::{Duration, SystemTime};

use bdnfs::error::Result;
use bdnfs::mirror::Mirror;
use bdnfs::mirror::homes::HomeReport;
use bdnfs::task::blocking;
use chrono::{DateTime, Utc};

use super::CacheSync;
use crate::text;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::node_identity::{NodeIdentity, host_name};

/// The interval at which a node reports again on a home in use. By that, other nodes know that it lives.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// The greatest age of the last report of a living node: a few reports that failed, and clock differences.
pub const LIVING_REPORT_AGE: Duration = Duration::from_secs(5 * 60);

/// Changes of a cache that other nodes have, and may not have saved.
#[derive(Debug)]
pub struct UnsavedElsewhere {
    /// A message for people: which nodes, and since when.
    pub message: String,
    /// Whether they will be saved: living nodes have jobs that use the cache.
    pub is_awaited: bool,
}

impl UnsavedElsewhere {
    /// Unsaved changes of other nodes, by their `reports`, at `now`.
    pub(super) fn of(reports: &[HomeReport], now: DateTime<Utc>) -> Option<Self> {
        let unsaved = reports.iter().filter(|report| {
            report.unsaved_since.is_some() || report.in_use && report.beginning && is_recent(report, now)
        });
        let is_awaited = unsaved.clone().all(|report| report.in_use && is_recent(report, now));
        let messages: Vec<_> = unsaved.map(|report| unsaved_message(report, now)).collect();
        (!messages.is_empty()).then(|| Self { message: messages.join(", "), is_awaited })
    }
}

impl CacheHome {
    /// Tells other nodes, in `mirror`, about the home as it is now, and whether jobs or containers use it.
    ///
    /// # Errors
    /// Those of the mirror; [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub async fn report_use(&self, mirror: &Mirror, in_use: bool) -> Result<()> {
        let home = self.clone();
        let report = blocking(move || home.report(in_use)).await?;
        mirror.put_home_report(&self.key(), &report).await
    }

    /// Makes sure that no job or container of another node uses the cache, as far as those nodes have told `mirror` recently.
    ///
    /// # Errors
    /// [`Kind::Busy`](bdnfs::error::Kind::Busy) where one does; those of the mirror.
    pub async fn ensure_unused_elsewhere(&self, mirror: &Mirror) -> Result<()> {
        let home = self.clone();
        // Where there are no volumes, there is none to leave out.
        let own = blocking(move || Ok(NodeIdentity::of(home.volumes()).ok())).await?;
        let now = now();
        let is_used = |report: &&HomeReport| {
            report.in_use && is_recent(report, now) && own.as_ref().is_none_or(|own| own.id != report.node)
        };
        match mirror.home_reports(&self.key()).await?.iter().find(is_used) {
            Some(report) => Err(self.in_use_on(&report.host)),
            None => Ok(()),
        }
    }

    /// The report on the home as it is now. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn report(&self, in_use: bool) -> Result<HomeReport> {
        let (state, node) = (self.sync_state()?, NodeIdentity::of(self.volumes())?);
        let saved = state.manifest.as_ref().map(|_| DateTime::from_timestamp_nanos(state.since));
        Ok(HomeReport {
            node: node.id,
            host: host_name(),
            manifest: state.manifest,
            saved,
            unsaved_since: state.unsaved_since.map(DateTime::from_timestamp_nanos),
            in_use,
            // Noted before anything is written.
            beginning: in_use && state.unsaved_since.is_none(),
            reported: now(),
        })
    }
}

impl CacheSync {
    /// Tells other nodes whether jobs or containers of this one use the home.
    ///
    /// # Errors
    /// Those of [`CacheHome::report_use`].
    pub async fn report_use(&self, in_use: bool) -> Result<()> {
        self.home.report_use(&self.mirror, in_use).await
    }

    /// Unsaved changes of other nodes; `None` where there are none.
    ///
    /// # Errors
    /// Those of the mirror; [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub async fn unsaved_elsewhere(&self) -> Result<Option<UnsavedElsewhere>> {
        let own = self.with_home(|home| home.report(false)).await?;
        Ok(UnsavedElsewhere::of(&self.reports_elsewhere(&own.node).await?, now()))
    }

    /// The reports of all nodes but the one with the id `own`.
    pub(super) async fn reports_elsewhere(&self, own: &str) -> Result<Vec<HomeReport>> {
        let mut reports = self.mirror.home_reports(&self.home.key()).await?;
        reports.retain(|report| report.node != own);
        Ok(reports)
    }
}

/// Formats what the node of `report` has or is about to change, for people.
pub(super) fn unsaved_message(report: &HomeReport, now: DateTime<Utc>) -> String {
    let age = |since: DateTime<Utc>| text::age(now - since);
    let (host, reported) = (&report.host, age(report.reported));
    let Some(since) = report.unsaved_since.map(age) else {
        return format!("a job on the node {host} was about to use it {reported} ago");
    };
    let used = if report.in_use { "used it" } else { "had used it" };
    format!(
        "the node {host} has changes that are not saved, the first {since} old (a job {used} there {reported} ago)"
    )
}

/// Whether the node of `report` is alive, at `now`.
pub(super) fn is_recent(report: &HomeReport, now: DateTime<Utc>) -> bool {
    (now - report.reported).to_std().map_or(true, |age| age < LIVING_REPORT_AGE)
}

/// The current time by the clock of this node.
pub(super) fn now() -> DateTime<Utc> {
    SystemTime::now().into()
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn unsaved_changes_are_awaited_from_nodes_that_use_the_cache_and_reported_recently() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let report = |in_use, minutes| HomeReport {
            node: "0".into(),
            host: "h".into(),
            manifest: None,
            saved: None,
            unsaved_since: Some(now - TimeDelta::hours(1)),
            in_use,
            beginning: false,
            reported: now - TimeDelta::minutes(minutes),
        };
        let saved = HomeReport { unsaved_since: None, ..report(false, 600) };
        let beginning =
            |in_use, minutes| HomeReport { unsaved_since: None, beginning: true, ..report(in_use, minutes) };
        // One that gives way, and one that died before it wrote anything.
        for nothing in [&saved, &beginning(false, 1), &beginning(true, 6)] {
            assert!(UnsavedElsewhere::of(std::slice::from_ref(nothing), now).is_none());
        }
        let began = UnsavedElsewhere::of(&[beginning(true, 1)], now).unwrap();
        assert!(began.is_awaited && began.message.contains("was about to use it"), "{}", began.message);
        for (reports, is_awaited) in [
            (vec![report(true, 4), saved], true),
            // Its clock is ahead.
            (vec![report(true, -4)], true),
            (vec![report(true, 4), report(true, 6)], false),
            (vec![report(false, 4)], false),
        ] {
            let unsaved = UnsavedElsewhere::of(&reports, now).unwrap();
            assert_eq!(unsaved.is_awaited, is_awaited, "{reports:?}");
            assert!(unsaved.message.contains("the node h has changes that are not saved"));
        }
    }
}
