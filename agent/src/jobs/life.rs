//! The life of a job: created, deploying, running, and one of three ends.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::auth::load;
use bdnfs::error::Kind;
use bdnfs::source::Secret;
use futures_util::future::try_join_all;
use tokio::process::ChildStdin;

use super::known::{Known, Stop, now, stopped};
use super::launching::{Watched, launch};
use crate::api::job::{JobExit, JobState, JobStatus, PhaseSeconds, Variable};
use crate::api::{Failure, MountRequest, Weights};
use crate::deploy::staging;
use crate::jobs::supervisor::{self, Order, Started};
use crate::mirror;
use crate::mounts::host::{Hold, Host, blocking};
use crate::mounts::hosted::Hosted;
use crate::text;

/// What a job's commands are found by, where nobody says.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long a supervisor that another process started may take until its commands run.
const LAUNCHING: Duration = Duration::from_secs(60);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A job that is deployed: what it holds while it runs.
struct Deployed {
    started: Started,
    _attached: Option<ChildStdin>,
}

impl Host {
    /// Carries a job to its end.
    pub(crate) async fn live(self: Arc<Self>, job: Arc<Known>, _hold: Hold) {
        let carried = tokio::select! {
            biased;
            carried = self.carry(&job) => carried,
            // An agent that ends leaves it to the next one.
            () = self.leaving() => return,
        };
        self.unmount_job(&job).await;
        job.leaves_room();
        let (state, exit, why) = outcome(&job, carried);
        let text = match (&why, state) {
            (Some(why), JobState::Failed) => format!("failed: {why}"),
            (_, JobState::Stopped) => "stopped".to_owned(),
            _ => "completed".to_owned(),
        };
        let (host, ended) = (Arc::clone(&self), Arc::clone(&job));
        let kept = blocking(move || {
            let end = |job: &mut JobStatus| {
                (job.state, job.ended, job.exit, job.why) = (state, Some(now()), exit, why);
                job.staging = None;
            };
            // The record first: whoever hears of the end finds it written down.
            ended.end_with(text, end, |kept| Ok(host.jobs().records.put(&ended.name(), kept)?))
        });
        if let Err(failure) = kept.await {
            tracing::error!("the end of job {} is not written down: {failure}", job.id());
        }
    }

    async fn carry(self: &Arc<Self>, job: &Arc<Known>) -> Result<JobExit, Failure> {
        if job.again {
            if let Some(started) = self.launched(job).await {
                if !job.has_room() {
                    job.takes_room(self.jobs().room.count());
                }
                return self.attend(job, &started).await;
            }
            if !self.stays() {
                return Err(orphaned());
            }
        }
        let deployed = tokio::select! {
            biased;
            () = job.stopped(Stop::Asked) => Err(stopped()),
            deployed = self.deploy(job) => deployed,
        }?;
        self.attend(job, &deployed.started).await
    }

    /// Mirrors, mounts, stages and launches it.
    async fn deploy(self: &Arc<Self>, job: &Arc<Known>) -> Result<Deployed, Failure> {
        let mut seconds = PhaseSeconds::default();
        let mut lap = Lap(Instant::now());
        let requests = self.requests(job)?;
        let what = (text::count(requests.len() as u64, "source"), job.request().start_commands.len());
        let what = format!("{} to read, {} to run", what.0, text::count(what.1 as u64, "command"));
        if job.state() == JobState::Created {
            self.enter(job, JobState::Created, what).await?;
            for request in &requests {
                self.mirror(job, request).await?;
            }
        }
        seconds.mirror = lap.seconds();
        let text = if job.again { "goes on with mounting and staging" } else { "mounts and stages" };
        self.enter(job, JobState::Deploying, text.to_owned()).await?;
        let mounts = try_join_all(requests.into_iter().map(|request| self.mounted(job, request))).await?;
        seconds.mount = lap.seconds();
        self.jobs().room.admit(job, &mounts).await?;
        self.keep_job(job).await?;
        seconds.room = lap.seconds();
        self.stage_all(job, &mounts).await?;
        seconds.stage = lap.seconds();
        let mut report = staging::report(job, mounts).await?;
        let (total, stage) = (report.total, seconds.stage);
        let (files, bytes) = (text::files(total.files), text::size(total.bytes));
        let text = format!("all local and verified: {files}, {bytes} in {stage:.1} s, {}", report.verdict);
        job.note(text, |job| job.staging = None);

        let (started, attached) = launch(&self.order(job).await?).await?;
        seconds.launch = lap.seconds();
        report.seconds = seconds;
        job.reports(report);
        Ok(Deployed { started, _attached: attached })
    }

