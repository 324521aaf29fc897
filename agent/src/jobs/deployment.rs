//! The deployment of a job: its sources are mirrored, mounted, admitted and staged; then its supervisor starts.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bdnfs::auth::load;
use bdnfs::error::Result;
use bdnfs::source::{Secret, Uri};
use bdnfs::task::{blocking, join_error};
use futures_util::future::try_join_all;
use tokio::process::ChildStdin;

use super::cache_updates;
use super::job_run::JobRun;
use super::job_space;
use super::job_volume;
use super::mount_requests::mount_requests;
use super::process::{IdleSupervisor, MountGuard};
use super::stop_request::{StopRequest, stopped};
use super::supervisor::{SupervisorInfo, SupervisorOrder, TMPFS_OVERLAY_BYTES};
use super::volume_limits;
use crate::api::job::{DeployReport, JobState, PhaseSeconds, Variable};
use crate::api::{ApiResult, Failure, MountRequest};
use crate::deploy::{self, await_count, lease_all, stage_all};
use crate::mounts::ManagedMount;
use crate::text;
use crate::volumes::SCRATCH_PLACE;

/// The search path of a job's commands, where its environment has none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A job whose commands run.
pub struct RunningCommands {
    /// The supervisor of the job.
    pub supervisor: SupervisorInfo,
    /// An attached job ends when this is dropped.
    pub _attached: Option<ChildStdin>,
    /// The sources of an attached job are unmounted when this is dropped, if they are not by then.
    pub _guard: Option<MountGuard>,
}

/// A job that can be launched: all that it reads is local.
struct PendingLaunch {
    report: DeployReport,
    idle: IdleSupervisor,
    guard: Option<MountGuard>,
    order: SupervisorOrder,
    begin: Instant,
    /// The homes of its caches, and the locks of its volumes, until the supervisor holds them.
    _held: [Vec<File>; 2],
}

/// Mirrors, mounts, admits, stages and launches a job, unless it is asked to stop before it is launched.
pub async fn deploy(run: &JobRun) -> ApiResult<RunningCommands> {
    let job = &run.job;
    // A supervisor that has its order runs the commands, whoever waits for that: from then on they are watched, and stopped.
    let pending = tokio::select! {
        biased;
        () = job.stop_requested(StopRequest::Graceful) => return Err(stopped()),
        pending = prepare_launch(run) => pending?,
    };
    let PendingLaunch { mut report, idle, guard, order, begin, _held } = pending;
    let (supervisor, attached) = idle.launch(&order).await?;
    for directory in &supervisor.covered {
        let (directory, most) = (directory.display(), text::size(TMPFS_OVERLAY_BYTES));
        job.note(format!(
            "new entries of {directory} are kept in memory, {most} at most, until the job ends; those that it has are the host's"
        ));
    }
    for place in &supervisor.hiding {
        let place = place.display();
        job.note(format!("{place}: the files that the cache has there are hidden as long as the job runs"));
    }
    report.seconds.launch = begin.elapsed().as_secs_f64();
    job.set_report(report);
    Ok(RunningCommands { supervisor, _attached: attached, _guard: guard })
}

/// Does all for a job that comes before its supervisor has its order.
async fn prepare_launch(run: &JobRun) -> ApiResult<PendingLaunch> {
    let job = &run.job;
    let mountpoints: Vec<_> = (0..job.request().weights.len()).map(|number| job.mountpoint(number)).collect();
    let ((report, caches), idle, guard) = if job.request().attached {
        // Before the first mount: an attached job ends with this process, however that ends.
        let mut idle = IdleSupervisor::start(job.directory()).await?;
        let guard = MountGuard::start(&mountpoints).await?;
        let report = tokio::select! {
            report = prepare(run) => report?,
            error = idle.await_end() => return Err(error.into()),
        };
        (report, idle, Some(guard))
    } else {
        let report = prepare(run).await?;
        (report, IdleSupervisor::start(job.directory()).await?, None)
    };
    let begin = Instant::now();
    let (order, volumes) = supervisor_order(run).await?;
    Ok(PendingLaunch { report, idle, guard, order, begin, _held: [caches, volumes] })
}

