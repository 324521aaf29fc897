//! Outcomes: a saver's report, its events, its record.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bdnfs::backoff::{Backoff, entropy};
use bdnfs::checkpoint::{CheckpointId, LOOSE, SavedCheckpoint};
use bdnfs::error::{Error, Result};
use bdnfs::task::blocking;
use bdnfs::volume::{SkipReason, SkippedEntries};
use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::record::SavedState;
use super::round::{SaveTask, Saver};
use super::save_context::{SettledUnit, UploadOutcome};
use crate::api::saving::{CheckpointState, UnitReport};
use crate::text;

/// The backoff after a failure, at first and at most.
const MIN_SAVE_RETRY_WAIT: Duration = Duration::from_secs(1);
const MAX_SAVE_RETRY_WAIT: Duration = Duration::from_secs(60);
/// The number of left-out entries that are reported one by one.
const MAX_REPORTED_SKIPS: usize = 1000;
/// The number of checkpoints per hour that are reported one by one because they were deleted too early or can't be saved: a job may
/// make them without end.
const MAX_HOURLY_NOTES: u32 = 100;
const HOUR: Duration = Duration::from_secs(3600);
/// The number of checkpoints that are reported, including those that are there.
const MAX_REPORTED_CHECKPOINTS: usize = 1000;
/// The number of uploads of a unit in a row, changed by its job meanwhile, from which on that is reported.
const CHANGES_REPORTED_FROM: u32 = 3;
/// The interval at which the record is written for the sake of the backlog alone: it is flushed to the disk, which the job needs.
const BACKLOG_WRITE_INTERVAL: Duration = Duration::from_secs(10);

impl Saver {
    /// Records the outcome of sealing or saving a unit.
    pub(super) fn finish(&mut self, unit: &SettledUnit, outcome: Result<UploadOutcome>) {
        match outcome {
            Ok(UploadOutcome::Saved(saved, removed)) => {
                self.record_saved(unit, &saved);
                self.report_pruned(removed);
            }
            Ok(UploadOutcome::WholeSaved(whole, saved)) => {
                self.record_saved(&whole, &saved);
                self.sealed.insert(whole.name().to_owned(), whole.sealed_state());
                self.remainders.insert(unit.name().to_owned(), unit.fingerprint);
            }
            Ok(UploadOutcome::Refused(error)) => self.refuse(unit, &error),
            Ok(UploadOutcome::Unwritten) => {
                self.sealed.remove(unit.name());
                self.report_unwritten(&unit.seal);
            }
            Ok(outcome) => {
                let unknown = matches!(outcome, UploadOutcome::WritersUnknown);
                let was_sealed = self.sealed.remove(unit.name()).is_some();
                self.settling.disturb(unit.name(), self.now(), unknown);
                if was_sealed && !unknown {
                    self.count_change(unit.name());
                }
            }
            Err(error) => self.fail(unit.name(), &error),
        }
    }

    /// Counts an upload of a unit that its job changed meanwhile.
    fn count_change(&mut self, name: &str) {
        let changes = self.changes.entry(name.to_owned()).or_default();
        *changes += 1;
        if *changes >= CHANGES_REPORTED_FROM {
            self.record.report.failures += 1;
        }
        if *changes == CHANGES_REPORTED_FROM {
            let text = format!("{name} is not saved: the job changes it again before its upload is done");
            self.record.note(text);
        }
    }

