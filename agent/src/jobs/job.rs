//! A job as the agent sees it: its request, its status, its permit, and its directory on the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use bdnfs::cache::directory::CacheDirectory;
use bdnfs::cache::eviction::VolumeClaim;
use bdnfs::error::Result;
use bdnfs::source::Uri;
use bdnfs::stage::Progress;
use chrono::{DateTime, Utc};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{RwLock, watch};

use super::event_file::{EventFile, EventWriter};
use super::record::JobRecord;
use super::stop_request::StopRequest;
use super::supervisor;
use crate::api::Failure;
use crate::api::job::{
    DeployReport, JobEvent, JobRequest, JobSource, JobState, JobStatus, SaveReport, event_count,
};
use crate::api::job_event::push_event;
use crate::context::Context;
use crate::deploy::{AdmissionPermit, AdmissionQueue};

/// The directory in a job's directory where its sources are mounted.
pub(super) const MOUNTS_DIRECTORY: &str = "mnt";

/// A job and what the agent knows of it.
#[derive(Debug)]
pub struct Job {
    id: u64,
    /// The request, with its secrets where they are still known.
    request: JobRequest,
    /// The request without its secrets.
    bare_request: JobRequest,
    directory: PathBuf,
    status: Mutex<JobStatus>,
    stop: watch::Sender<StopRequest>,
    /// The number of events that there were.
    events: watch::Sender<usize>,
    event_writer: Arc<EventWriter>,
    /// Whether the job was started by an earlier run of the agent: then a part of it is done.
    restored: bool,
    /// The reason why its record can't be read, if it can't.
    damage: Option<Failure>,
    /// Held for reading while one of its sources is mounted.
    pub(super) mounting: Arc<RwLock<()>>,
    permit: Mutex<Option<AdmissionPermit>>,
    volume_claim: Mutex<Option<Arc<VolumeClaim>>>,
    /// The number of events of its saver that are events of the job.
    saver_events: AtomicU64,
    /// Whether this run of the agent has made its volume.
    volume_created: AtomicBool,
    /// Held while its record is written, so that none replaces a newer one.
    writing: Mutex<()>,
}

