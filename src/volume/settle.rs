//! Settling: which units of a directory have not changed for a while. Pure: the time is handed in.

use std::collections::BTreeMap;
use std::time::Duration;

use super::seal::Seals;
use super::walk::FileTime;
use crate::checkpoint::LOOSE;
use crate::digest::Digest;

/// The time for which nothing may have come to a unit, or to a file, before it is sealed. Not less: before Linux 6.13 times of
/// files tick every 4 ms, and two looks must be apart by more than whatever a clock does.
pub const SEAL_QUIET_PERIOD: Duration = Duration::from_secs(2);
/// The time for which nothing may have come to a unit before it is saved, unless there is a hint that it is complete.
const SETTLE_QUIET_PERIOD: Duration = Duration::from_secs(10);
/// Like [`SEAL_QUIET_PERIOD`], where the file system can't tell whether there is a writer.
pub(super) const SEAL_QUIET_PERIOD_WITHOUT_LEASES: Duration = Duration::from_secs(60);
/// The time for which nothing may have come to a unit without a hint before it counts as complete.
const COMPLETE_QUIET_PERIOD: Duration = Duration::from_secs(60);

/// The units of a directory, and since when each is as it is.
#[derive(Debug, Default)]
pub struct SettleTracker {
    units: BTreeMap<String, UnitState>,
    /// The number of scans so far.
    scans: u64,
}

/// A unit as the last look found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// The digest of all its paths and versions.
    pub fingerprint: Digest,
    /// The number of its files.
    pub files: usize,
    /// The number of their bytes.
    pub bytes: u64,
    /// When one of its files was last written: seconds and nanoseconds since 1970.
    pub written: FileTime,
    /// When a look first found it so.
    changed: Duration,
    /// The look that first found it.
    begun: u64,
    /// The look that first found it so.
    changed_scan: u64,
    /// Whether a file in it or a tracker says that it is complete, and nothing in it was written after that.
    marked: bool,
    /// Whether the next one has begun since it changed.
    followed: bool,
    /// Whether the file system can't tell whether it has a writer.
    without_leases: bool,
}

impl UnitState {
    fn hinted(&self) -> bool {
        self.marked || self.followed
    }

    /// Whether the file system can't tell whether it has a writer: only time does.
    pub fn is_without_leases(&self) -> bool {
        self.without_leases
    }

    /// Whether nothing came to it for so long that it may be sealed.
    pub fn is_quiet(&self, now: Duration) -> bool {
        let quiet = if self.without_leases { SEAL_QUIET_PERIOD_WITHOUT_LEASES } else { SEAL_QUIET_PERIOD };
        now.saturating_sub(self.changed) >= quiet
    }

    /// Whether nothing came to it for so long that it may be saved. `ended`: its job has.
    pub fn is_settled(&self, now: Duration, ended: bool) -> bool {
        let is_hinted = ended || self.hinted();
        self.is_quiet(now) && (is_hinted || now.saturating_sub(self.changed) >= SETTLE_QUIET_PERIOD)
    }

    /// Whether its job has finished it, as far as can be told. `completed`: the job has ended well.
    pub fn is_complete(&self, now: Duration, ended: bool, completed: bool) -> bool {
        let quiet = now.saturating_sub(self.changed) >= COMPLETE_QUIET_PERIOD;
        self.hinted() || completed || (quiet && !ended)
    }
}

impl SettleTracker {
    /// Records what a walk found of each unit at the time `now`, counted from any moment, and which units trackers name,
    /// with when each tracker was written.
    pub fn observe(&mut self, found: &Seals, tracked: &[(String, FileTime)], now: Duration) {
        self.units.retain(|name, _| found.contains_key(name));
        self.scans += 1;
        for (name, seal) in found {
            let fingerprint = seal.fingerprint();
            let state = self.units.entry(name.clone()).or_insert_with(|| UnitState {
                fingerprint,
                files: 0,
                bytes: 0,
                written: (0, 0),
                changed: now,
                begun: self.scans,
                changed_scan: self.scans,
                marked: false,
                followed: false,
                without_leases: false,
            });
            if state.fingerprint != fingerprint {
                (state.fingerprint, state.changed) = (fingerprint, now);
                (state.changed_scan, state.followed) = (self.scans, false);
            }
            (state.files, state.bytes, state.written) = (seal.files.len(), seal.bytes(), seal.written());
            let is_tracked = tracked.iter().any(|(unit, at)| unit == name && *at >= state.written);
            state.marked = seal.is_marked() || is_tracked;
        }
        let newest = self.units.iter().filter(|(name, _)| *name != LOOSE).map(|(_, unit)| unit.begun).max();
        for (_, state) in self.units.iter_mut().filter(|(name, _)| *name != LOOSE) {
            state.followed |= newest.is_some_and(|newest| state.changed_scan < newest);
        }
    }

    /// The units, by name.
    pub fn units(&self) -> &BTreeMap<String, UnitState> {
        &self.units
    }

