//! The state of a unit in a saver, beyond the last scan: how it was sealed, whether it was ever complete, and what it is the
//! remainder of.

use std::sync::Arc;
use std::time::Duration;

use bdnfs::digest::Digest;
use bdnfs::task::blocking;
use bdnfs::volume::{Seal, Seals, UnitState};
use tokio::time::Instant;

use super::order::JobEnd;
use super::record::{Fingerprint, SealedState};
use super::round::Saver;
use super::save_context::{IntactUnit, whole_of_remainder};
use crate::api::saving::CheckpointState;

/// The time for which a unit may be written to without being sealed before that is reported.
const UNSEALED_REPORT_DELAY: Duration = Duration::from_secs(60);

impl Saver {
    /// Returns the sealed state of a unit, if it is still as it was sealed.
    pub(super) fn sealed_state(&self, name: &str, state: &UnitState) -> Option<SealedState> {
        self.sealed.get(name).filter(|sealed| sealed.fingerprint == state.fingerprint).copied()
    }

    /// Whether the job has finished a unit, as far as can be told, or could be since it is as it is.
    pub(super) fn is_complete(&self, name: &str, state: &UnitState) -> bool {
        let completed = self.has_completed();
        let is_complete = || state.is_complete(self.now(), self.ended.is_some(), completed);
        match self.sealed_state(name, state) {
            Some(sealed) if sealed.partial => completed,
            Some(sealed) => sealed.complete || is_complete(),
            None => is_complete(),
        }
    }

    /// Whether the job has ended well: what it has left of a unit is what was to be left.
    pub(super) fn has_completed(&self) -> bool {
        self.ended.is_some_and(|(_, end)| end == JobEnd::Completed)
    }

    /// Writes down that a sealed unit is complete: a later saver, or one that goes on when the job has ended, can't tell.
    pub(super) async fn seal_complete(&mut self, name: &str) {
        let (context, unit) = (Arc::clone(&self.context), name.to_owned());
        let sealed = blocking(move || context.seal_complete(&unit)).await;
        match (sealed, self.sealed.get_mut(name)) {
            (Ok(()), Some(sealed)) => sealed.complete = true,
            (Err(error), _) => tracing::warn!("{error}"),
            (Ok(()), None) => {}
        }
    }

    /// Whether an unsealed unit may be torn: its job was killed, or a process that wrote to it or may have done so. It may be torn
    /// where it is unchanged since it had a writer, or where a whole marker was not its last write.
    async fn is_torn(&self, seal: &Seal) -> bool {
        let is_killed = self.ended.is_some_and(|(_, end)| end == JobEnd::Killed);
        let is_cut = self.cut.is_incomplete || seal.has_file_of(&self.cut.files);
        if !is_killed && !is_cut {
            return false;
        }
        if self.record.written_to.get(&seal.unit) == Some(&Fingerprint(seal.fingerprint())) {
            return true;
        }
        let (context, seal) = (Arc::clone(&self.context), seal.clone());
        !blocking(move || Ok(context.is_last_written_marker(&seal))).await.is_ok_and(|it| it)
    }

    /// Leaves a unit that may be torn, or has content that the disk failed to write: while the job runs, until it changes, and then
    /// for good, but for what was sealed of it. False where it is neither.
    pub(super) async fn leave_damaged(&mut self, seal: &Seal, state: &UnitState, is_sealed: bool) -> bool {
        let why = if self.report_unwritten(seal) {
            "has content that the disk failed to write: it is"
        } else if !is_sealed && self.is_torn(seal).await {
            "was being written when the job was killed: it is"
        } else {
            return false;
        };
        if self.ended.is_some()
            && let Err(error) = self.leave_torn(seal.clone(), state, why).await
        {
            self.fail(&seal.unit, &error);
        }
        true
    }

    /// Reports a unit that is not saved as it is.
    pub(super) fn report_unsaved(
        &mut self,
        name: &str,
        bytes: u64,
        complete: bool,
        sealed: Option<SealedState>,
    ) {
        let report = self.report(name);
        (report.bytes, report.complete) = (bytes, complete);
        report.state = if sealed.is_some() { CheckpointState::Sealed } else { CheckpointState::Writing };
        // Remembered: the next scan may find it half deleted, with nothing but empty files.
        if sealed.is_some() || bytes > 0 {
            let last = self.unsaved.entry(name.to_owned()).or_default();
            // What is left of one that is being deleted is sealed, too.
            *last = sealed.filter(|sealed| !sealed.partial).or(*last);
        }
    }

    /// Reports, once, a unit that has content which the disk failed to write. False where it has none.
    pub(super) fn report_unwritten(&mut self, seal: &Seal) -> bool {
        let Some(path) = self.context.unwritten.lock().path_in(seal).cloned() else {
            self.unwritten_files.remove(&seal.unit);
            return false;
        };
        let why = format!("the disk failed to write {}: write it again", path.0.escape_ascii());
        if self.unwritten_files.insert(seal.unit.clone(), path.clone()) != Some(path) {
            self.record.report.failures += 1;
            self.note_rarely(format!("{:?} cannot be saved: {why}", seal.unit));
        }
        self.record.report.why = Some(why);
        true
    }

    /// Reports that it is not known all what the job was writing when its processes were ended.
    pub(super) fn note_unknown_writers(&mut self) {
        if self.cut.is_incomplete {
            let text = "processes of the job were ended before it was found which files they were writing: \
                        checkpoints that were not sealed by then count as half written";
            self.record.note(text);
        }
    }

    /// Returns whether the unit is what is left of a deletion in progress, and whether the state before it was saved. `None` where
    /// it is no such remainder. A remainder of a saved state never replaces that; one of an unsaved state is saved, and is not
    /// complete.
    pub(super) async fn remainder_of(
        &mut self,
        name: &str,
        fingerprint: Digest,
        seals: &Seals,
    ) -> Option<IntactUnit> {
        if self.remainders.get(name) == Some(&fingerprint) {
            return Some(IntactUnit::Saved);
        }
        let (seal, volume) = (seals.get(name)?.clone(), self.context.order.volume.clone());
        let whole = blocking(move || Ok(whole_of_remainder(&volume, &seal))).await.ok()??;
        if self.record.saved.get(name).is_none_or(|saved| saved.fingerprint != whole) {
            return Some(IntactUnit::Unsaved);
        }
        self.remainders.insert(name.to_owned(), fingerprint);
        Some(IntactUnit::Saved)
    }

    /// Reports, once, a unit that could not be sealed for long: it is always being written, as a log is.
    pub(super) fn watch_unsealed(&mut self, seal: &Seal) {
        let (since, is_reported) =
            self.unsealed.entry(seal.unit.clone()).or_insert_with(|| (Instant::now(), false));
        if *is_reported || since.elapsed() < UNSEALED_REPORT_DELAY {
            return;
        }
        *is_reported = true;
        let last = seal.files.iter().max_by_key(|(_, file)| file.mtime);
        let last = last.map(|(path, _)| path.0.escape_ascii().to_string()).unwrap_or_default();
        self.record.note(format!(
            "{} is not saved so far: for a minute there was always a writer, the last change was to {last}",
            seal.unit
        ));
    }
}
