//! The checkpoints that a job resumes from: found in the mirror when it is submitted, pinned, and given to it as sources.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bdnfs::checkpoint::group::CheckpointGroup;
use bdnfs::checkpoint::{CheckpointSelector, LOOSE};
use bdnfs::digest::Digest;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::mirror::Mirror;
use bdnfs::source::{Access, Secret};
use bdnfs::weights::CheckpointReference;

use super::job_services::JobServices;
use super::mount_requests::mount_requests;
use crate::api::job::JobRequest;
use crate::api::{ApiResult, Failure, Weights};
use crate::{mirror, text};

/// The time in which a mirror must answer, as for every operation.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// A checkpoint, and the manifest of each rank's part of it.
type PinnedCheckpoint = (CheckpointGroup, Vec<Digest>);

impl JobServices {
    /// Finds the checkpoints that `request` asks for, and adds what each rank saved of them to its sources. What its own rank and
    /// rank 0 saved is staged; the rest, which only resharding reads, is read on demand.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for one that is not there, unless it is the latest of the job's own project, which a first run
    /// has not; those of the mirror.
    pub(super) async fn load_checkpoints(&self, request: &mut JobRequest) -> ApiResult<()> {
        if request.load.is_none() {
            return Ok(());
        }
        let late = |_| Failure::new(Kind::Timeout, "load_checkpoint_config: the mirror does not respond");
        let found = async {
            tokio::select! {
                found = tokio::time::timeout(LOOKUP_TIMEOUT, self.find_checkpoints(request)) => found.map_err(late)?,
                () = self.lifecycle.await_closing() => Err(Failure::closing()),
            }
        };
        let (pinned, notes) = found.await?;
        request.notes.extend(notes);
        let mut names: BTreeMap<_, usize> = BTreeMap::new();
        pinned.iter().for_each(|(group, _)| *names.entry(group.name()).or_default() += 1);
        for (group, manifests) in &pinned {
            add(request, group, manifests, names[group.name()] > 1);
        }
        Ok(())
    }

    /// The checkpoints that `request` asks for, each once, with what each rank's part of it is now; and a note on those that do not
    /// exist.
    async fn find_checkpoints(
        &self,
        request: &JobRequest,
    ) -> ApiResult<(Vec<PinnedCheckpoint>, Vec<String>)> {
        let (mut found, mut notes) = (Vec::<(CheckpointSelector, CheckpointGroup)>::new(), Vec::new());
        let references = request.load.iter().flat_map(|load| &load.checkpoints);
        let mirror = self.mirror_of(request).await?;
        for reference in references {
            match find(&mirror, reference, request).await {
                Ok(one) => match found.iter_mut().find(|(_, other)| other.is_same_checkpoint(&one.1)) {
                    // There is one place for both, and only the earlier state is complete.
                    Some(same) if one.1.is_earlier() => *same = one,
                    Some(_) => {}
                    None => found.push(one),
                },
                Err(e) if e.kind() == Kind::NotFound && is_own_latest(reference, request) => {
                    notes.push(format!("begins without a checkpoint: {e}"));
                }
                Err(e) => return Err(e.context("load_checkpoint_config").into()),
            }
        }
        let mut pinned = Vec::new();
        for (selector, group) in found {
            let manifests = mirror.chosen_manifests(&selector, &group).await?;
            pinned.push((group, manifests));
        }
        Ok((pinned, notes))
    }

    /// The mirror of a job.
    async fn mirror_of(&self, request: &JobRequest) -> ApiResult<Mirror> {
        let mounter = self.mounts.mounter();
        // The mirror is the same as for any of its sources.
        let any = weights(format!("{}://any", bdnfs::checkpoint::SCHEME), PathBuf::new());
        let asking = JobRequest { weights: vec![any], ..request.clone() };
        let mount = mount_requests(mounter, &asking, |_| PathBuf::new())?.remove(0);
        let none = || {
            Failure::new(
                Kind::Invalid,
                "load_checkpoint_config: checkpoints are in a mirror; leave out --no-mirror",
            )
        };
        let at = mounter.with_defaults(&mount).await?.mirror.ok_or_else(none)?;
        let mirror = mirror::open(&at, mounter.cache.clone())?;
        mirror.check_format().await?;
        Ok(mirror)
    }
}

