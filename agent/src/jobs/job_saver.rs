//! The saver of a job, as the job sees it: started, started again, reported, and waited for.

use std::sync::Arc;

use bdnfs::error::{Kind, Result};
use bdnfs::task::{blocking, join_error};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::job_run::JobRun;
use super::job_volume::checkpoint_path;
use super::mount_requests::named_mirror;
use super::supervisor;
use crate::api::saving::SaveReport;
use crate::api::{ApiResult, Failure, MirrorRequest};
use crate::saver::{self, RECORD_POLL_INTERVAL, SaveOrder, SaverEnd, SaverRestarts};

/// The saver of a job that has one. Dropped, the saver goes on unwatched.
#[derive(Debug)]
pub struct JobSaver {
    run: JobRun,
    task: Option<JoinHandle<SaveReport>>,
}

impl Drop for JobSaver {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl JobSaver {
    /// Starts to watch the saver of a job, which has a volume.
    pub fn watch(run: &JobRun) -> Self {
        let has_saver = run.job.request().checkpoints.is_some();
        let task = has_saver.then(|| tokio::spawn(watch_saver(run.clone())));
        Self { run: run.clone(), task }
    }

    /// Waits until all that settled is saved, when the commands of the job have ended.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] where something could not be saved; it is kept, and the error says where.
    pub async fn finish(mut self) -> ApiResult<()> {
        let Some(task) = &mut self.task else { return Ok(()) };
        let report = task.await.map_err(join_error)?;
        let volume = self.run.services.volume_of(&self.run.job);
        let report =
            blocking(move || Ok(saver::confirm_saved(volume.path(), &volume.checkpoints(), report))).await?;
        self.run.job.set_saving(report.clone(), self.run.job.saver_events());
        if !report.has_unsaved() {
            return Ok(());
        }
        let why = report.why.map_or_else(String::new, |why| format!(": {why}"));
        let directory = report.directory.display();
        let text = format!("not all checkpoints could be saved{why}; they are kept in {directory}");
        let failure = Failure::new(Kind::Unavailable, text);
        self.run.job.note(failure.message.clone());
        Err(failure)
    }
}

/// Keeps the saver of a job alive until it has finished, and its report in the job's status.
async fn watch_saver(run: JobRun) -> SaveReport {
    let (services, job) = (&run.services, &run.job);
    if let Some(report) = job.status_with(0).saving.filter(|report| report.finished && job.has_exited()) {
        return report;
    }
    let volume = services.volume_of(job).path().to_owned();
    let mut restarts = SaverRestarts::default();
    loop {
        let (path, directory) = (volume.clone(), job.directory().to_owned());
        let look = blocking(move || {
            // Read in this order: what a saver writes before its end is seen.
            let (runs, lives) = (supervisor::is_supervised(&directory), saver::has_saver(&path));
            Ok((runs, lives, saver::requested_end(&path), saver::read(&path).unwrap_or_default()))
        });
        let Ok((runs, lives, end, mut record)) = look.await else {
            sleep(RECORD_POLL_INTERVAL).await;
            continue;
        };
        if !lives && end.is_some() {
            (record.report.finished, record.report.given_up) = (true, end == Some(SaverEnd::Keep));
        }
        record.events_after(job.saver_events()).iter().for_each(|event| job.note(event.as_str()));
        // One that ended while the commands run was wrong about them.
        let is_over = !lives && record.report.finished && (end.is_some() || job.has_exited());
        let is_new = record.events > job.saver_events() || is_over;
        let report = record.report;
        job.set_saving(report.clone(), record.events.max(job.saver_events()));
        if is_new {
            let (services, job) = (Arc::clone(services), Arc::clone(job));
            // At worst its events are repeated after a crash.
            let _ = blocking(move || services.write_record(&job)).await;
        }
        if is_over {
            return report;
        }
        if lives || (report.finished && !runs) {
            // Until it has finished, or it is noted that the commands have ended.
            sleep(RECORD_POLL_INTERVAL).await;
            continue;
        }
        let (give_up, checkpoints) =
            (services.volumes.config().give_up, services.volume_of(job).checkpoints());
        if let Some(last) = restarts.final_report(job.status_with(0).exited, give_up, &report, checkpoints) {
            return last;
        }
        let own = run.clone();
        if let Some(text) = restarts.start(blocking(move || saver_order(&own))).await {
            job.note(text);
        }
    }
}

/// The mirror in which the checkpoints of a job are saved. Reads secrets.
///
/// # Errors
/// [`Kind::Unsupported`] where there is none; [`Kind::Refused`] for a secret that is nowhere.
pub fn mirror(run: &JobRun) -> Result<MirrorRequest> {
    let (request, mounter) = (run.job.request(), run.services.mounts.mounter());
    let mirror = mounter.mirror(named_mirror(mounter, request)?, request.tenant.as_deref())?;
    mirror.ok_or_else(saver::no_mirror)
}

/// The order for a job's saver. Reads secrets.
fn saver_order(run: &JobRun) -> Result<SaveOrder> {
    let (services, job) = (&run.services, &run.job);
    let (request, mirror) = (job.request(), mirror(run)?);
    let (volume, config) = (services.volume_of(job), services.volumes.config());
    let (job_lock, commands_lock, job_exit) = supervisor::lock_and_exit_files(job.directory());
    Ok(SaveOrder {
        volume: volume.path().to_owned(),
        directory: volume.checkpoints(),
        place: checkpoint_path(request).unwrap_or_default(),
        job_lock: Some(job_lock),
        commands_lock: Some(commands_lock),
        job_exit,
        project: request.training.project().to_owned(),
        id: request.training.id().to_owned(),
        rank: request.training.rank,
        mirror,
        seen_mirrors: services.volumes.directory().to_owned(),
        upload_rate: config.upload_rate,
        give_up: config.give_up,
        keep: request.checkpoints.as_ref().and_then(|checkpoints| checkpoints.keep),
    })
}
