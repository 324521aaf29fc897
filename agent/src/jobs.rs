//! Jobs: each mirrors its sources, mounts and stages them, and runs its commands when all is local.
//!
//! A job is a task here, a directory in `<cache>/jobs` and a record in `<cache>/state/jobs`. Its commands run below a
//! supervisor of their own ([`supervisor`]), so they outlive this process: the next agent finds them by what lies in the
//! directory, and goes on where this one ended.

mod known;
mod launching;
mod life;
pub mod supervisor;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bdnfs::auth::load;
use bdnfs::error::Kind;
use parking_lot::{Mutex, MutexGuard};

use crate::api::Failure;
use crate::api::job::{JobRequest, JobStatus, LogChunk, Variable};
use crate::deploy::mirroring::Mirrors;
use crate::deploy::room::Room;
use crate::jobs::supervisor::log;
use crate::mounts::host::{Host, blocking};
use crate::records::Records;
use crate::signals::Shutdown;

pub use known::{KeptJob, Known};

/// How many jobs that have ended are remembered.
const REMEMBERED: usize = 200;
/// How long an answer is held back for something to happen.
const NEWS: Duration = Duration::from_secs(10);
/// The same while a job is deployed, whose figures change all the time.
const FIGURES: Duration = Duration::from_millis(200);
/// How much of a log is sent at once.
const LOG_PIECE: usize = 1 << 20;

/// All jobs of one daemon.
#[derive(Debug)]
pub struct Jobs {
    /// Where each has a directory.
    directory: PathBuf,
    records: Arc<Records<KeptJob>>,
    table: Mutex<Table>,
    room: Arc<Room>,
    pub(crate) mirrors: Mirrors,
}

/// Whom a mount was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// No job.
    Other,
    /// A job, which has its room in the cache or not.
    Job {
        /// Whether it does.
        has_room: bool,
    },
    /// A job that has ended, or is not known any more.
    Gone,
}

#[derive(Debug, Default)]
struct Table {
    jobs: BTreeMap<u64, Arc<Known>>,
    last: u64,
}

