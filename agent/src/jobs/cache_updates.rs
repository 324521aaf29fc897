//! A job and the homes of its caches: they are updated to the newest state before its commands run, and saved while these run and
//! after the last job of this node that uses them.

use std::convert::Infallible;
use std::fs::File;

use bdnfs::error::Result;

use super::job_caches::JobCaches;
use super::job_run::JobRun;
use super::stop_request::StopRequest;
use crate::api::job::JobState;
use crate::api::{ApiResult, MirrorRequest};
use crate::deploy::home_use::{self, HomeUser};
use crate::volumes::Volumes;
use crate::volumes::cache_home::CacheHome;

impl HomeUser for JobRun {
    fn volumes(&self) -> &Volumes {
        &self.services.volumes
    }

    fn is_first(&self) -> bool {
        self.job.request().training.rank == 0
    }

    /// The job's mirror; none for a job that reads its sources directly.
    fn mirror(&self) -> Result<Option<MirrorRequest>> {
        let request = self.job.request();
        if request.direct {
            return Ok(None);
        }
        self.services.mounts.mounter().mirror(request.mirror.clone(), request.tenant.as_deref())
    }

    fn note(&self, text: String) {
        self.job.note(text);
    }
}

/// Updates the homes of a job's caches to the newest state that is saved, unless another job on this node uses them; a job with
/// `require_cache_affinity` waits for those of other nodes that use them. The files that it returns keep the homes for the job.
///
/// # Errors
/// Where a job with `require_cache_affinity` can't have the newest state, why.
pub async fn begin(run: &JobRun) -> ApiResult<Vec<File>> {
    let job = &run.job;
    let Some(caches) = JobCaches::of(&run.services, job) else { return Ok(Vec::new()) };
    let (mut held, mut begun) = (Vec::new(), Vec::new());
    for home in caches.homes() {
        // The second may have to be waited for, for hours.
        held.extend(tokio::select! {
            files = home_use::begin(run, home, caches.needs_newest(home)) => files?,
            never = home_use::announce_regularly(run, &begun) => match never {},
        });
        begun.push(home.clone());
    }
    Ok(held)
}

/// Tells other nodes that the homes of a job's caches are used here, as long as it is polled.
pub async fn announce_regularly(run: &JobRun) -> Infallible {
    home_use::announce_regularly(run, &homes(run)).await
}

/// Ends the use of the homes of a job's caches whose commands were not started, if it had begun.
pub async fn abandon(run: &JobRun) {
    if run.job.state() == JobState::Created {
        return;
    }
    let homes = homes(run);
    for home in &homes {
        tokio::select! {
            biased;
            () = run.job.stop_requested(StopRequest::Now) => home_use::leave_unsaved(run, home).await,
            () = home_use::abandon(run, home) => {}
        }
    }
}

/// Saves the homes of a job's caches at the interval of the configuration, and tells other nodes that they are used here, as long
/// as it is polled: its commands run meanwhile, and do not wait for it.
pub async fn save_regularly(run: &JobRun) -> Infallible {
    let homes = homes(run);
    tokio::select! {
        never = home_use::save_regularly(run, &homes) => never,
        never = home_use::announce_regularly(run, &homes) => never,
        never = home_use::warn_of_flock(run, &homes) => never,
    }
}

/// Saves the homes of a job's caches that no other job on this node uses. What can't be saved stays here, and an event says so.
pub async fn save(run: &JobRun) {
    let homes = homes(run);
    for home in &homes {
        tokio::select! {
            biased;
            () = run.job.stop_requested(StopRequest::Now) => {
                // Of an agent that ends with its job, nobody would be left to save it.
                if run.services.lifecycle.is_persistent() {
                    run.job.note(format!("{home} is saved in the background, since the job is killed, unless the agent ends before"));
                    home_use::save_in_background(run, home);
                } else {
                    home_use::leave_unsaved(run, home).await;
                    run.job.note(format!("{home} is not saved, since the job is killed"));
                }
            }
            () = home_use::save(run, home) => {}
            never = home_use::report_regularly(run, &homes) => match never {},
        }
    }
}

/// The homes of a job's caches: none for one without caches.
fn homes(run: &JobRun) -> Vec<CacheHome> {
    let caches = JobCaches::of(&run.services, &run.job);
    caches.iter().flat_map(JobCaches::homes).cloned().collect()
}