/// Mirrors, mounts, admits and stages a job.
///
/// The files keep the homes of its caches for it.
async fn prepare(run: &JobRun) -> ApiResult<(DeployReport, Vec<File>)> {
    let (services, job) = (&run.services, &run.job);
    let mut seconds = PhaseSeconds::default();
    let mut timer = PhaseTimer(Instant::now());
    let requests = mount_requests(services.mounts.mounter(), job.request(), |number| job.mountpoint(number))?;
    let (sources, commands) = (requests.len() as u64, job.request().start_commands.len() as u64);
    let (sources, commands) = (text::count(sources, "source"), text::count(commands, "command"));
    if job.state() == JobState::Created {
        run.enter(JobState::Created, format!("{sources} to read, {commands} to run")).await?;
        for request in &requests {
            let note = |text| job.note(text);
            services.mirrors.mirror_or_use_cached(services.mounts.mounter(), request, &note, &|_| ()).await?;
        }
    }
    seconds.mirror = timer.seconds();
    let text = if job.is_restored() { "goes on with mounting and staging" } else { "mounts and stages" };
    run.enter(JobState::Deploying, text.to_owned()).await?;
    let caches = cache_updates::begin(run).await?;
    let report = tokio::select! {
        report = mount_and_stage(run, requests, seconds, timer) => report?,
        never = cache_updates::announce_regularly(run) => match never {},
    };
    Ok((report, caches))
}

/// Mounts, admits and stages the sources of a job, for which it has these `requests`.
async fn mount_and_stage(
    run: &JobRun,
    requests: Vec<MountRequest>,
    mut seconds: PhaseSeconds,
    mut timer: PhaseTimer,
) -> ApiResult<DeployReport> {
    let (services, job) = (&run.services, &run.job);
    let mounts = try_join_all(requests.iter().cloned().map(|request| mount(run, request))).await?;
    seconds.mount = timer.seconds();
    let numbers = (0..mounts.len()).filter(|number| !job.is_lazy(*number));
    let shown = job.request().shown_sources()?;
    let place = |number: usize| shown[number].place.clone();
    let (staged, placed): (Vec<_>, Vec<_>) = numbers
        .map(|number| (Arc::clone(&mounts[number]), (Arc::clone(&mounts[number]), place(number))))
        .unzip();
    admit(run, &staged).await?;
    seconds.room = timer.seconds();
    stage_all(&services.mounts, &staged, |progress| job.set_staging(Some(progress))).await?;
    seconds.stage = timer.seconds();
    for (mount, request) in mounts.iter().zip(&requests) {
        repair_mirror(run, mount, request);
    }
    let mut report = deploy::report(placed).await?;
    let (total, stage) = (report.total, seconds.stage);
    let (files, bytes) = (text::files(total.files), text::size(total.bytes));
    let text = format!("all local and verified: {files}, {bytes} in {stage:.1} s, {}", report.verdict);
    job.update(text, |status| status.staging = None);
    report.seconds = seconds;
    Ok(report)
}

/// Mounts a source, unless it is mounted already.
async fn mount(run: &JobRun, request: MountRequest) -> ApiResult<Arc<ManagedMount>> {
    let (mounts, job) = (&run.services.mounts, &run.job);
    if let Some(mount) = mounts.at(&request.weights.mountpoint) {
        return Ok(mount);
    }
    let (manager, guard) = (Arc::clone(mounts), Arc::clone(&job.mounting).read_owned().await);
    let source = request.weights.source.expose().parse::<Uri>()?;
    // A task of its own: giving up the job waits for it, and unmounts what it mounted.
    let mounted = tokio::spawn(async move {
        let mounted = manager.mount(request).await;
        drop(guard);
        mounted
    });
    let within = |f: Failure| Failure { message: format!("cannot mount {source}: {f}"), ..f };
    let mounted = mounted.await.map_err(join_error)?.map_err(within)?;
    for warning in &mounted.warnings {
        job.note(warning.clone());
    }
    mounts.find(mounted.id)
}