impl Job {
    /// A new job, with a directory in `jobs`. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Invalid`](bdnfs::error::Kind::Invalid) for a source that is none; [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn new(id: u64, request: JobRequest, jobs: &Path) -> Result<Self> {
        let (bare_request, _) = request.without_secrets()?;
        let sources = bare_request.weights.iter().map(|weights| {
            Ok(JobSource {
                // As it may be shown: a URL may be signed.
                source: weights.source.expose().parse::<Uri>()?.to_string(),
                mount_location: weights.mountpoint.clone(),
            })
        });
        let status = JobStatus::new(id, &request, sources.collect::<Result<_>>()?, now());
        let file = EventFile::new(&jobs.join(id.to_string()));
        let job = Self::from_parts(status, file, request, bare_request, jobs, false);
        job.remove_files();
        let jobs = CacheDirectory::open(jobs)?;
        let mountpoints = (0..job.request.weights.len()).map(|number| job.mountpoint(number));
        for directory in mountpoints.chain([job.directory.join(supervisor::ROOT_DIRECTORY)]) {
            let below = directory.strip_prefix(jobs.path()).unwrap_or(&directory);
            jobs.subdirectory(below).with_context(|| format!("cannot create {}", directory.display()))?;
        }
        Ok(job)
    }

    /// A job of an earlier run; an admitted one stays admitted. Of one whose record can't be read the `damage` says why, and
    /// `record` is what is known without it. Touches the local disk.
    pub fn restore(
        record: JobRecord,
        damage: Option<Failure>,
        jobs: &Path,
        admission: &Arc<AdmissionQueue>,
    ) -> Self {
        let stop = record.stop_request();
        let JobRecord { job: mut status, request, admitted, saver_events, .. } = record;
        let admitted = admitted && !status.state.is_last();
        let (file, events) = EventFile::read(&jobs.join(status.id.to_string()));
        status.events = events;
        let job = Self { damage, ..Self::from_parts(status, file, request.clone(), request, jobs, true) };
        job.saver_events.store(saver_events, Relaxed);
        job.stop.send_replace(stop);
        if admitted {
            job.set_permit(admission.readmit());
        }
        job
    }

    fn from_parts(
        status: JobStatus,
        event_file: EventFile,
        request: JobRequest,
        bare_request: JobRequest,
        jobs: &Path,
        restored: bool,
    ) -> Self {
        Self {
            id: status.id,
            directory: jobs.join(status.id.to_string()),
            request,
            bare_request,
            events: watch::Sender::new(event_count(&status.events)),
            event_writer: Arc::new(EventWriter::new(event_file)),
            status: Mutex::new(status),
            stop: watch::Sender::new(StopRequest::None),
            restored,
            damage: None,
            mounting: Arc::default(),
            permit: Mutex::default(),
            volume_claim: Mutex::default(),
            saver_events: AtomicU64::default(),
            volume_created: AtomicBool::default(),
            writing: Mutex::default(),
        }
    }

    /// The id of the job.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The name of the job's record.
    pub fn record_name(&self) -> String {
        self.id.to_string()
    }

    /// The request, with its secrets where they are still known.
    pub fn request(&self) -> &JobRequest {
        &self.request
    }

    /// The directory of the job.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The path where source `number` is mounted for the job.
    pub fn mountpoint(&self, number: usize) -> PathBuf {
        self.directory.join(MOUNTS_DIRECTORY).join(number.to_string())
    }

    /// Whether source `number` is read on demand: neither staged nor leased.
    pub fn is_lazy(&self, number: usize) -> bool {
        let weights = self.request.weights.get(number);
        weights.is_some_and(|weights| self.request.lazy.contains(&weights.mountpoint))
    }

    /// Whether the job was started by an earlier run of the agent.
    pub fn is_restored(&self) -> bool {
        self.restored
    }

    /// Returns the reason why its record can't be read, if it can't.
    pub fn damage(&self) -> Option<&Failure> {
        self.damage.as_ref()
    }

    /// The record of the job, as it is now.
    fn record(&self) -> JobRecord {
        let job = JobStatus { staging: None, ..self.status_with(0) };
        let (stop, request) = (self.stop_request(), self.bare_request.clone());
        JobRecord {
            job,
            request,
            stop: stop > StopRequest::None,
            stop_now: stop == StopRequest::Now,
            admitted: self.is_admitted(),
            saver_events: self.saver_events(),
        }
    }

    /// Writes the record of the job, as it is now, by `write`, after its events so far. Touches the local disk.
    pub fn write_record(&self, write: impl FnOnce(&JobRecord) -> Result<()>) -> Result<()> {
        self.event_writer.flush();
        let _writing = self.writing.lock();
        write(&self.record())
    }

    /// The status of the job, for clients.
    pub fn status(&self) -> JobStatus {
        self.status.lock().clone()
    }

    /// The status of the job with the last of its events, `events` of them at most.
    pub fn status_with(&self, events: usize) -> JobStatus {
        let mut status = self.status.lock();
        let all = std::mem::take(&mut status.events);
        let last = all[all.len().saturating_sub(events)..].to_vec();
        let copy = JobStatus { events: last, ..status.clone() };
        status.events = all;
        copy
    }

    /// The state of the job.
    pub fn state(&self) -> JobState {
        self.status.lock().state
    }

    /// Whether the job has ended.
    pub fn has_ended(&self) -> bool {
        self.state().is_last()
    }

    /// Whether its sources are being staged.
    pub fn is_staging(&self) -> bool {
        self.status.lock().staging.is_some()
    }

    /// Adds an event: what happened, in one line. It is written in the background.
    pub fn note(&self, text: impl Into<String>) {
        self.update(text, |_| ());
    }

    /// Changes the status, and adds an event, which is written in the background.
    pub fn update(&self, text: impl Into<String>, change: impl FnOnce(&mut JobStatus)) {
        let mut status = self.status.lock();
        change(&mut status);
        let event = JobEvent::new(now(), status.state, text.into());
        // Under the lock, so that the lines are in order.
        self.event_writer.add(event.clone());
        self.show(status, event);
    }

    /// Shows clients a `status` that has changed, with an event.
    fn show(&self, mut status: MutexGuard<'_, JobStatus>, event: JobEvent) {
        tracing::info!("job {}: {}: {}", self.id, event.state, event.text);
        push_event(&mut status.events, event);
        let events = event_count(&status.events);
        drop(status);
        self.events.send_replace(events);
    }

    /// Changes the status for the last time: first in the record, by `write`, then for clients. So clients see only what is
    /// durable.
    pub fn finish(
        &self,
        text: String,
        change: impl FnOnce(&mut JobStatus),
        write: impl FnOnce(&JobRecord) -> Result<()>,
    ) -> Result<()> {
        let _writing = self.writing.lock();
        let mut record = self.record();
        change(&mut record.job);
        let written = write(&record);
        let event = JobEvent::new(now(), record.job.state, text);
        self.event_writer.add(event.clone());
        self.event_writer.flush();
        let mut status = self.status.lock();
        *status = JobStatus { events: std::mem::take(&mut status.events), ..record.job };
        self.show(status, event);
        written
    }

    /// Sets the progress of its stage; `None` where it is not staging.
    pub fn set_staging(&self, progress: Option<Progress>) {
        self.status.lock().staging = progress;
    }

    /// Sets the report of its deployment.
    pub fn set_report(&self, report: DeployReport) {
        self.status.lock().report = Some(report);
    }

    /// Returns the number of events of its saver that are events of the job.
    pub fn saver_events(&self) -> u64 {
        self.saver_events.load(Relaxed)
    }

    /// Sets what became of its checkpoints, and how many events of its saver are events of the job.
    pub fn set_saving(&self, report: SaveReport, events: u64) {
        self.status.lock().saving = Some(report);
        self.saver_events.store(events, Relaxed);
    }

    /// Notes that it has made its volume.
    pub fn set_volume_created(&self) {
        self.volume_created.store(true, Relaxed);
    }

    /// Whether the volume of its id is its own, and not that of another job which has the id. Touches the local disk.
    pub fn has_volume(&self) -> bool {
        let is_known = !self.request.training.id().is_empty();
        is_known && (self.volume_created.load(Relaxed) || supervisor::read_info(&self.directory).is_some())
    }

    /// Whether its commands have ended.
    pub fn has_exited(&self) -> bool {
        let status = self.status.lock();
        status.exited.is_some() || status.state.is_last()
    }

    /// Asks the job to stop, with `now` without grace. True where such a stop was not requested before.
    pub fn stop(&self, now: bool) -> bool {
        let request = if now { StopRequest::Now } else { StopRequest::Graceful };
        self.stop.send_if_modified(|stop| {
            let is_new = *stop < request;
            *stop = request.max(*stop);
            is_new
        })
    }

    /// Waits until it is asked to stop, in this way or a harder one.
    pub async fn stop_requested(&self, request: StopRequest) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.stop.subscribe().wait_for(|stop| *stop >= request).await;
    }

    /// Whether a stop of the job was requested.
    pub fn is_stop_requested(&self) -> bool {
        self.stop_request() > StopRequest::None
    }

    /// Returns the last request to stop the job.
    pub fn stop_request(&self) -> StopRequest {
        *self.stop.borrow()
    }

    /// Waits until it has more than `seen` events, or has ended.
    pub async fn events_after(&self, seen: usize) {
        let _ = self.events.subscribe().wait_for(|events| *events > seen || self.has_ended()).await;
    }

    /// Waits until the job has ended, or only its checkpoints are still being saved.
    pub async fn ended_but_for_saving(&self) {
        let is_over = || self.has_ended() || (self.request.checkpoints.is_some() && self.has_exited());
        let _ = self.events.subscribe().wait_for(|_| is_over()).await;
    }

    /// Marks the job as admitted.
    pub fn set_permit(&self, permit: AdmissionPermit) {
        *self.permit.lock() = Some(permit);
    }

    /// Whether the job is admitted.
    pub fn is_admitted(&self) -> bool {
        self.permit.lock().is_some()
    }

    /// Gives the job's permit back. Call it when its mounts are gone.
    pub fn drop_permit(&self) {
        let permit = self.permit.lock().take();
        drop(permit);
    }

    /// The claim of its volume to space; where it has none, the one that `claim` makes.
    pub fn volume_claim(&self, claim: impl FnOnce() -> Result<Arc<VolumeClaim>>) -> Result<Arc<VolumeClaim>> {
        let mut held = self.volume_claim.lock();
        let claimed = held.take().map_or_else(claim, Ok)?;
        Ok(Arc::clone(held.insert(claimed)))
    }

    /// Gives the space back that its volume has claimed and does not occupy.
    pub fn drop_volume_claim(&self) {
        self.volume_claim.lock().take();
    }
}

/// The current time.
pub fn now() -> DateTime<Utc> {
    SystemTime::now().into()
}