    /// What is to be mounted for it.
    fn requests(&self, job: &Known) -> Result<Vec<MountRequest>, Failure> {
        let asked = job.request();
        let mirror = match &asked.mirror {
            _ if asked.direct => None,
            Some(mirror) => Some(mirror.clone()),
            // The daemon's own comes by itself.
            None if self.has_mirror() => None,
            None => Some(mirror::default_request(asked.tenant.as_deref().unwrap_or(self.tenant()))?),
        };
        let requests = asked.weights.iter().enumerate().map(|(number, weights)| MountRequest {
            weights: Weights { mountpoint: job.place(number), ..weights.clone() },
            tenant: asked.tenant.clone(),
            mirror: mirror.clone(),
            direct: asked.direct,
            // Commands may become somebody else.
            allow_other: rustix::process::geteuid().is_root(),
            uid: None,
            gid: None,
            cache_size: None,
        });
        Ok(requests.collect())
    }

    /// Mounts one of its sources, unless it is mounted already.
    async fn mounted(
        self: &Arc<Self>,
        job: &Arc<Known>,
        request: MountRequest,
    ) -> Result<Arc<Hosted>, Failure> {
        if let Some(there) = self.at(&request.weights.mountpoint) {
            return Ok(there);
        }
        let (host, guard) = (Arc::clone(self), Arc::clone(&job.mounting).read_owned().await);
        let source = request.weights.source.expose().parse::<bdnfs::source::Uri>()?;
        // A task of its own: whoever gives up the job waits for it, and takes down what it made.
        let mounted = tokio::spawn(async move {
            let mounted = host.mount(request).await;
            drop(guard);
            mounted
        });
        let failed = |e| Failure::new(Kind::Unavailable, format!("the daemon failed: {e}"));
        let within = |f: Failure| Failure { message: format!("cannot mount {source}: {f}"), ..f };
        let mounted = mounted.await.map_err(failed)?.map_err(within)?;
        for warning in &mounted.warnings {
            job.note(warning.clone(), |_| ());
        }
        self.find(mounted.id)
    }

    /// What its supervisor is told.
    async fn order(self: &Arc<Self>, job: &Arc<Known>) -> Result<Order, Failure> {
        let (host, job) = (Arc::clone(self), Arc::clone(job));
        blocking(move || {
            let request = job.request();
            let places = host.places_of_secrets(request);
            let mut environment = BTreeMap::from([("PATH".to_owned(), Secret::new(PATH))]);
            for (name, value) in &request.environment {
                let value = match value {
                    Variable::Text(text) => Secret::new(text.clone()),
                    Variable::Secret { name: secret } => load::find_secret(&places, secret)
                        .map_err(|e| e.within(format!("the variable {name}")))?,
                };
                environment.insert(name.clone(), value);
            }
            environment.insert("BDNFS_JOB".to_owned(), Secret::new(job.id().to_string()));
            let sources = request.weights.iter().enumerate();
            Ok(Order {
                directory: job.directory().to_owned(),
                jobs: job.directory().parent().unwrap_or(Path::new("/")).to_owned(),
                sources: sources
                    .map(|(number, weights)| (job.place(number), weights.mountpoint.clone()))
                    .collect(),
                commands: request.start_commands.clone(),
                environment,
                workdir: request.workdir.clone(),
                umask: request.umask,
                grace: request.grace,
                attached: request.attached,
            })
        })
        .await
    }

