//! A job that this daemon knows: what was asked for, what became of it, and what is kept of it on the disk.

use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bdnfs::error::Error;
use bdnfs::stage::Progress;
use chrono::{DateTime, Utc};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::{RwLock, watch};

use crate::api::Failure;
use crate::api::job::{DeployReport, JobEvent, JobRequest, JobSource, JobState, JobStatus};
use crate::deploy::room::{Admitted, Room};
use crate::jobs::supervisor;

/// The file in a job's directory with what happened, an event a line.
const EVENTS: &str = "events.jsonl";
/// The directory in it where its sources are mounted.
const MOUNTS: &str = "mnt";

/// The record of a job. It holds no secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptJob {
    /// The job, but for its events.
    pub job: JobStatus,
    /// What was asked for, without its secrets.
    pub request: JobRequest,
    /// Whether it is to stop.
    pub stop: bool,
    /// Whether it has its room in the cache: then all that is mounted for it is leased.
    #[serde(default)]
    pub admitted: bool,
}

/// How a job is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// It isn't.
    No,
    /// When its processes have ended, for which they have a while.
    Asked,
    /// At once.
    Now,
}

/// A job.
#[derive(Debug)]
pub struct Known {
    id: u64,
    /// What was asked for, with its secrets where they are known still.
    request: JobRequest,
    bare: JobRequest,
    directory: PathBuf,
    job: Mutex<JobStatus>,
    stop: watch::Sender<Stop>,
    /// How much has happened.
    happened: watch::Sender<usize>,
    /// Whether it is known from before: then some of its way lies behind it.
    pub(crate) again: bool,
    /// Held by whoever makes a mount for it.
    pub(crate) mounting: Arc<RwLock<()>>,
    /// Its room in the cache, once it has it.
    room: Mutex<Option<Admitted>>,
}

