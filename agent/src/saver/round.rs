//! The rounds of a saver: scan the directory each second, seal what has settled, save the newest first.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::backoff::Backoff;
use bdnfs::digest::Digest;
use bdnfs::error::{Kind, Result};
use bdnfs::mirroring::MirrorProgress;
use bdnfs::task::{blocking, join_error};
use bdnfs::volume::{EncodedPath, Seal, Seals, SettleTracker, UnitState, VolumeDirectory};
use chrono::Utc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::directory_scan::DirectoryScan;
use super::order::{JobEnd, SaveOrder};
use super::record::{self, Fingerprint, SaverEnd, SaverRecord, SealedState, requested_end};
use super::save_context::{IntactUnit, SaveContext, SettledUnit, UploadOutcome};
use super::upload_ahead::{AheadFiles, AheadTask};
use crate::api::job::WrittenFiles;

/// The interval at which the directory is scanned.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a scan, as a multiple of its duration: walks of very many files must not keep a processor busy.
const SCAN_PAUSE_FACTOR: u32 = 5;
/// The longest time in which no scan runs: it also finds that the job has ended.
const MAX_SCAN_PAUSE: Duration = Duration::from_secs(10);
/// The least time for which each saver tries before it gives up.
const MIN_GIVE_UP_TIME: Duration = Duration::from_secs(60);

/// Saves until the job has ended and nothing is left to be saved.
///
/// # Errors
/// Those of opening the directory.
pub async fn save(order: SaveOrder) -> Result<()> {
    let directory = Arc::new(VolumeDirectory::open(&order.directory)?);
    let boot = bdnfs::boot::id_line()?;
    let (mut record, is_cut) = record::resume(&order.volume, &boot);
    let report = &mut record.report;
    (report.finished, report.given_up, report.torn) = (false, false, 0);
    report.directory.clone_from(&order.directory);
    record.project = Some(order.project.clone());
    let context = Arc::new(SaveContext::new(order, directory, record.unwritten.clone()));
    let sealed = context.sealed();
    let mut saver = Saver {
        unsaved: record.unsaved(&sealed),
        sealed,
        context,
        record,
        written: None,
        settling: SettleTracker::default(),
        begin: Instant::now(),
        is_ending: false,
        ended: None,
        cut: WrittenFiles::default(),
        end_request: None,
        refused: BTreeMap::new(),
        remainders: BTreeMap::new(),
        skipped: BTreeSet::new(),
        is_partial: false,
        retry: BTreeMap::new(),
        changes: BTreeMap::new(),
        unsealed: BTreeMap::new(),
        unwritten_files: BTreeMap::new(),
        hourly_notes: (Instant::now(), 0),
        survivors: Vec::new(),
        ahead_files: AheadFiles::default(),
        scan_duration: Duration::ZERO,
    };
    saver.write().await;
    // Created now: later it could not be told from one whose disk is not mounted. Where this fails, the first upload does it.
    let context = Arc::clone(&saver.context);
    tokio::task::spawn_local(async move {
        if let Err(error) = context.mirror().await {
            tracing::warn!("nothing can be saved yet: {error}");
        }
    });
    if is_cut { saver.save_survivors().await } else { saver.run().await }
}