    /// Whoever supervises it since an earlier time, once that is known.
    async fn launched(&self, job: &Known) -> Option<Started> {
        let directory = job.directory();
        let patience = Instant::now() + LAUNCHING;
        loop {
            let supervised = supervisor::is_supervised(directory);
            if let Some(started) = supervisor::started(directory) {
                return Some(started);
            }
            if !supervised || Instant::now() > patience {
                return None;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Stays with a job that runs until its commands have ended.
    async fn attend(self: &Arc<Self>, job: &Arc<Known>, started: &Started) -> Result<JobExit, Failure> {
        let directory = job.directory();
        let watched = Watched::find(directory, started);
        if job.state() != JobState::Running {
            let text = format!("its commands run below process {}", started.pid);
            self.enter(job, JobState::Running, text).await?;
        }
        let orphan = job.again && !self.stays() && watched.is_some();
        if let Some(watched) = watched {
            if orphan {
                watched.tell(true);
            }
            let mut told = Stop::No;
            loop {
                tokio::select! {
                    () = watched.ended() => break,
                    () = job.stopped(Stop::Asked), if told < Stop::Asked => {
                        told = Stop::Asked;
                        job.note("its processes are asked to end", |_| ());
                        watched.tell(false);
                    }
                    () = job.stopped(Stop::Now), if told == Stop::Asked => {
                        told = Stop::Now;
                        watched.tell(true);
                    }
                }
            }
        }
        if orphan {
            return Err(orphaned());
        }
        let (ended, started) = (directory.to_owned(), started.clone());
        blocking(move || {
            supervisor::ended(&ended).ok_or_else(|| {
                supervisor::kill_rest(&started);
                Failure::new(Kind::Interrupted, "its supervisor was killed, and its processes with it")
            })
        })
        .await
    }

    /// Notes where it is now on its way, for good.
    async fn enter(self: &Arc<Self>, job: &Arc<Known>, state: JobState, text: String) -> Result<(), Failure> {
        let (host, job) = (Arc::clone(self), Arc::clone(job));
        blocking(move || {
            job.note(text, |job| {
                job.state = state;
                if state == JobState::Running {
                    job.started = Some(now());
                }
            });
            Ok(host.jobs().records.put(&job.name(), &job.kept())?)
        })
        .await
    }

    /// Writes its record.
    async fn keep_job(self: &Arc<Self>, job: &Arc<Known>) -> Result<(), Failure> {
        let (host, job) = (Arc::clone(self), Arc::clone(job));
        blocking(move || Ok(host.jobs().records.put(&job.name(), &job.kept())?)).await
    }

    /// Unmounts what was mounted for it.
    async fn unmount_job(self: &Arc<Self>, job: &Known) {
        // Those that are being made are made by then.
        let _all = job.mounting.write().await;
        for number in 0..job.request().weights.len() {
            let place = job.place(number);
            for id in self.ids_at(&place) {
                if self.unmount(id, false).await.is_err()
                    && let Err(failure) = self.unmount(id, true).await
                {
                    tracing::warn!("what job {} read is still mounted: {failure}", job.id());
                }
            }
            let removed = blocking(move || {
                // What is mounted there stays.
                let _ = std::fs::remove_dir(place);
                Ok(())
            });
            let _ = removed.await;
        }
    }
}

/// Why a job ended that had nobody but a process which is gone.
fn orphaned() -> Failure {
    Failure::new(Kind::Interrupted, "the process that ran it ended")
}

/// Measures one phase after the other.
struct Lap(Instant);

impl Lap {
    /// Seconds since the last call.
    fn seconds(&mut self) -> f64 {
        let now = Instant::now();
        std::mem::replace(&mut self.0, now).elapsed().as_secs_f64()
    }
}

/// What a job came to.
fn outcome(job: &Known, carried: Result<JobExit, Failure>) -> (JobState, Option<JobExit>, Option<Failure>) {
    let failed = |text: String| Some(Failure::new(Kind::Interrupted, text));
    match carried {
        // Before all others: what takes its leave in order, exiting with 0, has not done what it was there for.
        Ok(exit) if job.is_to_stop() => (JobState::Stopped, Some(exit), None),
        Ok(exit) if exit.code == Some(0) && exit.why.is_none() => (JobState::Completed, Some(exit), None),
        Err(_) if job.is_to_stop() => (JobState::Stopped, None, None),
        Ok(exit) => {
            let why = match (&exit.why, exit.code, exit.signal) {
                (Some(why), ..) => failed(why.clone()),
                (_, Some(code), _) => failed(format!("its command exited with {code}")),
                (_, _, Some(signal)) => failed(format!("its command was ended by signal {signal}")),
                _ => failed("its command ended in an unknown way".to_owned()),
            };
            (JobState::Failed, Some(exit), why)
        }
        Err(failure) => (JobState::Failed, None, Some(failure)),
    }
}
