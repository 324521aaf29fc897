//! The job queue: the table of all jobs, and what is done with them.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bdnfs::cache::directory::CacheDirectory;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::task::blocking;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::earlier_jobs::EarlierJobs;
use super::job::Job;
use super::job_run::JobRun;
use super::job_services::JobServices;
use super::record::JobRecord;
use super::supervisor::log;
use super::{validation, volume_limits};
use crate::api::container_volume::ContainerVolumeStatus;
use crate::api::job::{JobRequest, JobStatus, LogChunk, event_count};
use crate::api::saving::UnsavedDirectory;
use crate::api::{ApiResult, Failure};
use crate::context::Context;
use crate::deploy::{AdmissionQueue, MirrorQueue};
use crate::lifecycle::Lifecycle;
use crate::mounts::{MountManager, MountPurpose};
use crate::random;
use crate::records::Records;
use crate::saver::{self, SaverEnd};
use crate::signals::Shutdown;
use crate::telemetry::scrape::SavingScrape;
use crate::volumes::{Volumes, flock_probe};

/// Subdirectory of the cache with one directory for each job.
const JOB_RECORDS_DIRECTORY: &str = "jobs";
/// The number of ended jobs that are kept.
const ENDED_JOBS_KEPT: usize = 200;
/// The time for which the status of a job is held back for another event.
const STATUS_POLL_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay of an answer from which events are left out.
const LEFT_OUT_PAUSE: Duration = Duration::from_millis(200);
/// The time that a status request waits while a job is staged, whose progress changes all the time, and while a log is followed.
const PROGRESS_POLL_TIMEOUT: Duration = Duration::from_millis(200);
/// The interval at which a log is read meanwhile.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The number of bytes of a log that are sent at once.
const LOG_CHUNK_BYTES: usize = 1 << 20;

/// All jobs of one agent.
#[derive(Debug)]
pub struct JobQueue {
    /// The directory of all jobs, with one for each.
    directory: PathBuf,
    table: Mutex<JobTable>,
    services: Arc<JobServices>,
}

#[derive(Debug, Default)]
struct JobTable {
    jobs: BTreeMap<u64, Arc<Job>>,
    /// The highest id of a job so far.
    last: u64,
    /// Whether [`end_all`](JobQueue::end_all) has begun: no job is accepted that it would miss.
    ending: bool,
}