/// Leases all sources of a job beside the space for its volume, as soon as they fit; at once where it was admitted in an earlier
/// run.
async fn admit(run: &JobRun, mounts: &[Arc<ManagedMount>]) -> ApiResult<()> {
    let snapshots: Vec<_> = mounts.iter().map(|mount| Arc::clone(mount.snapshot())).collect();
    let (services, job) = (Arc::clone(&run.services), Arc::clone(&run.job));
    let claim = {
        let (services, job) = (Arc::clone(&services), Arc::clone(&job));
        move || volume_limits::claim(&services, &job)
    };
    if job.is_admitted() {
        volume_limits::claim_again(&services, &job)?;
        lease_all(snapshots).await?;
    } else {
        let name = format!("job {}", job.id());
        let note = |text| job.note(text);
        await_count(|| services.mounts.mounter().engine.is_counted(), note).await;
        job_space::make_space_to_read(run, &snapshots).await?;
        job.set_permit(services.admission.admit(&name, &snapshots, claim, note).await?);
    }
    Ok(blocking(move || services.write_record(&job)).await?)
}

/// Says what was found damaged in the mirror while `mount` was staged, and mirrors it once more in the background: the job has
/// the right bytes.
fn repair_mirror(run: &JobRun, mount: &ManagedMount, request: &MountRequest) {
    let (damaged, faults): (Vec<_>, Vec<_>) = mount.snapshot().mirror_damage().into_iter().unzip();
    let Some(fault) = faults.into_iter().next() else { return };
    let (services, job) = (Arc::clone(&run.services), Arc::clone(&run.job));
    job.note(format!("the mirror is damaged, other tiers had the right bytes: {fault}"));
    let request = request.clone();
    tokio::spawn(async move {
        let mounter = services.mounts.mounter();
        let repair = async {
            let request = mounter.with_defaults(&request).await?;
            services.mirrors.repair(&request, &mounter.cache, &damaged, &|text| job.note(text)).await
        };
        if let Err(error) = repair.await {
            job.note(format!("cannot repair the mirror: {error}"));
        }
    });
}

/// The order for the supervisor of a job, and the locks that hold the job's volumes until it does.
async fn supervisor_order(run: &JobRun) -> Result<(SupervisorOrder, Vec<File>)> {
    let (services, job) = (Arc::clone(&run.services), Arc::clone(&run.job));
    let order = move || {
        let request = job.request();
        let stores = services.secret_stores(request);
        let mut environment = BTreeMap::from([("PATH".to_owned(), Secret::new(DEFAULT_PATH))]);
        for (name, value) in &request.environment {
            let value = match value {
                Variable::Text(text) => Secret::new(text.clone()),
                Variable::Secret { name: secret } => load::find_secret(&stores, secret)
                    .map_err(|e| e.context(format!("the variable {name}")))?,
            };
            environment.insert(name.clone(), value);
        }
        environment.insert("BDNFS_JOB".to_owned(), Secret::new(job.id().to_string()));
        environment.entry("TMPDIR".to_owned()).or_insert_with(|| Secret::new(SCRATCH_PLACE));
        environment.extend(job_volume::variables(&job));
        let (volume, locks) = job_volume::create(&services, &job)?;
        if let Some(hub) = request.hub_cache() {
            let hub = || Secret::new(hub.to_string_lossy().into_owned());
            environment.entry("HF_HUB_CACHE".to_owned()).or_insert_with(hub);
        }
        let sources = request.shown_sources()?.into_iter().enumerate();
        let order = SupervisorOrder {
            directory: job.directory().to_owned(),
            jobs: job.directory().parent().unwrap_or(Path::new("/")).to_owned(),
            sources: sources
                .map(|(number, shown)| (shown.within(&job.mountpoint(number)), shown.place))
                .collect(),
            volume,
            commands: request.start_commands.clone(),
            environment,
            workdir: request.workdir.clone(),
            umask: request.umask,
            grace: request.grace,
            attached: request.attached,
        };
        Ok((order, locks))
    };
    blocking(order).await
}

/// Measures one phase after the other.
struct PhaseTimer(Instant);

impl PhaseTimer {
    /// Seconds since the last call.
    fn seconds(&mut self) -> f64 {
        let now = Instant::now();
        std::mem::replace(&mut self.0, now).elapsed().as_secs_f64()
    }
}