/// A saver at work.
pub struct Saver {
    pub(super) context: Arc<SaveContext>,
    pub(super) record: SaverRecord,
    /// The content of the file, and since when it has that.
    pub(super) written: Option<(SaverRecord, Instant)>,
    pub(super) settling: SettleTracker,
    begin: Instant,
    /// Whether the job is being ended, or has ended: nothing is sealed before it has.
    is_ending: bool,
    /// When the job was found to have ended, and how.
    pub(super) ended: Option<(Instant, JobEnd)>,
    /// The files that the end of the job has left half written.
    pub(super) cut: WrittenFiles,
    /// The requested end before all is saved.
    pub(super) end_request: Option<SaverEnd>,
    /// The states in which units are sealed, and in which they can never be saved.
    pub(super) sealed: BTreeMap<String, SealedState>,
    pub(super) refused: BTreeMap<String, Digest>,
    /// The states in which units that were saved are being deleted.
    pub(super) remainders: BTreeMap<String, Digest>,
    /// The entries that were reported as left out.
    pub(super) skipped: BTreeSet<Vec<u8>>,
    /// Whether the last scan left content out.
    pub(super) is_partial: bool,
    /// When a failed unit or scan is retried, and its backoff.
    pub(super) retry: BTreeMap<String, (Instant, Backoff)>,
    /// The number of uploads of a unit in a row during which its job changed it.
    pub(super) changes: BTreeMap<String, u32>,
    /// Since when units are being written that were not sealed since, and whether that was reported.
    pub(super) unsealed: BTreeMap<String, (Instant, bool)>,
    /// The file of each unit of which was reported that the disk failed to write it.
    pub(super) unwritten_files: BTreeMap<String, EncodedPath>,
    /// The units of which content was found that is not saved, and how they were sealed.
    pub(super) unsaved: BTreeMap<String, Option<SealedState>>,
    /// The start of an hour, and the number of events in it of those that a job can cause at any rate.
    pub(super) hourly_notes: (Instant, u32),
    /// The sealed remainders of units that are torn.
    pub(super) survivors: Vec<SettledUnit>,
    ahead_files: AheadFiles,
    /// The duration of a scan.
    scan_duration: Duration,
}

/// An upload under way. Dropped, it is given up.
pub struct SaveTask {
    pub(super) unit: SettledUnit,
    pub(super) progress: Arc<MirrorProgress>,
    work: JoinHandle<Result<UploadOutcome>>,
}

impl Drop for SaveTask {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl SaveTask {
    /// Waits for its outcome.
    pub(super) async fn outcome(&mut self) -> Result<UploadOutcome> {
        (&mut self.work).await.map_err(join_error)?
    }
}

impl Saver {
    async fn run(mut self) -> Result<()> {
        let (mut upload, mut ahead): (Option<SaveTask>, Option<AheadTask>) = (None, None);
        loop {
            let under_way = upload.as_ref().map(|upload| upload.unit.name().to_owned());
            let scanned = self.scan(under_way.as_deref()).await;
            if self.end_request == Some(SaverEnd::Discard) {
                break;
            }
            match &scanned {
                Ok(seals) => {
                    let waiting = self.seal_settled(seals, under_way.as_deref()).await;
                    let next = self.next_ahead(seals);
                    ahead.take_if(|file| !seals.contains_key(file.unit()));
                    // A file of the unit that is to be saved is finished first: that finds it in the mirror.
                    let is_ahead =
                        |unit: &SettledUnit| ahead.as_ref().is_some_and(|file| file.unit() == unit.name());
                    match waiting {
                        Some(unit) if upload.is_none() && !is_ahead(&unit) => {
                            (upload, ahead) = (Some(self.begin(unit)), None);
                        }
                        None if upload.is_none() && ahead.is_none() => {
                            ahead = next.and_then(|part| AheadTask::begin(&self.context, part));
                        }
                        _ => {}
                    }
                }
                Err(error) => self.fail(&self.context.order.place.display().to_string(), error),
            }
            self.count_backlog(upload.as_ref());
            let is_hopeless = scanned.as_ref().is_err_and(|error| error.kind() == Kind::Invalid);
            if (scanned.is_ok() && upload.is_none() && self.is_all_saved())
                || self.should_give_up(is_hopeless)
            {
                break;
            }
            self.write().await;
            let pause = (self.scan_duration * SCAN_PAUSE_FACTOR).clamp(SCAN_INTERVAL, MAX_SCAN_PAUSE);
            let outcome = match (&mut upload, &mut ahead) {
                (None, None) => {
                    sleep(pause).await;
                    None
                }
                (None, Some(file)) => {
                    if let Ok(outcome) = timeout(pause, file.outcome()).await {
                        self.ahead_files.finish(file.path(), outcome, self.now());
                        ahead = None;
                    }
                    None
                }
                (Some(upload), _) => timeout(pause, upload.outcome()).await.ok(),
            };
            if let Some((outcome, upload)) = outcome.and_then(|outcome| Some((outcome, upload.take()?))) {
                self.finish(&upload.unit, outcome);
                // Not after the next seals: who goes on without it takes what is saved for unsaved.
                self.write().await;
            }
        }
        self.end().await
    }

