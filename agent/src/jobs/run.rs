//! The run of a job: created, deploying, running, and one of three ends.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::error::{Error, Kind, Result};
use bdnfs::task::blocking;
use rustix::fs::FlockOperation;

use super::cache_updates;
use super::deployment::{self, RunningCommands};
use super::job::{Job, now};
use super::job_audit::JobAudit;
use super::job_run::JobRun;
use super::job_saver::{self, JobSaver};
use super::job_space;
use super::process::SupervisorProcess;
use super::stop_request::StopRequest;
use super::supervisor::{self, SupervisorInfo};
use super::volume_limits;
use crate::api::job::{JobExit, JobState, JobStatus};
use crate::api::{ApiResult, Failure, MirrorRequest};
use crate::context::Context;
use crate::deploy::{CheckpointCaching, SavedVolume};
use crate::lifecycle::KeepAlive;

/// The time that a supervisor that another process started may take until its commands run.
const COMMANDS_START_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval at which such a supervisor is checked.
const COMMANDS_START_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The end of a run.
struct RunEnd {
    /// The exit of the commands, or why there is none.
    exit: ApiResult<JobExit>,
    /// The reason why checkpoints are only on this node, if some are.
    unsaved: Option<Failure>,
}

impl From<ApiResult<JobExit>> for RunEnd {
    fn from(exit: ApiResult<JobExit>) -> Self {
        Self { exit, unsaved: None }
    }
}

impl JobRun {
    /// Runs the job to its end. A persistent agent that is about to end leaves it to the next one.
    pub async fn run(self, _alive: KeepAlive) {
        let end = tokio::select! {
            biased;
            end = self.execute() => end,
            () = self.await_handover() => return,
        };
        self.unmount().await;
        self.retire_volume().await;
        self.job.drop_permit();
        let (state, exit, why) = outcome(&self.job, end);
        let text = match (&why, state) {
            (Some(why), JobState::Failed) => format!("failed: {why}"),
            (_, JobState::Stopped) => "stopped".to_owned(),
            _ => "completed".to_owned(),
        };
        let (services, job) = (Arc::clone(&self.services), Arc::clone(&self.job));
        let written = blocking(move || {
            let finish = |status: &mut JobStatus| {
                status.exit_code = Some(JobStatus::exit_code(state, exit.as_ref()));
                (status.state, status.ended, status.exit, status.why) = (state, Some(now()), exit, why);
                status.staging = None;
            };
            job.finish(text, finish, |record| services.put_record(&job, record))
        });
        if let Err(error) = written.await {
            tracing::error!("cannot write the end of job {}: {error}", self.job.id());
        }
    }

    /// Waits until a persistent agent leaves its jobs to the next one; never ends for another.
    async fn await_handover(&self) {
        if !self.services.lifecycle.is_persistent() {
            std::future::pending::<()>().await;
        }
        self.services.lifecycle.await_closing().await;
    }

    async fn execute(&self) -> RunEnd {
        let job = &self.job;
        if job.is_restored() {
            if let Some(supervisor) = self.find_supervisor().await {
                if !job.is_admitted() && !job.has_exited() {
                    job.set_permit(self.services.admission.readmit());
                }
                if let Some(damage) = job.damage() {
                    job.note(damage.message.as_str());
                }
                return self.supervise_and_save(&supervisor).await;
            }
            if let Some(damage) = job.damage() {
                return Err(damage.clone()).into();
            }
            if !self.services.lifecycle.is_persistent() {
                return Err(orphaned()).into();
            }
        }
        match deployment::deploy(self).await {
            Ok(RunningCommands { supervisor, _attached, _guard }) => {
                self.supervise_and_save(&supervisor).await
            }
            Err(failure) => {
                // Saving may take long: nobody is to wait for what the commands would have read.
                self.release().await;
                cache_updates::abandon(self).await;
                Err(failure).into()
            }
        }
    }

    /// Waits until the commands have ended, and until all is saved that they wrote.
    async fn supervise_and_save(&self, supervisor: &SupervisorInfo) -> RunEnd {
        let ended = async {
            // The supervisor's lock goes with the commands, and what they read is verified after them: until the scratch directory
            // is removed, no other job of this id may begin.
            let lock = self.lock_volume().await;
            let saver = JobSaver::watch(self);
            let exit = tokio::select! {
                exit = self.supervise(supervisor) => exit,
                never = cache_updates::save_regularly(self) => match never {},
            };
            self.save_rest(saver, exit, lock).await
        };
        tokio::select! {
            end = ended => end,
            never = job_space::keep_space(self) => match never {},
        }
    }

    /// Locks the job's volume, if it has one, shared.
    async fn lock_volume(&self) -> Option<File> {
        let (job, volume) = (Arc::clone(&self.job), self.services.volume_of(&self.job));
        let lock = move || {
            let locked = job.has_volume().then(|| volume.lock(FlockOperation::NonBlockingLockShared));
            locked.transpose().with_context(|| format!("cannot lock {}", volume.path().display()))
        };
        let locked = blocking(lock).await;
        locked.inspect_err(|error| tracing::warn!("job {}: {error}", self.job.id())).ok().flatten()
    }