    /// Begins to wait for a unit anew: it was not settled when it was sealed.
    pub fn disturb(&mut self, unit: &str, now: Duration, without_leases: bool) {
        if let Some(state) = self.units.get_mut(unit) {
            // Where leases never work, only time tells.
            let first = without_leases && !state.without_leases;
            state.without_leases |= without_leases;
            if !first {
                state.changed = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{Scan, ScannedFile};

    fn scan(files: &[(&str, u64)]) -> Seals {
        let mut scan = Scan::default();
        for (path, size) in files {
            if let Some((directory, _)) = path.rsplit_once('/') {
                scan.directories.insert(directory.into(), (0, 0));
            }
            let file =
                ScannedFile { version: size.to_string(), size: *size, mtime: (1, 0), executable: false };
            scan.files.insert((*path).into(), file);
        }
        scan.into_seals().expect("few units").0
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn unit_is_settled_after_ten_quiet_seconds_and_two_with_a_hint() {
        let mut settling = SettleTracker::default();
        let plain = scan(&[("a/model", 1)]);
        settling.observe(&plain, &[], at(0));
        assert!(
            !settling.units()["a"].is_settled(at(9), false)
                && settling.units()["a"].is_settled(at(10), false)
        );
        assert!(
            !settling.units()["a"].is_settled(at(1), true) && settling.units()["a"].is_settled(at(2), true)
        );
        let tracked = [("a".to_owned(), (1, 0))];
        settling.observe(&plain, &tracked, at(11));
        assert!(settling.units()["a"].is_settled(at(11), false), "a tracker names it, and it is as it was");
        settling.observe(&scan(&[("a/model", 2)]), &tracked, at(12));
        assert!(
            !settling.units()["a"].is_settled(at(13), false)
                && settling.units()["a"].is_settled(at(14), false)
        );
        let marked = scan(&[("b/.metadata", 1)]);
        settling.observe(&marked, &[], at(20));
        assert!(!settling.units().contains_key("a"));
        assert!(
            settling.units()["b"].is_settled(at(22), false)
                && settling.units()["b"].is_complete(at(20), false, false)
        );
    }

    #[test]
    fn unit_is_complete_by_the_next_one_a_good_end_or_a_minute_of_quiet() {
        let mut settling = SettleTracker::default();
        settling.observe(&scan(&[("a/model", 1)]), &[], at(0));
        let a = settling.units()["a"].clone();
        assert!(!a.is_complete(at(59), false, false) && a.is_complete(at(60), false, false));
        assert!(a.is_complete(at(1), true, true), "the job ended in good order");
        assert!(
            !a.is_complete(at(90), true, false),
            "nothing more comes after the end, so quiet says nothing"
        );
        settling.observe(&scan(&[("a/model", 1), ("b/model", 1), ("log", 1)]), &[], at(5));
        assert!(settling.units()["a"].is_complete(at(5), false, false));
        assert!(!settling.units()["b"].is_complete(at(5), false, false));
        assert!(!settling.units()["."].is_complete(at(5), false, false), "loose files have no next");
    }

    #[test]
    fn unit_that_changes_is_complete_only_by_a_hint_after_that() {
        let mut settling = SettleTracker::default();
        let is_complete =
            |settling: &SettleTracker, now| settling.units()["a"].is_complete(at(now), false, false);
        settling.observe(&scan(&[("a/model", 1)]), &[], at(0));
        settling.observe(&scan(&[("a/model", 1), ("b/model", 1)]), &[], at(1));
        assert!(is_complete(&settling, 1), "the next one has begun");
        settling.observe(&scan(&[("a/model", 2), ("b/model", 1)]), &[], at(2));
        assert!(!is_complete(&settling, 2), "it began before the change");
        settling.observe(&scan(&[("a/model", 2), ("b/model", 1), ("c/model", 1)]), &[], at(3));
        assert!(is_complete(&settling, 3), "another one has begun since");
        for (marker, written) in [((1, 0), true), ((0, 999_999_999), false)] {
            let mut marked = scan(&[("a/model", 3), ("a/.metadata", 1)]);
            let seal = marked.get_mut("a").expect("the unit");
            seal.files.get_mut(&seal.path_of(b".metadata")).expect("the marker").mtime = marker;
            let mut settling = SettleTracker::default();
            settling.observe(&marked, &[], at(0));
            assert_eq!(is_complete(&settling, 0), written, "a marker of {marker:?} with a file of (1, 0)");
            let mut settling = SettleTracker::default();
            settling.observe(&scan(&[("a/model", 3)]), &[("a".to_owned(), marker)], at(0));
            assert_eq!(is_complete(&settling, 0), written, "a tracker of {marker:?} with a file of (1, 0)");
        }
    }

    #[test]
    fn unit_without_leases_settles_after_a_minute() {
        let mut settling = SettleTracker::default();
        settling.observe(&scan(&[("a/model", 1)]), &[], at(0));
        settling.disturb("a", at(10), true);
        assert!(
            !settling.units()["a"].is_settled(at(59), true) && settling.units()["a"].is_settled(at(60), true)
        );
        settling.disturb("a", at(70), false);
        assert!(!settling.units()["a"].is_settled(at(129), true));
    }
}