impl Jobs {
    /// Those of the cache in the directory `cache`, whose lock the caller holds. Those of an earlier time stand still before
    /// they are [resumed](Host::resume_jobs). Touches the local disk.
    pub fn open(cache: &Path) -> bdnfs::error::Result<Self> {
        let (directory, records) = (cache.join("jobs"), Records::<KeptJob>::open(cache, "jobs")?);
        let room = Arc::default();
        let again = |kept| Arc::new(Known::again(kept, &directory, &room));
        let again = records.all()?.into_iter().map(|(_, kept)| again(kept));
        let jobs: BTreeMap<_, _> = again.map(|job| (job.id(), job)).collect();
        let last = jobs.keys().last().copied().unwrap_or(0);
        Ok(Self {
            directory,
            records: Arc::new(records),
            table: Mutex::new(Table { jobs, last }),
            room,
            mirrors: Mirrors::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change under the lock is whole, so a panic elsewhere leaves it usable.
        self.table.lock()
    }

    /// The job that the mount at `place` was made for, and whether it is one of jobs at all.
    pub fn reader_of(&self, place: &Path) -> Reader {
        let Ok(below) = place.strip_prefix(&self.directory) else { return Reader::Other };
        let id = below.iter().next().and_then(|id| id.to_str()?.parse().ok());
        let job = id.and_then(|id: u64| self.table().jobs.get(&id).cloned());
        job.filter(|job| !job.has_ended())
            .map_or(Reader::Gone, |job| Reader::Job { has_room: job.has_room() })
    }

    fn all(&self) -> Vec<Arc<Known>> {
        self.table().jobs.values().cloned().collect()
    }
}

impl Host {
    /// Takes a job, and begins to run it.
    pub async fn submit(self: &Arc<Self>, request: JobRequest) -> Result<JobStatus, Failure> {
        // Numbers and mounts of what comes back go first.
        self.ready().await;
        let hold = self.hold_open()?;
        let host = Arc::clone(self);
        let job = blocking(move || {
            host.judge(&request)?;
            let jobs = host.jobs();
            let id = {
                let mut table = jobs.table();
                table.last += 1;
                table.last
            };
            let job = Arc::new(Known::new(id, request, &jobs.directory)?);
            jobs.records.put(&job.name(), &job.kept())?;
            jobs.table().jobs.insert(id, Arc::clone(&job));
            host.forget_jobs();
            Ok(job)
        })
        .await?;
        let told = job.told();
        tokio::spawn(Arc::clone(self).live(job, hold));
        Ok(told)
    }

    /// Refuses what can't ever run, before it is anything.
    fn judge(&self, request: &JobRequest) -> Result<(), Failure> {
        let invalid = |text: String| Err(Failure::new(Kind::Invalid, text));
        if request.start_commands.is_empty() {
            return invalid("the job has no start_commands, so there is nothing to run".to_owned());
        }
        let places = request.weights.iter().map(|weights| weights.mountpoint.as_path());
        if let Some(path) = places.chain([request.workdir.as_path()]).find(|path| !path.is_absolute()) {
            return invalid(format!("{} must be absolute", path.display()));
        }
        for (name, value) in &request.environment {
            if name.is_empty() || name.contains(['=', '\0']) {
                return invalid(format!("{name:?} can't be the name of a variable"));
            }
            match value {
                Variable::Text(text) if text.contains('\0') => {
                    return invalid(format!("the variable {name} holds a NUL"));
                }
                Variable::Text(_) => {}
                Variable::Secret { name: secret } => {
                    load::find_secret(&self.places_of_secrets(request), secret)
                        .map_err(|e| e.within(format!("the variable {name}")))?;
                }
            }
        }
        Ok(())
    }

    /// Where the secrets of a job's environment are looked for.
    fn places_of_secrets(&self, request: &JobRequest) -> Vec<bdnfs::source::SecretStore> {
        request.secrets.iter().chain(self.secrets()).cloned().collect()
    }

    /// A job, as soon as something has happened to it beside the `seen` events that are known, or after a moment.
    pub async fn job(&self, id: u64, seen: Option<usize>) -> Result<JobStatus, Failure> {
        let job = self.find_job(id)?;
        let Some(seen) = seen else { return Ok(job.told()) };
        let patience = if job.is_deploying() { FIGURES } else { NEWS };
        tokio::select! {
            () = job.news(seen) => {}
            () = tokio::time::sleep(patience) => {}
            () = self.closed() => return Err(Failure::closing()),
        }
        Ok(job.told())
    }

    /// All jobs, of their events only the last.
    pub fn jobs_told(&self) -> Vec<JobStatus> {
        let told = |job: &Arc<Known>| {
            let mut job = job.told();
            job.events.drain(..job.events.len().saturating_sub(1));
            job
        };
        self.jobs().all().iter().map(told).collect()
    }

    /// Stops a job, with `now` without grace. It returns at once; the job ends when its processes have.
    pub async fn stop_job(&self, id: u64, now: bool) -> Result<JobStatus, Failure> {
        let job = self.find_job(id)?;
        if job.stop(now) {
            let (records, job) = (Arc::clone(&self.jobs().records), Arc::clone(&job));
            blocking(move || Ok(records.put(&job.name(), &job.kept())?)).await?;
        }
        Ok(job.told())
    }

    /// A piece of what a job printed, from byte `from` on; where there is none yet, it may be waited for a moment.
    pub async fn log_of_job(&self, id: u64, from: u64, wait: bool) -> Result<LogChunk, Failure> {
        let job = self.find_job(id)?;
        let patience = tokio::time::Instant::now() + FIGURES;
        loop {
            let (directory, ended) = (job.directory().to_owned(), job.has_ended());
            let read = blocking(move || {
                log::read(&directory, from, LOG_PIECE)
                    .map_err(|e| Failure::new(Kind::Disk, format!("cannot read the log of job {id}: {e}")))
            });
            let piece = read.await?;
            if !piece.bytes.is_empty() || !wait || ended || tokio::time::Instant::now() >= patience {
                return Ok(piece);
            }
            tokio::time::sleep(FIGURES / 4).await;
        }
    }

    fn find_job(&self, id: u64) -> Result<Arc<Known>, Failure> {
        let missing = || Failure::new(Kind::NotFound, format!("there is no job {id}"));
        self.jobs().table().jobs.get(&id).cloned().ok_or_else(missing)
    }

    /// Forgets the oldest of those that have ended, where there are too many. Touches the local disk.
    fn forget_jobs(&self) {
        let jobs = self.jobs();
        let ended: Vec<_> = jobs.all().into_iter().filter(|job| job.has_ended()).collect();
        for job in ended.iter().take(ended.len().saturating_sub(REMEMBERED)) {
            jobs.table().jobs.remove(&job.id());
            if let Err(error) = jobs.records.remove(&job.name()) {
                tracing::warn!("job {} is remembered: {error}", job.id());
            }
            job.clear();
        }
    }

    /// Goes on with the jobs of an earlier time, once their mounts are back. A daemon that doesn't stay ends them: it was
    /// all that kept them.
    pub fn resume_jobs(self: &Arc<Self>) {
        for job in self.jobs().all().into_iter().filter(|job| job.again && !job.has_ended()) {
            tokio::spawn(Arc::clone(self).live(job, self.hold()));
        }
    }

    /// Waits until an agent is about to end, which leaves its jobs to the next one.
    async fn leaving(&self) {
        if !self.stays() {
            std::future::pending::<()>().await;
        }
        self.closed().await;
    }

    /// Stops all jobs that can't go on without this daemon, and waits for their end. An agent that leaves its mounts to the
    /// next one leaves it the jobs that read them, too.
    pub async fn end_jobs(&self, how: Shutdown) {
        if self.stays() && how == Shutdown::HandOver {
            return;
        }
        let jobs = self.jobs().all();
        for job in &jobs {
            job.stop(false);
        }
        for job in &jobs {
            job.end().await;
        }
    }
}