/// The checkpoint that `reference` means to the job of `request`, and how that selects it.
async fn find(
    mirror: &Mirror,
    reference: &CheckpointReference,
    request: &JobRequest,
) -> Result<(CheckpointSelector, CheckpointGroup)> {
    let (job, name) = (reference.job_id.clone(), reference.checkpoint_name.clone());
    let project = project(mirror, reference, request.training.project()).await?;
    let selector = CheckpointSelector { project, job, name, rank: 0 };
    let (groups, damaged) =
        mirror.checkpoint_groups(Some(&selector.project), selector.job.as_deref()).await?;
    match (mirror.choose_group(&selector, &groups).await?, damaged.into_iter().next()) {
        (Some(group), _) => Ok((selector, group)),
        (None, Some((_, damage))) => Err(damage),
        (None, None) => Err(mirror.explain_missing(&selector, &groups).await?),
    }
}

/// The project of a checkpoint: the one named, else that of the job named, else the job's `own`.
async fn project(mirror: &Mirror, reference: &CheckpointReference, own: &str) -> Result<String> {
    match (&reference.project_name, &reference.job_id) {
        (Some(project), _) => Ok(project.clone()),
        (None, None) => Ok(own.to_owned()),
        (None, Some(job)) => {
            let mut projects = mirror.projects_of(job).await?;
            if projects.is_empty() || projects.iter().any(|project| project == own) {
                return Ok(own.to_owned());
            }
            if projects.len() > 1 {
                let text = format!("jobs of several projects have the id {job}: {}", projects.join(", "));
                return Err(Error::new(Kind::Invalid, text));
            }
            Ok(projects.remove(0))
        }
    }
}

/// Adds what each rank saved of a checkpoint to the sources of a job; in a directory of the job that saved it where another
/// `has_same_name`.
fn add(request: &mut JobRequest, group: &CheckpointGroup, manifests: &[Digest], has_same_name: bool) {
    let Some(mut folder) = request.load.as_ref().map(|load| load.download_folder.clone()) else { return };
    if has_same_name {
        folder.push(group.job());
    }
    let ranks = group.ranks();
    let written = text::minute(group.written().timestamp());
    // The ref of a rank may be of a later generation than its entry.
    let is_as_listed = ranks.iter().zip(manifests).all(|(saved, manifest)| saved.manifest == *manifest);
    let state = if group.is_earlier() {
        ", when it was last complete: what was saved since is not"
    } else if group.is_whole() && group.is_complete() && is_as_listed {
        ""
    } else {
        ", which may not be complete"
    };
    request.notes.push(format!("resumes from {} of {written} UTC{state}", ranks[0].id));
    for (saved, manifest) in ranks.iter().zip(manifests) {
        let rank = saved.id.rank();
        let directory = folder.join(format!("rank-{rank}"));
        let place = if group.name() == LOOSE { directory } else { directory.join(group.name()) };
        if rank != 0 && rank != request.training.rank {
            request.lazy.push(place.clone());
        }
        request.pinned.insert(place.clone(), manifest.to_string());
        request.weights.push(weights(saved.id.to_string(), place));
    }
}

/// Whether `reference` means the latest checkpoint of the job's own project.
fn is_own_latest(reference: &CheckpointReference, request: &JobRequest) -> bool {
    let CheckpointReference { project_name, job_id, checkpoint_name } = reference;
    let is_own = project_name.as_deref().is_none_or(|project| project == request.training.project());
    is_own && job_id.is_none() && checkpoint_name.is_none()
}

fn weights(source: String, mountpoint: PathBuf) -> Weights {
    let (source, access) = (Secret::new(source), Access::default());
    Weights { source, mountpoint, allow: None, ignore: Vec::new(), access, layout: None }
}
