//! The volumes of a job: its directories, the variables that name them, and whether they grow beyond their limits.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::{Kind, Result};
use bdnfs::source::Secret;
use bdnfs::task::blocking;

use super::job::Job;
use super::queue::JobQueue;
use super::supervisor::VolumeBinds;
use crate::api::Failure;
use crate::api::job::CheckpointLoading;
use crate::text;
use crate::volumes::{JobVolume, SCRATCH_PLACE, occupied};

/// How often what a volume occupies is counted: a disk of 2 GB/s writes no more meanwhile than a cache keeps free.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);
/// The part of its limit, in percent, at which an event tells that a volume is nearly full, and the one at which its job fails.
const WARN_PERCENT: u64 = 80;
const FAIL_PERCENT: u64 = 110;

impl JobQueue {
    /// The volume of a job.
    pub(super) fn volume_of(&self, job: &Job) -> JobVolume {
        let request = job.request();
        let tenant = request.tenant.as_deref().unwrap_or(self.mounts.mounter().engine.tenant());
        self.volumes.of_job(tenant, request.training.id())
    }
}

/// Makes the volume of a job, and says where the job is to see what of it. The file keeps others from clearing it. Touches the local
/// disk.
///
/// # Errors
/// Those of [`JobVolume::create`].
pub fn create(queue: &JobQueue, job: &Job) -> Result<(VolumeBinds, File)> {
    let volume = queue.volume_of(job);
    let mut binds = vec![(volume.scratch(), PathBuf::from(SCRATCH_PLACE))];
    let load = job.request().load.as_ref();
    binds.extend(load.map(|load| (volume.loaded(), load.download_folder.clone())));
    let mut directories: Vec<_> = binds.iter().map(|(directory, _)| directory.clone()).collect();
    // Sources that lie in it are mounted there, without a cover in memory.
    let below = |place: &Path| {
        let sources = job.request().weights.iter();
        let below = sources.filter_map(|weights| weights.mountpoint.strip_prefix(place).ok());
        let is_below = |path: &&Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        below.filter(is_below).map(Path::to_owned).collect::<Vec<_>>()
    };
    for (directory, place) in &binds {
        directories.extend(below(place).iter().map(|path| directory.join(path)));
    }
    let lock = volume.create(&directories)?;
    for (_, place) in &binds {
        // On the host, where that can be: a directory that is covered instead forgets what the job writes beside the volume.
        let _ = fs::create_dir_all(place);
    }
    let binds =
        VolumeBinds { root: queue.volumes.directory().to_owned(), own: volume.path().to_owned(), binds };
    Ok((binds, lock))
}

/// The variables that tell a job's commands who they are and where they may write.
pub fn variables(job: &Job) -> BTreeMap<String, Secret> {
    let (request, training) = (job.request(), &job.request().training);
    let name = request.name.clone().unwrap_or_else(|| training.id().to_owned());
    let leader = training.leader.clone().unwrap_or_else(|| "127.0.0.1".to_owned());
    let variables = [
        ("BT_TRAINING_JOB_ID", training.id().to_owned()),
        ("BT_TRAINING_JOB_NAME", name),
        ("BT_TRAINING_PROJECT_NAME", training.project().to_owned()),
        ("BT_NODE_RANK", training.rank.to_string()),
        ("BT_GROUP_SIZE", training.nodes.to_string()),
        ("BT_LEADER_ADDR", leader),
        // A job that failed is submitted anew, with another id.
        ("BT_RETRY_COUNT", "0".to_owned()),
        ("BT_SCRATCH_DIR", SCRATCH_PLACE.to_owned()),
    ];
    let loaded =
        |load: &CheckpointLoading| ("BT_LOAD_CHECKPOINT_DIR", load.download_folder.display().to_string());
    let loaded = request.load.as_ref().map(loaded);
    let all = variables.into_iter().chain(loaded);
    all.map(|(name, value)| (name.to_owned(), Secret::new(value))).collect()
}

/// Counts what a job's volumes occupy, until one of them is larger than it may be. An event tells when one is nearly full.
pub async fn await_overrun(queue: &JobQueue, job: &Arc<Job>) -> Failure {
    let Some(limit) = queue.volumes.scratch_limit() else { return std::future::pending().await };
    let scratch = queue.volume_of(job).scratch();
    let mut is_told = false;
    loop {
        tokio::time::sleep(COUNT_INTERVAL).await;
        let directory = scratch.clone();
        let Ok(bytes) = blocking(move || Ok(occupied(&directory))).await else { continue };
        let (used, most) = (text::size(bytes), text::size(limit));
        if bytes > limit / 100 * FAIL_PERCENT {
            let text = format!(
                "{SCRATCH_PLACE} occupies {used} and may occupy {most}; write less, or raise scratch_limit in [volumes]"
            );
            return Failure::new(Kind::NoSpace, text);
        }
        let is_nearly_full = bytes > limit / 100 * WARN_PERCENT;
        if is_nearly_full && !is_told {
            job.note(format!(
                "{SCRATCH_PLACE} occupies {used} of {most}; the job fails at {}",
                text::size(limit / 100 * FAIL_PERCENT)
            ));
        }
        is_told = is_nearly_full;
    }
}