    /// Saves what is left to save when the commands have ended. Only what they wrote is kept meanwhile: a mirror that is away for a
    /// day keeps no space from other jobs.
    async fn save_rest(&self, saver: JobSaver, exit: ApiResult<JobExit>, lock: Option<File>) -> RunEnd {
        if self.job.request().checkpoints.is_some() && !self.job.has_exited() {
            // What they wrote is saved even where the cache's disk takes no record.
            if let Err(error) = self.note_exit(exit.as_ref().ok().cloned()).await {
                tracing::warn!("cannot write that the commands of job {} have ended: {error}", self.job.id());
            }
        }
        self.release().await;
        drop(lock);
        // The caches do not wait until a mirror has taken the last checkpoint: other nodes wait for them.
        let (saved, ()) = tokio::join!(saver.finish(), cache_updates::save(self));
        RunEnd { exit, unsaved: saved.err() }
    }

    /// Gives back what only the commands needed: the sources, their leases, the space that was claimed, and the scratch directory.
    async fn release(&self) {
        self.unmount().await;
        self.job.drop_volume_claim();
        self.job.drop_permit();
        let (job, volume) = (Arc::clone(&self.job), self.services.volume_of(&self.job));
        let removed = blocking(move || {
            // Of one without a record it is only known by name: another job may have it, and then it is locked when it is retired.
            if job.has_volume() && job.damage().is_none() {
                volume.remove_scratch();
            }
            Ok(())
        });
        let _ = removed.await;
    }

    /// Notes that the commands have ended, for good.
    async fn note_exit(&self, exit: Option<JobExit>) -> Result<()> {
        let (services, job) = (Arc::clone(&self.services), Arc::clone(&self.job));
        let note = move || {
            job.update("its commands have ended; what is left of its checkpoints is saved", |status| {
                (status.exited, status.exit) = (Some(now()), exit);
            });
            services.write_record(&job)
        };
        blocking(note).await
    }

    /// The supervisor that an earlier agent started, once its commands run.
    async fn find_supervisor(&self) -> Option<SupervisorInfo> {
        let directory = self.job.directory();
        let deadline = Instant::now() + COMMANDS_START_TIMEOUT;
        loop {
            let lives = supervisor::is_supervised(directory);
            if let Some(supervisor) = supervisor::read_info(directory) {
                return Some(supervisor);
            }
            if !lives || Instant::now() > deadline {
                return None;
            }
            tokio::time::sleep(COMMANDS_START_POLL_INTERVAL).await;
        }
    }

    /// Waits until the commands have ended, and passes stop requests on to their supervisor.
    /// Meanwhile what they read is verified, where it was not recently; that is over when this returns, unless the job is stopped.
    async fn supervise(&self, supervisor: &SupervisorInfo) -> ApiResult<JobExit> {
        let job = &self.job;
        // Its commands run, so nothing that they need is given back where it can't start.
        let audit = JobAudit::start(self);
        let audit = audit.inspect_err(|error| tracing::warn!("job {}: {error}", job.id())).ok();
        let process = SupervisorProcess::find_with_retry(job.directory(), supervisor).await;
        if job.state() != JobState::Running {
            let text = format!("its commands run below process {}", supervisor.pid);
            // They run whether or not that can be written down: they are not let go of.
            if let Err(error) = self.enter(JobState::Running, text).await {
                tracing::warn!("cannot write that the commands of job {} run: {error}", job.id());
            }
        }
        let is_orphan = job.is_restored() && !self.services.lifecycle.is_persistent() && process.is_some();
        if let Some(process) = process {
            if is_orphan {
                process.stop(true);
            }
            let mut passed_on = StopRequest::None;
            let mut overrun = None;
            let growing = volume_limits::await_overrun(&self.services, job);
            tokio::pin!(growing);
            loop {
                tokio::select! {
                    () = process.await_end() => break,
                    failure = &mut growing, if overrun.is_none() => {
                        job.note("a volume is larger than it may be: its processes are killed");
                        overrun = Some(failure);
                        process.stop(true);
                    }
                    () = job.stop_requested(StopRequest::Graceful), if passed_on < StopRequest::Graceful => {
                        passed_on = StopRequest::Graceful;
                        job.note("its processes are asked to end");
                        process.stop(false);
                    }
                    () = job.stop_requested(StopRequest::Now), if passed_on == StopRequest::Graceful => {
                        passed_on = StopRequest::Now;
                        process.stop(true);
                    }
                }
            }
            if let Some(failure) = overrun {
                return Err(failure);
            }
        }
        if is_orphan {
            return Err(orphaned());
        }
        let (directory, supervisor) = (job.directory().to_owned(), supervisor.clone());
        let exit = blocking(move || {
            supervisor::read_exit(&directory).ok_or_else(|| {
                supervisor::kill_rest(&supervisor);
                Error::new(Kind::Interrupted, "its supervisor was killed, and its processes with it")
            })
        });
        let exit = exit.await?;
        if let Some(audit) = audit.filter(|_| !job.is_stop_requested()) {
            tokio::select! {
                () = audit.finish(job) => {}
                () = job.stop_requested(StopRequest::Graceful) => {}
            }
        }
        Ok(exit)
    }

