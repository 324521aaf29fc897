//! Volumes that containers write to: published from the first mount to the last unmount.
//!
//! Each such time is a job of its own to whom its checkpoints belong. A plugin is not told the container's id: the job has the
//! beginning of the id that Docker gives the mount, and a random one with podman, whose ids are all the same.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bdnfs::error::Kind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{DockerVolumes, KEY_RUNTIME, VolumeContent, VolumeRuntime};
use crate::api::container_volume::{ContainerVolumeKind, ContainerVolumeRequest, job_id};
use crate::api::job::TrainingIdentity;
use crate::api::publication::publication_key;
use crate::api::{ApiResult, Failure};

/// A volume that containers write to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenVolume {
    request: ContainerVolumeRequest,
    /// The id of the job that writes to it, while it is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job: Option<String>,
}

impl WrittenVolume {
    /// A volume that is not mounted.
    pub fn new(request: ContainerVolumeRequest) -> Self {
        Self { request, job: None }
    }
}

impl VolumeContent {
    /// Whether `other` was created with the same options.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Written(one), Self::Written(other)) => one.request == other.request,
            (one, other) => one == other,
        }
    }

    /// Ends the job that writes to it, if there is one.
    pub fn end(&mut self) -> Option<String> {
        match self {
            Self::Source(_) => None,
            Self::Written(written) => written.job.take(),
        }
    }

    /// The job that writes to it, and the request for the job's volume; the job is `new` where there was none.
    fn begin(&mut self, new: String) -> Option<(String, ContainerVolumeRequest)> {
        let Self::Written(WrittenVolume { request, job }) = self else { return None };
        let job = job.get_or_insert(new).clone();
        let id = (request.kind == ContainerVolumeKind::Checkpoints).then(|| job.clone());
        Some((job, ContainerVolumeRequest { id, ..request.clone() }))
    }
}

impl DockerVolumes {
    /// Publishes a volume for the mount `id`, and returns its path.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; why it can't be published.
    pub(super) async fn mount_written(
        self: &Arc<Self>,
        name: &str,
        id: &str,
        by: VolumeRuntime,
    ) -> ApiResult<PathBuf> {
        let new = new_job(id, by)?;
        let begun = {
            let mut table = self.table.lock();
            // Noted before it is published, so that another unmount meanwhile does not end it.
            table.get_mut(name).and_then(|volume| {
                volume.mounts.insert(id.to_owned(), by);
                volume.content.begin(new)
            })
        };
        let missing = || Failure::new(Kind::NotFound, format!("no such volume: {name}"));
        let (job, request) = begun.ok_or_else(missing)?;
        let key = key(name, &job);
        let published = tokio::time::timeout(self.wait_limit(by), self.written.publish(&key, request)).await;
        let late = |_| Failure::new(Kind::Busy, format!("the volume {name} is being prepared; ask again"));
        match published.map_err(late).flatten() {
            Ok(status) => {
                self.note_mounts(name).await;
                Ok(status.path.unwrap_or_default())
            }
            Err(failure) => {
                // Its end waits until it is prepared.
                let (volumes, name, id) = (Arc::clone(self), name.to_owned(), id.to_owned());
                tokio::spawn(async move { volumes.unmount(&name, &id).await });
                Err(failure)
            }
        }
    }

    /// Ends what the containers of a volume wrote, when none has it mounted any more. It is saved afterwards.
    pub(super) async fn end_unmounted(&self, name: &str) {
        let ended = self.table.lock().get_mut(name).and_then(|volume| {
            let is_mounted = !volume.mounts.is_empty();
            if is_mounted { None } else { volume.content.end() }
        });
        let Some(job) = ended else { return };
        if let Err(failure) = self.written.unpublish(&key(name, &job)).await {
            tracing::warn!("cannot unpublish volume {name}: {failure}");
        }
    }

    /// Ends what is published for no volume: the agent died while it was mounted or unmounted.
    pub(super) async fn end_forgotten(&self) {
        for volume in self.all() {
            self.end_unmounted(&volume.name).await;
        }
        let jobs = self.all().into_iter().filter_map(|mut volume| Some((volume.content.end()?, volume.name)));
        let known: Vec<_> = jobs.map(|(job, name)| key(&name, &job)).collect();
        for status in self.written.list() {
            if status.key.starts_with(&format!("{KEY_RUNTIME}-")) && !known.contains(&status.key) {
                let _ = self.written.unpublish(&status.key).await;
            }
        }
    }

    /// The path of a volume while it is mounted, and its status. From memory.
    pub(super) fn describe_written(&self, name: &str, volume: &WrittenVolume) -> (PathBuf, Value) {
        let WrittenVolume { request, job } = volume;
        let status = job.as_ref().and_then(|job| self.written.status(&key(name, job)).ok());
        let path = status.as_ref().and_then(|status| status.path.clone()).unwrap_or_default();
        let state = status.as_ref().map_or(json!("unmounted"), |status| json!(status.state));
        let message = status.map(|status| status.message);
        let scope = request.kind.scope();
        let mut status_json = json!({scope.as_str(): request.name, "state": state, "message": message});
        if let Some(job) = job.as_ref().filter(|_| request.kind == ContainerVolumeKind::Checkpoints) {
            status_json["checkpoints"] = json!(format!("bt://{}@{job}", request.name));
        }
        (path, status_json)
    }
}

/// The key of what the job `job` writes to the volume `name`.
fn key(name: &str, job: &str) -> String {
    publication_key(KEY_RUNTIME, name, Some(Path::new(job)))
}

/// The id of the job that begins with the mount `id`.
fn new_job(id: &str, by: VolumeRuntime) -> ApiResult<String> {
    let own = job_id(id).filter(|_| by == VolumeRuntime::Docker);
    if let Some(own) = own {
        return Ok(own);
    }
    Ok(TrainingIdentity::random_id()?)
}
