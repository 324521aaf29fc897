//! The limits of a job's volumes: it is admitted with the space that it asks for, and fails where it writes more.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::cache::eviction::VolumeClaim;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::task::blocking;

use super::job::Job;
use super::job_caches::JobCaches;
use super::job_services::JobServices;
use super::job_volume::checkpoint_path;
use crate::api::Failure;
use crate::text;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::{SCRATCH_PLACE, measure_pause, occupied};

/// The part of its limit, in percent, at which an event tells that a volume is nearly full, and the one at which its job fails.
const WARN_PERCENT: u64 = 80;
const FAIL_PERCENT: u64 = 110;
/// The setting that limits the checkpoint directory.
const CHECKPOINT_LIMIT_KEY: &str = "volume_size_gib in checkpointing_config";

/// Takes the space that a job's checkpoint directory may occupy, if it says so. Returns why there is none now. Homes of training
/// caches that are saved and not in use make way where it would not fit otherwise, each with an event. Touches the local
/// disk, and waits a few seconds for mirrors; call it on a blocking thread.
///
/// # Errors
/// [`Kind::NoSpace`] where it would not fit if there was nothing else; [`Kind::Disk`].
pub fn claim(services: &JobServices, job: &Job) -> Result<Option<Error>> {
    let Some(limit) = checkpoint_limit(job) else { return Ok(None) };
    let (space, with_context) =
        (services.volumes.space(), |error: Error| error.context(CHECKPOINT_LIMIT_KEY));
    // No disk grows by what leaves it.
    if limit <= space.disk_size()? {
        let evicted = services.volumes.evict_homes(|_| space.ensure_fits(limit).is_err());
        evicted.notes().for_each(|note| job.note(note));
    }
    space.ensure_fits(limit).map_err(with_context)?;
    match job.volume_claim(|| space.claim(limit)) {
        Err(error) if error.kind() == Kind::NoSpace => Ok(Some(with_context(error))),
        claimed => claimed.map(|_| None),
    }
}

/// The claim of a job that was admitted; one of an earlier run gets it again.
pub fn claim_again(services: &JobServices, job: &Job) -> Result<Arc<VolumeClaim>> {
    let limit = checkpoint_limit(job).unwrap_or(0);
    job.volume_claim(|| Ok(services.volumes.space().claim_existing(limit)))
}

fn checkpoint_limit(job: &Job) -> Option<u64> {
    job.request().checkpoints.as_ref()?.size_limit
}

/// A volume that is measured.
struct MeasuredVolume {
    /// The name of the volume in messages.
    name: String,
    directory: PathBuf,
    /// The limit, in bytes.
    limit: Option<u64>,
    /// The setting that raises the limit.
    key: &'static str,
    /// Whether an event has warned that it is nearly full.
    is_warned: bool,
    /// The claim to space, which counts what the volume occupies.
    claim: Option<Arc<VolumeClaim>>,
    /// The home that it is, where nodes share it.
    shared: Option<CacheHome>,
}

impl MeasuredVolume {
    /// The volumes of a job that have limits, and its checkpoint directory.
    fn of(services: &JobServices, job: &Job) -> Vec<Self> {
        let new = |name, directory, limit, key| Self {
            name,
            directory,
            limit,
            key,
            is_warned: false,
            claim: None,
            shared: None,
        };
        let scratch_limit = services.volumes.config().scratch_limit.filter(|_| job.has_volume());
        let scratch = scratch_limit.map(|limit| {
            let directory = services.volume_of(job).scratch();
            new(SCRATCH_PLACE.to_owned(), directory, Some(limit), "scratch_limit in [volumes]")
        });
        let caches = JobCaches::of(services, job);
        let homes = caches.iter().flat_map(JobCaches::homes).map(|home| {
            let limit = services.volumes.cache_limit(home);
            let shared = home.is_shared().then(|| home.clone());
            Self { shared, ..new(home.to_string(), home.tree(), Some(limit), home.scope().limit_keys()) }
        });
        let checkpoints = checkpoint_path(job.request()).map(|place| {
            let directory = services.volume_of(job).checkpoints();
            let name = place.display().to_string();
            let claim = claim_again(services, job).ok();
            Self { claim, ..new(name, directory, checkpoint_limit(job), CHECKPOINT_LIMIT_KEY) }
        });
        scratch.into_iter().chain(checkpoints).chain(homes).collect()
    }

    /// Counts what the volume occupies, and compares that with its limit. An event warns where it is nearly full.
    fn check_size(&mut self, bytes: u64, job: &Job) -> Option<Failure> {
        if let Some(claim) = &self.claim {
            claim.set_occupied(bytes);
        }
        let (name, limit, key) = (&self.name, self.limit?, self.key);
        let (used, most) = (text::size(bytes), text::size(limit));
        if bytes > limit / 100 * FAIL_PERCENT {
            let text = format!("{name} occupies {used} and may occupy {most}; write less, or raise {key}");
            return Some(Failure::new(Kind::NoSpace, text));
        }
        let is_nearly_full = bytes > limit / 100 * WARN_PERCENT;
        if is_nearly_full && !self.is_warned {
            let fatal = text::size(limit / 100 * FAIL_PERCENT);
            job.note(format!("{name} occupies {used} of {most}; the job fails at {fatal}"));
        }
        self.is_warned = is_nearly_full;
        None
    }
}

/// Measures a job's volumes until one exceeds its limit. An event warns when one is nearly full.
pub async fn await_overrun(services: &JobServices, job: &Arc<Job>) -> Failure {
    // A shared file system may be slow: the others do not wait for it.
    let (shared, own) = MeasuredVolume::of(services, job).into_iter().partition(|one| one.shared.is_some());
    tokio::select! {
        failure = await_overrun_of(shared, services, job) => failure,
        failure = await_overrun_of(own, services, job) => failure,
    }
}

/// Measures `volumes` until one exceeds its limit.
async fn await_overrun_of(
    mut volumes: Vec<MeasuredVolume>,
    services: &JobServices,
    job: &Arc<Job>,
) -> Failure {
    if volumes.is_empty() {
        return std::future::pending().await;
    }
    loop {
        let mut took = Duration::ZERO;
        for volume in &mut volumes {
            let directory = volume.directory.clone();
            let measured = match &volume.shared {
                Some(home) => {
                    let measure = |home: &CacheHome| Ok(timed(|| home.shared_usage()));
                    services.volumes.on_disk_of(home, measure).await
                }
                None => blocking(move || Ok(timed(|| Some(occupied(&directory))))).await,
            };
            let Ok((bytes, one_took)) = measured else { continue };
            took += one_took;
            let Some(bytes) = bytes else { continue };
            if let Some(failure) = volume.check_size(bytes, job) {
                return failure;
            }
        }
        tokio::time::sleep(measure_pause(took)).await;
    }
}

/// Returns the result of `measure` and the time that it took, without the wait for a thread, which burdens no disk.
fn timed<T>(measure: impl FnOnce() -> T) -> (T, Duration) {
    let begin = Instant::now();
    (measure(), begin.elapsed())
}