    /// Releases the job's volume, if it has one: a job that was refused because of its id must not touch that of the other. What
    /// was saved of it stays in the cache.
    async fn retire_volume(&self) {
        let (job, volume) = (Arc::clone(&self.job), self.services.volume_of(&self.job));
        job.drop_volume_claim();
        let is_saved = job.status_with(0).saving.is_some_and(|saving| !saving.has_unsaved());
        let run = self.clone();
        let retired = blocking(move || {
            let mirror = if is_saved && job.has_volume() { job_saver::mirror(&run).ok() } else { None };
            match mirror {
                Some(mirror) => Ok(SavedVolume::retire(volume).map(|saved| (saved, mirror))),
                None => {
                    if job.has_volume() {
                        volume.retire(is_saved);
                    }
                    Ok(None)
                }
            }
        });
        if let Ok(Some((saved, mirror))) = retired.await {
            self.checkpoint_caching(mirror).add(saved).await;
        }
    }

    /// The copying of the job's checkpoints, which `mirror` has, into the cache.
    fn checkpoint_caching(&self, mirror: MirrorRequest) -> CheckpointCaching {
        let (services, job, training) = (&self.services, Arc::clone(&self.job), &self.job.request().training);
        CheckpointCaching {
            mounts: Arc::clone(&services.mounts),
            admission: Arc::clone(&services.admission),
            tenant: services.tenant_of(&self.job).to_owned(),
            project: training.project().to_owned(),
            id: training.id().to_owned(),
            rank: training.rank,
            mirror,
            rate: services.volumes.config().upload_rate,
            note: Box::new(move |text| {
                if !job.has_ended() {
                    job.note(text);
                }
            }),
        }
    }

    /// Unmounts its sources.
    async fn unmount(&self) {
        let (job, mounts) = (&self.job, &self.services.mounts);
        // Mounts that are being made are complete by then.
        let _all = job.mounting.write().await;
        for number in 0..job.request().weights.len() {
            let mountpoint = job.mountpoint(number);
            for id in mounts.ids_at(&mountpoint) {
                if mounts.unmount(id, false).await.is_err()
                    && let Err(failure) = mounts.unmount(id, true).await
                {
                    tracing::warn!("a source of job {} is still mounted: {failure}", job.id());
                }
            }
            let removed = blocking(move || {
                // A directory that is still a mount point stays.
                let _ = std::fs::remove_dir(mountpoint);
                Ok(())
            });
            let _ = removed.await;
        }
    }
}

/// Returns the failure of a job that depended on a process which is gone.
fn orphaned() -> Failure {
    Failure::new(Kind::Interrupted, "the process that ran it ended")
}

/// The last state of a job, and how it came to it.
fn outcome(job: &Job, RunEnd { exit, unsaved }: RunEnd) -> (JobState, Option<JobExit>, Option<Failure>) {
    let failed = |kind: &str, message| Some(Failure { kind: kind.to_owned(), message });
    match exit {
        // Who stops a job at once leaves them there; nobody else expects it.
        Ok(exit) if exit.is_success() && unsaved.is_some() && job.stop_request() < StopRequest::Now => {
            (JobState::Failed, Some(exit), unsaved)
        }
        // Checked first: commands that end with 0 because they are asked to have not completed.
        exit if job.is_stop_requested() => (JobState::Stopped, exit.ok(), unsaved),
        // Whether all was done that it asked for is not known.
        exit if job.damage().is_some() => (JobState::Failed, exit.ok(), job.damage().cloned()),
        Ok(exit) if exit.is_success() => (JobState::Completed, Some(exit), None),
        Ok(exit) => {
            let why = match (&exit.why, exit.code, exit.signal) {
                (Some(why), ..) => failed(Failure::COMMAND_NOT_STARTED, why.clone()),
                (_, _, Some(signal)) => {
                    failed(Failure::COMMAND_SIGNALED, format!("its command was ended by signal {signal}"))
                }
                (_, code, _) => {
                    let code = code.map_or_else(|| "no code".to_owned(), |code| code.to_string());
                    failed(Failure::COMMAND_EXITED, format!("its command exited with {code}"))
                }
            };
            (JobState::Failed, Some(exit), why)
        }
        Err(failure) => (JobState::Failed, None, Some(failure)),
    }
}