    fn record_saved(&mut self, unit: &SettledUnit, saved: &SavedCheckpoint) {
        self.retry.remove(unit.name());
        self.changes.remove(unit.name());
        self.unsaved.remove(unit.name());
        self.clear_failure();
        let was_complete = self.record.saved.get(unit.name()).is_some_and(|saved| saved.complete);
        let state = SavedState { fingerprint: unit.fingerprint, complete: saved.complete };
        self.record.saved.insert(unit.name().to_owned(), state);
        let report = self.report(unit.name());
        let is_new = report.generation != saved.generation;
        let replaced = if is_new && was_complete { report.saved } else { None };
        // Only a part of a torn checkpoint was saved.
        let is_torn = report.state == CheckpointState::Torn;
        *report = UnitReport {
            name: unit.name().to_owned(),
            state: if is_torn { CheckpointState::Torn } else { CheckpointState::Saved },
            bytes: saved.bytes,
            complete: saved.complete,
            generation: saved.generation,
            saved: Some(saved.saved),
            seconds: Some(saved.seconds),
        };
        let all = &mut self.record.report;
        if saved.complete && unit.name() != LOOSE {
            all.interval = interval(&all.checkpoints, replaced).or(all.interval);
        }
        let complete = if saved.complete { "complete" } else { "not known to be complete" };
        if !is_new {
            return self.record.note(format!("{} is {complete}", unit.name()));
        }
        let all = &mut self.record.report;
        let rate = saved.bytes as f64 / saved.seconds.max(0.001);
        (all.last, all.rate) = (Some(saved.saved), Some(rate));
        all.saved += saved.bytes;
        let (files, bytes) = (text::files(saved.files), text::size(saved.bytes));
        self.record.note(format!(
            "saved {} (generation {}, {complete}): {files}, {bytes} in {:.1} s, {}/s",
            unit.name(),
            saved.generation,
            saved.seconds,
            text::size(rate as u64)
        ));
    }

    /// Reports what was removed from the mirror to keep only the newest.
    fn report_pruned(&mut self, removed: Result<Vec<CheckpointId>>) {
        match removed {
            Ok(removed) => {
                removed.iter().for_each(|id| self.record.note(format!("removed {id}: newer ones are kept")))
            }
            // The next save tries it again.
            Err(error) => self.record.note(format!("cannot remove older checkpoints: {error}")),
        }
    }

    /// Gives up a unit until it changes.
    pub(super) fn refuse(&mut self, unit: &SettledUnit, error: &Error) {
        self.refused.insert(unit.name().to_owned(), unit.fingerprint);
        self.retry.remove(unit.name());
        self.record.report.failures += 1;
        self.note_rarely(format!("{:?} cannot be saved: {error}", unit.name()));
    }

    /// Notes what a job can cause at any rate. What is too much for an hour is counted, and told of with the first event after
    /// that.
    pub(super) fn note_rarely(&mut self, text: String) {
        let (begin, notes) = &mut self.hourly_notes;
        if begin.elapsed() >= HOUR {
            let left_out = notes.saturating_sub(MAX_HOURLY_NOTES);
            (*begin, *notes) = (Instant::now(), 0);
            if left_out > 0 {
                self.record.note(format!(
                    "{left_out} events of checkpoints that were deleted or refused are left out"
                ));
            }
        }
        self.hourly_notes.1 += 1;
        match self.hourly_notes.1.cmp(&MAX_HOURLY_NOTES) {
            Ordering::Less => self.record.note(text),
            Ordering::Equal => {
                self.record.note(format!("{text}; more events of that kind are left out for an hour"))
            }
            Ordering::Greater => tracing::debug!("{text}"),
        }
    }

    /// Clears the failure when nothing is to be tried again.
    fn clear_failure(&mut self) {
        if self.retry.is_empty() {
            self.record.report.why = None;
        }
    }

    /// Schedules a retry of what failed, a unit or the scan.
    pub(super) fn fail(&mut self, what: &str, error: &Error) {
        let first = || Backoff::new(MIN_SAVE_RETRY_WAIT, MAX_SAVE_RETRY_WAIT, entropy());
        let mut waits = self.retry.remove(what).map_or_else(first, |(_, waits)| waits);
        let retry_at = Instant::now() + waits.wait();
        self.retry.insert(what.to_owned(), (retry_at, waits));
        self.record.report.failures += 1;
        let why = error.to_string();
        if self.record.report.why.as_ref() != Some(&why) {
            self.record.note(format!("cannot save {what}, and tries again: {why}"));
            self.record.report.why = Some(why);
        }
    }

