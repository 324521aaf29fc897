//! The volumes of a job: its directories, and the variables that name them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use bdnfs::error::Result;
use bdnfs::source::Secret;

use super::job::Job;
use super::job_caches::{self, JobCaches};
use super::job_services::JobServices;
use super::supervisor::VolumeBinds;
use crate::api::job::{CheckpointLoading, JobRequest};
use crate::saver;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::{CHECKPOINT_PLACE, SCRATCH_PLACE};

/// Creates the volumes of a job, and returns what the job sees of them, and where. The files keep others from
/// clearing them. Touches the local disk.
///
/// # Errors
/// Those of [`JobVolume::create`](crate::volumes::JobVolume::create) and [`CacheHome::create`].
pub fn create(services: &JobServices, job: &Job) -> Result<(VolumeBinds, Vec<File>)> {
    let volume = services.volume_of(job);
    let mut binds = vec![(volume.scratch(), PathBuf::from(SCRATCH_PLACE))];
    let load = job.request().load.as_ref();
    binds.extend(load.map(|load| (volume.loaded(), load.download_folder.clone())));
    binds.extend(checkpoint_path(job.request()).map(|place| (volume.checkpoints(), place)));
    let mut directories: Vec<_> = binds.iter().map(|(directory, _)| directory.clone()).collect();
    let caches = JobCaches::of(services, job);
    let cache_binds: Vec<_> = caches.iter().flat_map(JobCaches::binds).collect();
    // Sources, volumes and caches below it are mounted there without a cover in memory: what the job writes beside them is on the
    // disk.
    let shown = job.request().shown_sources()?;
    let places = || {
        let sources = shown.iter().map(|shown| &shown.place);
        sources.chain(binds.iter().chain(&cache_binds).map(|(_, place)| place))
    };
    let below = |place: &Path| {
        let below = places().filter_map(|below| below.strip_prefix(place).ok());
        let is_below = |path: &&Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        below.filter(is_below).map(Path::to_owned).collect::<Vec<_>>()
    };
    for (directory, place) in &binds {
        directories.extend(below(place).iter().map(|path| directory.join(path)));
    }
    let locks = vec![volume.create(&directories)?];
    job.set_volume_created();
    if checkpoint_path(job.request()).is_some() {
        saver::begin_checkpoints(&volume)?;
    }
    let mut shared = Vec::new();
    if let Some(caches) = caches {
        caches.create_hub_directory()?;
        shared.extend(caches.homes().flat_map(CacheHome::lock_paths));
    }
    binds.extend(cache_binds);
    for (_, place) in &binds {
        let is_nested = binds.iter().any(|(_, other)| other != place && place.starts_with(other));
        // On the host, where that can be: a directory that is covered instead forgets what the job writes beside the volume. One in
        // another volume is that one's own.
        if !is_nested {
            let _ = fs::create_dir_all(place);
        }
    }
    let (root, own) = (services.volumes.directory().to_owned(), volume.path().to_owned());
    let shared_root = services.volumes.shared_directory().map(Path::to_owned);
    let checkpoints = checkpoint_path(job.request());
    Ok((VolumeBinds { root, shared_root, own, shared, binds, checkpoints }, locks))
}

/// The variables with a job's identity and the directories that it may write to.
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
        ("BT_RETRY_COUNT", request.retries.to_string()),
        ("BT_SCRATCH_DIR", SCRATCH_PLACE.to_owned()),
    ];
    let checkpoints =
        checkpoint_path(request).map(|place| ("BT_CHECKPOINT_DIR", place.display().to_string()));
    let loaded =
        |load: &CheckpointLoading| ("BT_LOAD_CHECKPOINT_DIR", load.download_folder.display().to_string());
    let loaded = request.load.as_ref().map(loaded);
    let caches = request.cache.iter().flat_map(job_caches::variables);
    let all = variables.into_iter().chain(checkpoints).chain(loaded).chain(caches);
    all.map(|(name, value)| (name.to_owned(), Secret::new(value))).collect()
}

/// The path at which a job sees its checkpoint directory, if it has one.
pub fn checkpoint_path(request: &JobRequest) -> Option<PathBuf> {
    let checkpoints = request.checkpoints.as_ref()?;
    Some(checkpoints.path.clone().unwrap_or_else(|| PathBuf::from(CHECKPOINT_PLACE)))
}