    /// The time since the beginning.
    pub(super) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Scans the directory, and reports what is left out of it and what is gone.
    async fn scan(&mut self, under_way: Option<&str>) -> Result<Seals> {
        let (context, has_ended) = (Arc::clone(&self.context), self.ended.is_some());
        let begin = Instant::now();
        let scan = blocking(move || {
            // Checked before the scan: a scan after the end finds everything.
            let ended = if has_ended { None } else { context.order.job_end() };
            let cut = ended.map(|_| context.order.cut_files());
            let is_ending = has_ended || context.order.is_ending();
            let end_request = requested_end(&context.order.volume);
            Ok((ended, cut, is_ending, end_request, DirectoryScan::read(&context.directory)))
        });
        let (ended, cut, is_ending, end_request, found) = scan.await?;
        (self.is_ending, self.cut) = (is_ending, cut.unwrap_or_else(|| mem::take(&mut self.cut)));
        self.ended = self.ended.or(ended.map(|end| (Instant::now(), end)));
        if self.ended.is_some() && self.record.ended.is_none() {
            self.record.ended = Some(Utc::now());
            self.note_unknown_writers();
        }
        (self.end_request, self.scan_duration) = (end_request, begin.elapsed());
        let found = found?;
        let holds_units = found.seals.values().any(|seal| !seal.files.is_empty());
        self.skip_all(found.skipped, holds_units);
        self.settling.observe(&found.seals, &found.tracked, self.begin.elapsed());
        let gone = self.forget_deleted(under_way);
        if !gone.is_empty() {
            let context = Arc::clone(&self.context);
            let remove = move || {
                context.remove_seals(&gone);
                Ok(())
            };
            blocking(remove).await?;
        }
        Ok(found.seals)
    }

    /// The next file to upload ahead of its unit. None when the job has ended: then whole units follow at once.
    fn next_ahead(&mut self, seals: &Seals) -> Option<Seal> {
        let (saved, refused) = (&self.record.saved, &self.refused);
        let is_wanted = |(name, state): &(&String, &UnitState)| {
            let is_saved = saved.get(*name).is_some_and(|saved| saved.fingerprint == state.fingerprint);
            let is_left =
                [refused.get(*name), self.remainders.get(*name)].contains(&Some(&state.fingerprint));
            !is_saved && !is_left
        };
        let units = self.settling.units().iter().filter(is_wanted).map(|(name, _)| name.clone());
        let units: Vec<_> = if self.ended.is_some() { Vec::new() } else { units.collect() };
        self.ahead_files.next(seals, &units, self.begin.elapsed())
    }

    /// Seals what has settled, and returns the newest of what is to be saved.
    async fn seal_settled(&mut self, seals: &Seals, under_way: Option<&str>) -> Option<SettledUnit> {
        let (now, ended) = (self.now(), self.ended.is_some());
        let mut newest: Option<SettledUnit> = None;
        for (name, state) in self.settling.units().clone() {
            let complete = self.is_complete(&name, &state);
            let sealed = self.sealed_state(&name, &state);
            if complete && sealed.is_some_and(|sealed| !sealed.complete) {
                self.seal_complete(&name).await;
            }
            let saved = self.record.saved.get(&name).filter(|saved| saved.fingerprint == state.fingerprint);
            let (is_saved, is_up_to_date) =
                (saved.is_some(), saved.is_some_and(|saved| saved.complete || !complete));
            if is_up_to_date {
                continue;
            }
            if self.refused.get(&name) == Some(&state.fingerprint) || under_way == Some(&*name) {
                continue;
            }
            let (is_sealed, completed) = (sealed.is_some(), self.has_completed());
            let mut partial = !completed && sealed.is_some_and(|sealed| sealed.partial);
            if !is_saved && !is_sealed {
                match self.remainder_of(&name, state.fingerprint, seals).await {
                    Some(IntactUnit::Saved) => continue,
                    whole => partial = !completed && whole.is_some(),
                }
            }
            let complete = complete && !partial;
            if !is_saved {
                self.report_unsaved(&name, state.bytes, complete, sealed);
            }
            let Some(seal) = seals.get(&name).filter(|seal| !seal.files.is_empty()) else { continue };
            if !is_saved && self.leave_damaged(seal, &state, is_sealed).await {
                continue;
            }
            if !is_saved && !is_sealed && !ended {
                self.watch_unsealed(seal);
            }
            if self.retry.get(&name).is_some_and(|(at, _)| Instant::now() < *at) {
                continue;
            }
            let is_newest = newest.as_ref().is_none_or(|newest| newest.written < state.written);
            let is_next = is_newest && state.is_settled(now, ended);
            if is_next || (!is_saved && !is_sealed && state.is_quiet(now)) {
                let without_leases = state.is_without_leases();
                let UnitState { fingerprint, written, .. } = state;
                let seal = seal.clone();
                let whole = None;
                let unit =
                    SettledUnit { seal, fingerprint, complete, written, partial, whole, without_leases };
                let may_seal = ended || !self.is_ending;
                let is_ready = is_saved || is_sealed || (may_seal && self.seal(&unit).await);
                newest = if is_ready && is_next { Some(unit) } else { newest };
            }
        }
        newest
    }

