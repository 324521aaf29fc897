//! Saving after a power cut: files that are still as they were sealed are saved; all others are listed and kept.

use std::sync::Arc;

use bdnfs::error::Result;
use bdnfs::task::blocking;
use bdnfs::volume::{Scan, Seal};
use tokio::time::{Instant, sleep_until};

use super::JobEnd;
use super::outcomes::is_permanent;
use super::record::{SaverEnd, requested_end};
use super::round::Saver;
use super::save_context::{SettledUnit, UploadOutcome};
use crate::api::saving::CheckpointState;

/// How many torn files of a unit an event names.
const MAX_LISTED_TORN_FILES: usize = 10;

impl Saver {
    /// Saves the files that a power cut has left as they were sealed. All others are listed and kept.
    pub(super) async fn save_survivors(mut self) -> Result<()> {
        self.ended = Some((Instant::now(), JobEnd::Killed));
        let mut waiting = self.find_survivors().await?;
        while let Some(unit) = waiting.pop() {
            let volume = self.context.order.volume.clone();
            self.end_request = blocking(move || Ok(requested_end(&volume))).await?;
            if self.end_request == Some(SaverEnd::Discard) || self.should_give_up(false) {
                break;
            }
            if let Some((at, _)) = self.retry.get(unit.name()) {
                sleep_until(*at).await;
            }
            let outcome = self.begin(unit.clone()).outcome().await;
            match &outcome {
                Ok(UploadOutcome::Saved(..)) => {}
                // The others first: what fails for good must not keep them waiting.
                Err(error) if !is_permanent(error) => waiting.insert(0, unit.clone()),
                _ => self.record.report.given_up = true,
            }
            self.finish(&unit, outcome);
            self.write().await;
        }
        self.record.report.finished = true;
        self.write().await;
        Ok(())
    }

    /// The units that a power cut left as they were sealed, the newest last.
    async fn find_survivors(&mut self) -> Result<Vec<SettledUnit>> {
        let context = Arc::clone(&self.context);
        let find = blocking(move || {
            let (seals, skipped) = context.directory.walk().and_then(Scan::into_seals)?;
            let last = seals.keys().map(|name| context.last_seal(name)).collect::<Vec<_>>();
            Ok((seals, skipped, last))
        });
        let (seals, skipped, last) = find.await?;
        self.skip_all(skipped);
        self.record.report.given_up |= self.is_partial;
        self.settling.observe(&seals, &[], self.now());
        let mut found = Vec::new();
        for ((name, found_now), sealed) in seals.into_iter().zip(last) {
            let nothing = Seal { unit: name.clone(), ..Seal::default() };
            let seal = sealed.as_ref().map_or(&nothing, |unit| &unit.seal);
            let (survivors, torn) = seal.survivors(found_now);
            let is_whole = torn.is_empty() && survivors.files.len() == seal.files.len();
            if !torn.is_empty() {
                let paths =
                    torn.iter().take(MAX_LISTED_TORN_FILES).map(|path| path.escape_ascii().to_string());
                let paths: Vec<_> = paths.collect();
                self.report(&name).state = CheckpointState::Torn;
                self.record.report.torn += torn.len() as u64;
                self.record.note(format!(
                    "{name} is torn by a power cut, kept in {} and not saved: {}",
                    self.context.order.directory.display(),
                    paths.join(", ")
                ));
            }
            // A unit that was saved as it was sealed is in the mirror already.
            let is_saved = |unit: &SettledUnit| {
                self.record.saved.get(&name).is_some_and(|saved| saved.fingerprint == unit.fingerprint)
            };
            let sealed = sealed.filter(|unit| !survivors.files.is_empty() && !is_saved(unit));
            // A part never replaces what was saved whole.
            if sealed.is_some() && !is_whole && self.record.saved.contains_key(&name) {
                self.record.report.given_up = true;
                self.record.note(format!(
                    "a power cut has left only a part of {name}: it is kept in {}, and what was saved before stays",
                    self.context.order.directory.display(),
                ));
                continue;
            }
            found.extend(sealed.map(|unit| {
                let complete = unit.complete && is_whole;
                SettledUnit { seal: survivors, complete, ..unit }
            }));
        }
        // Of what was neither sealed nor is torn, the cut has left nothing.
        self.record.report.checkpoints.retain_mut(|one| {
            if one.state != CheckpointState::Writing || found.iter().any(|unit| unit.name() == one.name) {
                return true;
            }
            one.state = CheckpointState::Saved;
            one.generation > 0
        });
        found.sort_by_key(|unit| unit.written);
        Ok(found)
    }
}