    /// Records what a scan has left out, which found files of units if it `holds_units`.
    pub(super) fn skip_all(&mut self, mut skipped: SkippedEntries, holds_units: bool) {
        if self.ended.is_none() {
            skipped.retain(|_, why| !why.may_pass());
        }
        let holds_units = holds_units || self.record.report.checkpoints.iter().any(|one| one.generation > 0);
        // Where there was never anything else, all that the job wrote is in it.
        let is_left =
            |why: &SkipReason| why.has_content() || (*why == SkipReason::TemporaryName && !holds_units);
        self.is_partial = skipped.values().any(is_left);
        skipped.into_iter().for_each(|(path, why)| self.skip(path, why));
    }

    /// Reports, once, that the entry at `path` is left out.
    fn skip(&mut self, path: Vec<u8>, why: SkipReason) {
        let text =
            format!("{}/{} is not saved: {why}", self.context.order.place.display(), path.escape_ascii());
        if self.skipped.len() < MAX_REPORTED_SKIPS && self.skipped.insert(path) {
            self.record.note(text);
        }
    }

    /// Records the units that the job has deleted, all but the one under way: that is read to its end.
    /// Returns those that were sealed.
    pub(super) fn forget_deleted(&mut self, under_way: Option<&str>) -> Vec<String> {
        let units = self.settling.units();
        let is_there = |name: &String| units.contains_key(name) || under_way == Some(&**name);
        self.refused.retain(|name, _| is_there(name));
        self.record.saved.retain(|name, _| is_there(name));
        self.record.written_to.retain(|name, _| is_there(name));
        self.remainders.retain(|name, _| is_there(name));
        self.retry.retain(|name, _| is_there(name));
        self.changes.retain(|name, _| is_there(name));
        self.unsealed.retain(|name, _| is_there(name));
        let unsaved = &self.unsaved;
        let mut too_early = Vec::new();
        self.record.report.checkpoints.retain_mut(|one| match one.state {
            _ if is_there(&one.name) => true,
            CheckpointState::Writing | CheckpointState::Sealed => {
                let unsaved = unsaved.get(&one.name);
                let sealed = unsaved.copied().flatten();
                let was_sealed = one.state == CheckpointState::Sealed || sealed.is_some();
                if one.bytes > 0 || was_sealed || unsaved.is_some() {
                    too_early.push((one.name.clone(), one.generation));
                }
                let is_listed = mark_deleted(one, was_sealed);
                if one.state == CheckpointState::Skipped {
                    one.complete |= sealed.is_some_and(|sealed| sealed.complete);
                }
                is_listed
            }
            _ => true,
        });
        self.unsaved.retain(|name, _| is_there(name));
        let gone: Vec<_> = self.sealed.keys().filter(|name| !is_there(name)).cloned().collect();
        self.sealed.retain(|name, _| is_there(name));
        self.trim_reports();
        self.clear_failure();
        for (name, generation) in too_early {
            self.note_deleted(&name, generation);
        }
        gone
    }

    /// Records that the job deleted an unsaved state of a checkpoint; `generation` is the one saved before, 0 for none.
    pub(super) fn note_deleted(&mut self, name: &str, generation: u64) {
        self.note_rarely(match generation {
            0 => format!("{name} was deleted by the job before it was saved"),
            _ => format!("{name} was changed and deleted by the job; generation {generation} stays saved"),
        });
    }

    /// Drops the oldest reports of what is gone, where there are too many.
    fn trim_reports(&mut self) {
        let (units, reports) = (self.settling.units(), &mut self.record.report.checkpoints);
        while reports.len() > MAX_REPORTED_CHECKPOINTS.max(units.len()) {
            let gone = reports.iter().enumerate().filter(|(_, one)| !units.contains_key(&one.name));
            let Some((oldest, _)) = gone.min_by_key(|(_, one)| one.saved) else { return };
            reports.remove(oldest);
        }
    }