    /// Seals one unit. False where it was not settled, or could not be sealed.
    async fn seal(&mut self, unit: &SettledUnit) -> bool {
        let name = unit.name().to_owned();
        if let Err(error) = self.context.id(&name) {
            self.refuse(unit, &error);
            return false;
        }
        match Arc::clone(&self.context).seal(unit.clone(), self.ended.is_none()).await {
            Ok(None) => {
                self.report_unsaved(&name, unit.seal.bytes(), unit.complete, Some(unit.sealed_state()));
                self.unsealed.remove(&name);
                self.record.written_to.remove(&name);
                self.sealed.insert(name, unit.sealed_state());
                true
            }
            outcome => {
                if matches!(outcome, Ok(Some(UploadOutcome::Busy))) {
                    self.record.written_to.insert(name.clone(), Fingerprint(unit.fingerprint));
                }
                self.sealed.remove(&name);
                let outcome = outcome.map(|busy| busy.unwrap_or(UploadOutcome::Busy));
                self.finish(unit, outcome);
                if !self.context.unwritten.lock().is_empty() {
                    // The next saver hears of it from nobody else.
                    self.write().await;
                }
                false
            }
        }
    }

    /// Begins to save a unit.
    pub(super) fn begin(&self, unit: SettledUnit) -> SaveTask {
        let progress = Arc::<MirrorProgress>::default();
        let work = Arc::clone(&self.context).upload(unit.clone(), Arc::clone(&progress));
        SaveTask { unit, progress, work: tokio::task::spawn_local(work) }
    }

    /// Whether the job has ended and nothing is left to be saved.
    fn is_all_saved(&mut self) -> bool {
        if self.ended.is_none() {
            return false;
        }
        let is_refused =
            |(name, state): &(&String, &UnitState)| self.refused.get(*name) == Some(&state.fingerprint);
        let is_saved = |(name, state): &(&String, &UnitState)| {
            let saved = self.record.saved.get(*name);
            let saved = saved.filter(|saved| saved.fingerprint == state.fingerprint);
            let is_remainder = self.remainders.get(*name) == Some(&state.fingerprint);
            is_remainder || saved.is_some_and(|saved| saved.complete || !self.is_complete(name, state))
        };
        let units = || self.settling.units().iter();
        let all = units().all(|unit| unit.1.files == 0 || is_saved(&unit) || is_refused(&unit));
        let given_up = self.is_partial || units().any(|unit| is_refused(&unit));
        self.record.report.given_up |= all && given_up;
        all
    }

    /// Whether saving ends here, with what it has come to.
    pub(super) fn should_give_up(&mut self, is_hopeless: bool) -> bool {
        let Some((at, _)) = self.ended else { return false };
        let is_asked = self.end_request == Some(SaverEnd::Keep);
        let give_up = self.context.order.give_up;
        // An earlier saver may have found the end.
        let since = self.record.ended.and_then(|ended| (Utc::now() - ended).to_std().ok());
        let is_over = since.is_some_and(|since| since >= give_up && at.elapsed() >= MIN_GIVE_UP_TIME);
        if !is_asked && !is_hopeless && !is_over && at.elapsed() < give_up {
            return false;
        }
        self.survivors.clear();
        self.record.report.given_up = true;
        self.record.note("saving is given up");
        true
    }
}