impl JobQueue {
    /// The jobs of the cache, whose lock the caller holds. Those of an earlier run stand still until they are
    /// [resumed](Self::resume). What they read is verified again where it was not within `scrub_interval`. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn open(
        mounts: Arc<MountManager>,
        lifecycle: Arc<Lifecycle>,
        mirrors: Arc<MirrorQueue>,
        admission: Arc<AdmissionQueue>,
        volumes: Arc<Volumes>,
        scrub_interval: Duration,
    ) -> Result<Self> {
        let cache = &mounts.mounter().cache;
        let (directory, records) =
            (cache.join(JOB_RECORDS_DIRECTORY), Records::<JobRecord>::open(cache, "jobs")?);
        let made = CacheDirectory::open(cache)?.subdirectory(JOB_RECORDS_DIRECTORY);
        made.with_context(|| format!("cannot create {}", directory.display()))?;
        let EarlierJobs { jobs, last } = EarlierJobs::read(&records, &directory)?;
        let restore = |(record, damage)| Arc::new(Job::restore(record, damage, &directory, &admission));
        let jobs = jobs.into_iter().map(|(id, earlier)| (id, restore(earlier))).collect();
        let table = Mutex::new(JobTable { jobs, last, ending: false });
        let services =
            JobServices { records, mounts, lifecycle, mirrors, admission, volumes, scrub_interval };
        Ok(Self { directory, table, services: Arc::new(services) })
    }

    /// The purpose of the mount at `mountpoint`.
    pub fn purpose_of(&self, mountpoint: &Path) -> MountPurpose {
        let Ok(below) = mountpoint.strip_prefix(&self.directory) else { return MountPurpose::Client };
        let id = below.iter().next().and_then(|id| id.to_str()?.parse().ok());
        let number = below.file_name().and_then(|number| number.to_str()?.parse().ok());
        let job = id.and_then(|id: u64| self.table.lock().jobs.get(&id).cloned());
        let Some(job) = job.filter(|job| !job.has_ended()) else { return MountPurpose::Ended };
        let admitted = job.is_admitted() && !number.is_some_and(|number| job.is_lazy(number));
        MountPurpose::Deployment { admitted }
    }

    /// Accepts a job, and starts to run it.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for one that can never run; [`Kind::NotFound`] for a secret that is nowhere, and a checkpoint to resume
    /// from.
    pub async fn submit(self: &Arc<Self>, mut request: JobRequest) -> ApiResult<JobStatus> {
        // Ids and mounts of restored jobs go first.
        self.services.lifecycle.ready().await;
        let alive = self.services.lifecycle.begin()?;
        self.services.load_checkpoints(&mut request).await?;
        let (queue, runtime) = (Arc::clone(self), Handle::current());
        // It is run from there: where the client goes away, nothing comes back here, and the job is accepted all the same.
        let accept = move || {
            let Some(job) = queue.accept(request)? else { return Ok(None) };
            let status = job.status();
            runtime.spawn(JobRun::new(Arc::clone(&queue.services), job).run(alive));
            Ok(Some(status))
        };
        blocking(accept).await?.ok_or_else(Failure::closing)
    }

    /// Takes a job into the table, and writes its record; `None` where the agent is ending. Touches the local disk.
    fn accept(&self, mut request: JobRequest) -> Result<Option<Arc<Job>>> {
        let (services, stores) = (&self.services, self.services.secret_stores(&request));
        validation::check(&request, services.mounts.mounter(), &services.volumes, &stores)?;
        request.training.choose_id(random::bytes()?);
        let id = {
            let mut table = self.table.lock();
            table.last += 1;
            table.last
        };
        let job = Arc::new(Job::new(id, request, &self.directory)?);
        for note in &job.request().notes {
            job.note(note.as_str());
        }
        let (request, training) = (job.request(), &job.request().training);
        let uses_project = request.checkpoints.is_some() || request.load.is_some() || request.cache.is_some();
        if uses_project && training.project.is_none() {
            let project = training.project();
            job.note(format!(
                "the job names no project: its checkpoints and its cache are those of {project}"
            ));
        }
        self.services.write_record(&job)?;
        let is_accepted = {
            let mut table = self.table.lock();
            if !table.ending {
                table.jobs.insert(id, Arc::clone(&job));
            }
            !table.ending
        };
        if !is_accepted {
            self.remove_from_disk(&job);
            return Ok(None);
        }
        self.remove_oldest();
        Ok(Some(job))
    }

    /// The volumes of the node.
    pub fn volumes(&self) -> &Volumes {
        &self.services.volumes
    }

    /// The status of a job, as soon as it has more than the `seen` events, or after a moment.
    pub async fn status(&self, id: u64, seen: Option<usize>) -> ApiResult<JobStatus> {
        let job = self.find(id)?;
        let Some(seen) = seen else { return Ok(job.status()) };
        let timeout = if job.is_staging() { PROGRESS_POLL_TIMEOUT } else { STATUS_POLL_TIMEOUT };
        tokio::select! {
            () = job.events_after(seen) => {}
            () = tokio::time::sleep(timeout) => {}
            () = self.services.lifecycle.await_closing() => return Err(Failure::closing()),
        }
        let status = job.status();
        if event_count(&status.events) > status.events.len() {
            // A client that does not count those that are left out asks again at once.
            tokio::time::sleep(LEFT_OUT_PAUSE).await;
        }
        Ok(status)
    }

    /// The status of all jobs, each with the last of its events.
    pub fn list(&self) -> Vec<JobStatus> {
        self.all().iter().map(|job| job.status_with(1)).collect()
    }

    /// The state of the checkpoints of all jobs that have not ended, for metrics.
    pub fn savings(&self) -> Vec<SavingScrape> {
        let jobs = self.all().into_iter().map(|job| job.status_with(0)).filter(|job| !job.state.is_last());
        let saving = jobs.filter_map(|job| {
            let began = job.started.unwrap_or(job.created).timestamp() as f64;
            let (id, project) = (job.training.id().to_owned(), job.training.project().to_owned());
            Some(SavingScrape { id, project, began, report: job.saving? })
        });
        saving.collect()
    }

    /// Stops a job, with `now` without grace. It returns at once; the job ends when its processes have, and what they wrote is
    /// saved. With `discard` that is dropped. Where the processes have ended, `now` leaves what is not saved in its directory.
    pub async fn stop(self: &Arc<Self>, id: u64, now: bool, discard: bool) -> ApiResult<JobStatus> {
        let job = self.find(id)?;
        let is_saving = job.has_exited() && !job.has_ended();
        let end = match () {
            () if discard => Some(SaverEnd::Discard),
            () if now && is_saving => Some(SaverEnd::Keep),
            () => None,
        };
        if is_saving && end.is_none() {
            job.note("its commands have ended, and its checkpoints are being saved; stop it with --now to leave that");
        } else {
            if job.stop(now) {
                // Written with the record, before who asked is answered: the next agent may find that the job has ended.
                job.note(if now { "it is asked to stop at once" } else { "it is asked to stop" });
            }
            // In any case: the record of a stop that was requested before may not have been written.
            let (services, job) = (Arc::clone(&self.services), Arc::clone(&job));
            blocking(move || services.write_record(&job)).await?;
        }
        // After the stop is recorded: a job that goes on must not lose what it writes.
        if let Some(end) = end
            && job.request().checkpoints.is_some()
            && !job.has_ended()
        {
            let (job, volume) = (Arc::clone(&job), self.services.volume_of(&job));
            // Before the job runs there is no volume, and nothing to drop; another job of its id may have one.
            let request = move || {
                let is_own = job.has_volume() && volume.path().exists();
                if is_own { saver::request_end(volume.path(), end) } else { Ok(()) }
            };
            blocking(request).await?;
        }
        Ok(job.status())
    }

    /// A chunk of a job's log, from byte `from` on. With `wait` it is held back for a moment where there is none yet.
    pub async fn log(&self, id: u64, from: u64, wait: bool) -> ApiResult<LogChunk> {
        let job = self.find(id)?;
        let deadline = Instant::now() + PROGRESS_POLL_TIMEOUT;
        loop {
            let (directory, ended) = (job.directory().to_owned(), job.has_ended());
            let read = blocking(move || {
                log::read(&directory, from, LOG_CHUNK_BYTES)
                    .map_err(|e| Error::disk(format!("cannot read the log of job {id}"), e))
            });
            let chunk = read.await?;
            if !chunk.bytes.is_empty() || !wait || ended || Instant::now() >= deadline {
                return Ok(chunk);
            }
            tokio::time::sleep(LOG_POLL_INTERVAL).await;
        }
    }

    /// Goes on with the jobs of an earlier run, once their mounts are restored. An agent that is not persistent ends them:
    /// the process that ran them was all that they had.
    pub fn resume(self: &Arc<Self>) {
        let unfinished: Vec<_> = self.all().into_iter().filter(|job| !job.has_ended()).collect();
        // Before anything else is admitted: they have that space, however long it takes until they go on.
        for job in unfinished.iter().filter(|job| job.is_admitted() && !job.has_exited()) {
            if let Err(error) = volume_limits::claim_again(&self.services, job) {
                tracing::warn!("cannot claim the space of job {}: {error}", job.id());
            }
        }
        let (needed, volumes) = (self.volumes_in_use(), Arc::clone(&self.services.volumes));
        tokio::task::spawn_blocking(move || volumes.remove_leftovers(&needed));
        if self.services.lifecycle.is_persistent() {
            tokio::spawn(flock_probe::watch(Arc::clone(&self.services.volumes)));
        }
        for job in unfinished.into_iter().filter(|job| job.is_restored()) {
            tokio::spawn(
                JobRun::new(Arc::clone(&self.services), job).run(self.services.lifecycle.keep_alive()),
            );
        }
    }

    /// Stops all jobs that can't go on without this agent, and waits for their end. A persistent agent that hands its mounts
    /// over leaves the jobs that read them to the next one, too, and so does one whose jobs of the last run are not restored:
    /// nobody ends those.
    pub async fn end_all(&self, how: Shutdown, is_restored: bool) {
        if self.services.lifecycle.is_persistent() && how == Shutdown::HandOver {
            return;
        }
        self.table.lock().ending = true;
        let jobs = if is_restored { self.all() } else { Vec::new() };
        for job in &jobs {
            job.stop(false);
        }
        for job in &jobs {
            job.ended_but_for_saving().await;
        }
    }

    fn all(&self) -> Vec<Arc<Job>> {
        self.table.lock().jobs.values().cloned().collect()
    }

    /// The volumes of jobs that have not ended.
    fn volumes_in_use(&self) -> HashSet<PathBuf> {
        let jobs = self.all().into_iter().filter(|job| !job.has_ended());
        jobs.map(|job| self.services.volume_of(&job).path().to_owned()).collect()
    }

    /// The directories with checkpoints that could not be saved, but for those of the jobs and the `containers` that are listed
    /// themselves. Touches the local disk.
    pub fn unsaved_directories(&self, containers: &[ContainerVolumeStatus]) -> Vec<UnsavedDirectory> {
        let in_use = self.volumes_in_use();
        let is_listed = |tenant: &str, id: &str| {
            containers.iter().any(|volume| volume.tenant == tenant && volume.id.as_deref() == Some(id))
        };
        let volumes = self.volumes().of_jobs().into_iter();
        let left = volumes
            .filter(|(tenant, volume)| !in_use.contains(volume.path()) && !is_listed(tenant, volume.id()));
        left.filter_map(|(tenant, volume)| saver::unsaved_directory(tenant, &volume)).collect()
    }

    fn find(&self, id: u64) -> ApiResult<Arc<Job>> {
        let missing = || Failure::new(Kind::NotFound, format!("no such job: {id}"));
        self.table.lock().jobs.get(&id).cloned().ok_or_else(missing)
    }

    /// Removes the oldest of the jobs that have ended, where there are too many. Touches the local disk.
    fn remove_oldest(&self) {
        let ended: Vec<_> = self.all().into_iter().filter(|job| job.has_ended()).collect();
        for job in ended.iter().take(ended.len().saturating_sub(ENDED_JOBS_KEPT)) {
            self.table.lock().jobs.remove(&job.id());
            self.remove_from_disk(job);
        }
    }

    /// Removes the record and the files of a job. Touches the local disk.
    fn remove_from_disk(&self, job: &Job) {
        if let Err(error) = job.remove(|| self.services.records.remove(&job.record_name())) {
            tracing::warn!("cannot remove the record of job {}: {error}", job.id());
        }
    }
}
