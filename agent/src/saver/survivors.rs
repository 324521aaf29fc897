//! Saving after a power cut or a killed job: files that are still as they were sealed are saved; all others are listed and kept.

use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::task::blocking;
use bdnfs::volume::{Scan, Seal, UnitState};
use tokio::time::{Instant, sleep_until};

use super::order::JobEnd;
use super::outcomes::mark_deleted;
use super::record::{SaverEnd, requested_end};
use super::round::Saver;
use super::save_context::{SettledUnit, UploadOutcome};
use crate::api::saving::CheckpointState;

/// The number of torn files of a unit that an event names.
const MAX_LISTED_TORN_FILES: usize = 10;
/// The interval at which a saver that waits to try again checks whether it is to end.
const END_REQUEST_INTERVAL: Duration = Duration::from_secs(1);

impl Saver {
    /// Saves the files that a power cut has left as they were sealed. All others are listed and kept.
    pub(super) async fn save_survivors(mut self) -> Result<()> {
        self.ended = Some((Instant::now(), JobEnd::Killed));
        // The node may have been off for long.
        self.record.ended = None;
        self.survivors = self.find_survivors().await?;
        self.end().await
    }

    /// Saves the units that are left of torn ones, and ends.
    pub(super) async fn end(mut self) -> Result<()> {
        self.survivors.sort_by_key(|unit| unit.written);
        while let Some(unit) = self.survivors.pop() {
            let volume = self.context.order.volume.clone();
            self.end_request = blocking(move || Ok(requested_end(&volume))).await?;
            if self.end_request == Some(SaverEnd::Discard) || self.should_give_up(false) {
                break;
            }
            if let Some((at, _)) = self.retry.get(unit.name())
                && *at > Instant::now()
            {
                // What is asked of the saver meanwhile is heard soon.
                sleep_until((*at).min(Instant::now() + END_REQUEST_INTERVAL)).await;
                self.survivors.push(unit);
                continue;
            }
            let outcome = self.begin(unit.clone()).outcome().await;
            match &outcome {
                Ok(UploadOutcome::Saved(..) | UploadOutcome::WholeSaved(..)) => {}
                // The others first: what fails for long must not keep them waiting.
                Err(_) => self.survivors.insert(0, unit.clone()),
                Ok(_) => self.record.report.given_up = true,
            }
            self.finish(&unit, outcome);
            self.write().await;
        }
        self.record.report.finished = true;
        self.write().await;
        Ok(())
    }

    /// The units that a power cut left as they were sealed.
    async fn find_survivors(&mut self) -> Result<Vec<SettledUnit>> {
        let context = Arc::clone(&self.context);
        let find = blocking(move || {
            let (seals, skipped) = context.directory.walk().and_then(Scan::into_seals)?;
            let last = seals.keys().map(|name| context.last_seal(name)).collect::<Vec<_>>();
            Ok((seals, skipped, last))
        });
        let (seals, skipped, last) = find.await?;
        let holds_units = seals.values().any(|seal| !seal.files.is_empty());
        self.skip_all(skipped, holds_units);
        self.record.report.given_up |= self.is_partial;
        self.settling.observe(&seals, &[], self.now());
        let mut found = Vec::new();
        for (found_now, sealed) in seals.into_values().zip(last) {
            found.extend(self.survivor(found_now, sealed, "is torn by a power cut,"));
        }
        let mut deleted = Vec::new();
        self.record.report.checkpoints.retain_mut(|one| {
            let is_sealed = one.state == CheckpointState::Sealed;
            let is_left = found.iter().any(|unit| unit.name() == one.name);
            if is_left || (!is_sealed && one.state != CheckpointState::Writing) {
                return true;
            }
            // What was sealed was on the disk: the job has deleted it, and no scan came after that. Of what was neither sealed nor is torn, the
            // cut has left nothing.
            let is_listed = mark_deleted(one, is_sealed);
            if one.state == CheckpointState::Skipped {
                deleted.push(one.name.clone());
            }
            is_listed
        });
        for name in deleted {
            self.note_deleted(&name, 0);
        }
        Ok(found)
    }

    /// Leaves a unit where it is that is not whole, and `why`, but for what was sealed of it.
    pub(super) async fn leave_torn(&mut self, seal: Seal, state: &UnitState, why: &str) -> Result<()> {
        let (context, name) = (Arc::clone(&self.context), seal.unit.clone());
        let unit = name.clone();
        let last = blocking(move || Ok(context.last_seal(&unit))).await?;
        self.refused.insert(name.clone(), state.fingerprint);
        let survivor = self.survivor(seal, last, why);
        let report = self.report(&name);
        if survivor.is_none() && report.state == CheckpointState::Writing {
            // No file of it is torn, and all are saved.
            report.state = CheckpointState::Saved;
        }
        self.survivors.extend(survivor);
        Ok(())
    }

    /// Returns what is left to be saved of the unit `found`, when nothing writes to it any more: the files that are as they were
    /// `sealed`, unless they are saved. The others are listed, and `why`.
    fn survivor(&mut self, found: Seal, sealed: Option<SettledUnit>, why: &str) -> Option<SettledUnit> {
        let name = found.unit.clone();
        let nothing = Seal { unit: name.clone(), ..Seal::default() };
        let seal = sealed.as_ref().map_or(&nothing, |unit| &unit.seal);
        let (survivors, torn) = seal.survivors(found);
        let has_all_sealed = survivors.files.len() == seal.files.len();
        if !torn.is_empty() {
            let paths = torn.iter().take(MAX_LISTED_TORN_FILES).map(|path| path.escape_ascii().to_string());
            let paths: Vec<_> = paths.collect();
            let report = self.report(&name);
            (report.state, report.complete) = (CheckpointState::Torn, false);
            self.record.report.torn += torn.len() as u64;
            self.record.note(format!(
                "{name} {why} kept in {} and not saved: {}",
                self.context.order.directory.display(),
                paths.join(", ")
            ));
        }
        // A unit that was saved as it was sealed is in the mirror already.
        let saved = self.record.saved.get(&name);
        let is_saved = |unit: &SettledUnit| saved.is_some_and(|saved| saved.fingerprint == unit.fingerprint);
        let unit = sealed.as_ref().filter(|unit| !survivors.files.is_empty() && !is_saved(unit))?;
        // A part never replaces what was saved whole.
        if !has_all_sealed && saved.is_some() {
            self.record.report.given_up = true;
            self.record.note(format!(
                "only a part of {name} is left as it was sealed: it is kept in {}, and what was saved before stays",
                self.context.order.directory.display(),
            ));
            return None;
        }
        let complete = unit.complete && has_all_sealed && torn.is_empty();
        let whole = unit.whole.clone().or_else(|| (!has_all_sealed).then(|| Box::new(unit.clone())));
        Some(SettledUnit { seal: survivors, complete, without_leases: true, whole, ..unit.clone() })
    }
}