    /// The report of a checkpoint.
    pub(super) fn report(&mut self, name: &str) -> &mut UnitReport {
        let at = self.position(name).unwrap_or_else(|at| {
            let report = UnitReport { name: name.to_owned(), ..UnitReport::default() };
            self.record.report.checkpoints.insert(at, report);
            at
        });
        &mut self.record.report.checkpoints[at]
    }

    fn position(&self, name: &str) -> std::result::Result<usize, usize> {
        self.record.report.checkpoints.binary_search_by(|one| one.name.as_str().cmp(name))
    }

    /// Counts what is sealed and not saved, and what could not be sealed for long.
    pub(super) fn count_backlog(&mut self, upload: Option<&SaveTask>) {
        let done = upload.map_or(0, |upload| upload.progress.bytes_done.load(Relaxed));
        let reports = &mut self.record.report;
        let is_overdue = |name: &String| self.unsealed.get(name).is_some_and(|(_, is_reported)| *is_reported);
        let waiting = reports.checkpoints.iter().filter(|one| match one.state {
            CheckpointState::Sealed => true,
            CheckpointState::Writing => is_overdue(&one.name),
            _ => false,
        });
        reports.backlog = waiting.map(|one| one.bytes).sum::<u64>().saturating_sub(done);
    }

    /// Writes the record, if it has changed.
    pub(super) async fn write(&mut self) {
        self.record.unwritten.clone_from(&self.context.unwritten.lock());
        if let Some((written, at)) = &mut self.written {
            let backlog = std::mem::replace(&mut written.report.backlog, self.record.report.backlog);
            let is_same = *written == self.record;
            written.report.backlog = backlog;
            let is_new = backlog != self.record.report.backlog && at.elapsed() >= BACKLOG_WRITE_INTERVAL;
            if is_same && !is_new {
                return;
            }
        }
        let (record, volume) = (self.record.clone(), self.context.order.volume.clone());
        match blocking(move || record.write(&volume)).await {
            Ok(()) => self.written = Some((self.record.clone(), Instant::now())),
            // A full disk is no reason to stop saving what makes room on it.
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

/// Marks the report of an unsaved state as that of a checkpoint deleted by its job; `was_sealed` says whether the state was sealed.
/// False where the checkpoint is not listed any more: it was neither sealed nor saved before.
pub(super) fn mark_deleted(one: &mut UnitReport, was_sealed: bool) -> bool {
    let is_skipped = was_sealed && one.generation == 0;
    one.state = if is_skipped { CheckpointState::Skipped } else { CheckpointState::Saved };
    is_skipped || one.generation > 0
}

/// The seconds between the newest two complete named checkpoints that were saved, of which one may have `replaced` its earlier
/// state.
fn interval(checkpoints: &[UnitReport], replaced: Option<DateTime<Utc>>) -> Option<f64> {
    let complete = checkpoints.iter().filter(|one| one.complete && one.name != LOOSE);
    let mut times: Vec<_> = complete.filter_map(|one| one.saved).chain(replaced).collect();
    times.sort();
    let [.., before, last] = times[..] else { return None };
    Some((last - before).as_seconds_f64()).filter(|seconds| *seconds > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_that_of_the_newest_complete_named_checkpoints() {
        let at = |seconds| DateTime::from_timestamp(seconds, 0);
        let of = |name: &str, complete, seconds| UnitReport {
            name: name.to_owned(),
            complete,
            saved: at(seconds),
            ..UnitReport::default()
        };
        let first = of("checkpoint-5", true, 1000);
        let beside = [of(LOOSE, true, 1005), first.clone(), of("checkpoint-6", false, 1010)];
        assert_eq!(interval(&beside, None), None, "there is one");
        let all = [of(LOOSE, true, 1605), first, of("checkpoint-6", true, 1600)];
        assert_eq!(interval(&all, None), Some(600.0));
        assert_eq!(interval(&[of("last", true, 1600)], at(1000)), Some(600.0), "it is rewritten in place");
    }
}