impl Known {
    /// A new job. Touches the local disk.
    pub fn new(id: u64, request: JobRequest, jobs: &Path) -> Result<Self, Error> {
        let (bare, _) = request.without_secrets()?;
        let reads = bare.weights.iter().map(|weights| {
            Ok(JobSource {
                // As it may be shown: a URL may be signed.
                source: weights.source.expose().parse::<bdnfs::source::Uri>()?.to_string(),
                mount_location: weights.mountpoint.clone(),
            })
        });
        let job = JobStatus {
            id,
            name: request.name.clone(),
            state: JobState::Created,
            created: now(),
            started: None,
            ended: None,
            exit: None,
            why: None,
            tenant: request.tenant.clone(),
            weights: reads.collect::<Result<_, Error>>()?,
            start_commands: request.start_commands.clone(),
            report: None,
            staging: None,
            events: Vec::new(),
        };
        let known = Self::of(job, request, bare, jobs, false);
        known.clear();
        let places = (0..known.request.weights.len()).map(|number| known.place(number));
        for directory in places.chain([known.directory.join(supervisor::SCRATCH)]) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
            made.map_err(|e| Error::disk(format!("cannot make {}", directory.display()), e))?;
        }
        Ok(known)
    }

    /// One of an earlier time; if it had its room, it has it still. Touches the local disk.
    pub fn again(kept: KeptJob, jobs: &Path, room: &Arc<Room>) -> Self {
        let KeptJob { mut job, request, stop, admitted } = kept;
        let admitted = admitted && !job.state.is_last();
        let events = fs::read_to_string(jobs.join(job.id.to_string()).join(EVENTS)).unwrap_or_default();
        // The last line may have been cut off.
        job.events = events.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let known = Self::of(job, request.clone(), request, jobs, true);
        known.stop.send_replace(if stop { Stop::Asked } else { Stop::No });
        if admitted {
            known.takes_room(room.count());
        }
        known
    }

    fn of(job: JobStatus, request: JobRequest, bare: JobRequest, jobs: &Path, again: bool) -> Self {
        Self {
            id: job.id,
            directory: jobs.join(job.id.to_string()),
            request,
            bare,
            happened: watch::Sender::new(job.events.len()),
            job: Mutex::new(job),
            stop: watch::Sender::new(Stop::No),
            again,
            mounting: Arc::default(),
            room: Mutex::default(),
        }
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The name of its record.
    pub fn name(&self) -> String {
        self.id.to_string()
    }

    /// What was asked for.
    pub fn request(&self) -> &JobRequest {
        &self.request
    }

    /// Its own directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where its source with this number is mounted.
    pub fn place(&self, number: usize) -> PathBuf {
        self.directory.join(MOUNTS).join(number.to_string())
    }

    /// What is to be kept of it.
    pub fn kept(&self) -> KeptJob {
        let job = JobStatus { events: Vec::new(), staging: None, ..self.told() };
        let stop = *self.stop.borrow() > Stop::No;
        KeptJob { job, request: self.bare.clone(), stop, admitted: self.has_room() }
    }

    /// What a client is told of it.
    pub fn told(&self) -> JobStatus {
        self.job().clone()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.job().state.is_last()
    }

    /// Whether figures of it change all the time.
    pub fn is_deploying(&self) -> bool {
        self.job().staging.is_some()
    }

    /// Where it is on its way.
    pub fn state(&self) -> JobState {
        self.job().state
    }

    /// Changes what is known of it, and notes in one line what happened. Touches the local disk.
    pub fn note(&self, text: impl Into<String>, change: impl FnOnce(&mut JobStatus)) {
        let mut job = self.job();
        change(&mut job);
        let event = JobEvent { at: now(), state: job.state, text: text.into() };
        tracing::info!("job {}: {}: {}", self.id, event.state, event.text);
        // In order, so under the lock: a line each.
        if let Err(error) = self.append(&event) {
            tracing::warn!("an event of job {} is not kept: {error}", self.id);
        }
        job.events.push(event);
        let happened = job.events.len();
        drop(job);
        self.happened.send_replace(happened);
    }

    /// Changes what is known of it for the last time: first by `keep`, which writes it down, then for all to see.
    pub fn end_with(
        &self,
        text: String,
        change: impl FnOnce(&mut JobStatus),
        keep: impl FnOnce(&KeptJob) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut ended = self.kept();
        change(&mut ended.job);
        let kept = keep(&ended);
        self.note(text, |job| *job = JobStatus { events: std::mem::take(&mut job.events), ..ended.job });
        kept
    }

    fn append(&self, event: &JobEvent) -> std::io::Result<()> {
        let mut file = File::options().append(true).create(true).open(self.directory.join(EVENTS))?;
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        file.write_all(&line)
    }

    /// Tells how far staging is.
    pub fn stages(&self, progress: Option<Progress>) {
        self.job().staging = progress;
    }

    /// Keeps what its deployment came to.
    pub fn reports(&self, report: DeployReport) {
        self.job().report = Some(report);
    }

    /// Has it stop. True where that is news.
    pub fn stop(&self, now: bool) -> bool {
        let how = if now { Stop::Now } else { Stop::Asked };
        self.stop.send_if_modified(|stop| {
            let news = *stop < how;
            *stop = how.max(*stop);
            news
        })
    }

    /// Waits until it is to stop, at least so.
    pub async fn stopped(&self, how: Stop) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.stop.subscribe().wait_for(|stop| *stop >= how).await;
    }

    /// Whether it is to stop.
    pub fn is_to_stop(&self) -> bool {
        *self.stop.borrow() > Stop::No
    }

    /// Waits until more than `seen` events have happened, or nothing will happen any more.
    pub async fn news(&self, seen: usize) {
        let _ = self.happened.subscribe().wait_for(|happened| *happened > seen || self.has_ended()).await;
    }

    /// Waits for its end.
    pub async fn end(&self) {
        let _ = self.happened.subscribe().wait_for(|_| self.has_ended()).await;
    }

    /// Gives it its room in the cache.
    pub fn takes_room(&self, room: Admitted) {
        *self.room() = Some(room);
    }

    /// Whether it has that.
    pub fn has_room(&self) -> bool {
        self.room().is_some()
    }

    /// Gives its room back: its mounts are gone.
    pub fn leaves_room(&self) {
        let left = self.room().take();
        drop(left);
    }

    fn room(&self) -> MutexGuard<'_, Option<Admitted>> {
        self.room.lock()
    }

    /// Removes what it has on the disk, but nothing that is mounted there.
    pub fn clear(&self) {
        let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
        for place in entries(&self.directory.join(MOUNTS)) {
            let _ = fs::remove_dir(place.path());
        }
        for entry in entries(&self.directory) {
            let path = entry.path();
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let _ = if is_directory { fs::remove_dir(path) } else { fs::remove_file(path) };
        }
        let _ = fs::remove_dir(&self.directory);
    }

    fn job(&self) -> MutexGuard<'_, JobStatus> {
        // Every change under the lock is whole, so a panic elsewhere leaves it usable.
        self.job.lock()
    }
}

/// What time it is.
pub fn now() -> DateTime<Utc> {
    SystemTime::now().into()
}

/// The failure of a job that was stopped: nobody is told of it.
pub fn stopped() -> Failure {
    Failure::new(bdnfs::error::Kind::Interrupted, "it was stopped")
}
