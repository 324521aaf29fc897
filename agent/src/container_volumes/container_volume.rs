//! One volume of a container: its request, its state, its record.

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

use bdnfs::error::{Error, Kind, Result};
use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::api::container_volume::{
    ContainerVolumeKind, ContainerVolumeRequest, ContainerVolumeState, ContainerVolumeStatus,
};
use crate::api::saving::{CheckpointState, SaveReport};
use crate::api::{ApiResult, Failure};
use crate::context::Context;
use crate::publications::bind::BindTarget;
use crate::text;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::{JobVolume, Volumes};

/// The record of a volume: what the next agent goes on with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerVolumeRecord {
    /// The request.
    pub request: ContainerVolumeRequest,
    /// The boot in which it was asked for: no container outlives it.
    pub boot: String,
    /// When it was published.
    pub began: DateTime<Utc>,
    /// When it was ended, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<DateTime<Utc>>,
    /// The directory that nodes share in which the home of a training cache lies: another configuration may have another, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<PathBuf>,
}

/// The directory of a volume.
#[derive(Clone, Debug)]
pub enum WritableDirectory {
    /// The checkpoint directory of a job.
    Checkpoints(JobVolume),
    /// The home of the training cache of a project or a team.
    Cache(CacheHome),
}

impl WritableDirectory {
    /// The directory that `record` of `tenant` asks for; it may not exist.
    pub fn new(volumes: &Volumes, tenant: &str, record: &ContainerVolumeRecord) -> Self {
        let request = &record.request;
        match request.kind {
            ContainerVolumeKind::Checkpoints => {
                Self::Checkpoints(volumes.of_job(tenant, request.id.as_deref().unwrap_or_default()))
            }
            ContainerVolumeKind::ProjectCache | ContainerVolumeKind::TeamCache => {
                let (scope, name) = (request.kind.scope(), &request.name);
                Self::Cache(match &record.volumes {
                    Some(directory) => volumes.cache_home_in(directory, tenant, scope, name),
                    None => volumes.cache_home(tenant, scope, name),
                })
            }
        }
    }

    /// The directory that nodes share in which a home lies.
    fn volumes(&self) -> Option<PathBuf> {
        match self {
            Self::Cache(home) if home.is_shared() => Some(home.volumes().to_owned()),
            Self::Cache(_) | Self::Checkpoints(_) => None,
        }
    }

    /// Holds the directory of an earlier run.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Disk`], and [`Kind::Busy`] for a home that is being removed.
    pub fn hold(&self) -> Result<Vec<File>> {
        match self {
            Self::Checkpoints(own) => match own.lock(FlockOperation::NonBlockingLockShared) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let text = format!("{} does not exist", own.path().display());
                    Err(Error::with(Kind::NotFound, text, error))
                }
                locked => Ok(vec![locked.with_context(|| format!("cannot lock {}", own.path().display()))?]),
            },
            Self::Cache(home) => home.create(),
        }
    }

    /// The path of what the container sees, without links if it exists. Touches the local disk.
    pub fn path(&self) -> PathBuf {
        let path = match self {
            Self::Checkpoints(volume) => volume.checkpoints(),
            Self::Cache(home) => home.tree(),
        };
        path.canonicalize().unwrap_or(path)
    }
}

/// One volume of a container, from its request until all is saved.
#[derive(Debug)]
pub struct ContainerVolume {
    /// The key of the volume.
    pub key: String,
    /// The request.
    pub request: ContainerVolumeRequest,
    /// The tenant that the project or team belongs to.
    pub tenant: String,
    /// The target of the bind.
    pub target: Option<BindTarget>,
    /// The directory.
    pub directory: WritableDirectory,
    /// When it was published.
    pub began: DateTime<Utc>,
    /// Whether an earlier run published it: what is bound at its target is its own, whether its directory can be opened or not.
    pub is_restored: bool,
    state: watch::Sender<State>,
    /// Keeps others from removing the directory.
    locks: Mutex<Vec<File>>,
}

/// The progress of a volume.
#[derive(Clone, Debug, Default)]
struct State {
    step: ContainerVolumeStep,
    /// The directory, once it is there.
    path: PathBuf,
    /// When it was ended.
    ended: Option<DateTime<Utc>>,
    /// Whether nobody waits for it to be published any more.
    is_cancelled: bool,
    /// Whether it was ended, and no container has it any more.
    is_unused: bool,
    report: Option<SaveReport>,
}

#[derive(Clone, Debug, Default)]
enum ContainerVolumeStep {
    #[default]
    Preparing,
    Published,
    /// The volume can't be published, or what was written can't be saved.
    Failed(Failure),
}

impl ContainerVolume {
    /// A volume that is not published yet.
    pub fn new(
        key: String,
        record: ContainerVolumeRecord,
        tenant: String,
        target: Option<BindTarget>,
        directory: WritableDirectory,
    ) -> Self {
        let ContainerVolumeRecord { request, began, ended, .. } = record;
        let state = watch::Sender::new(State { ended, ..State::default() });
        let is_restored = false;
        Self { key, request, tenant, target, directory, began, is_restored, state, locks: Mutex::default() }
    }

    /// Whether `other` asks for the same. Of one that is published, the rules of the node may have changed since.
    pub fn is_same(&self, other: &ContainerVolumeRequest) -> bool {
        let is_published = self.is_published();
        let bare = |request: &ContainerVolumeRequest| {
            let bare = ContainerVolumeRequest { consumer: None, ..request.clone() };
            if is_published { ContainerVolumeRequest { tenant: None, trusted: false, ..bare } } else { bare }
        };
        bare(&self.request) == bare(other)
    }

    /// The record of the volume, of the boot `boot`.
    pub fn record(&self, boot: &str) -> ContainerVolumeRecord {
        let ended = self.state.borrow().ended;
        ContainerVolumeRecord {
            request: self.request.clone(),
            boot: boot.to_owned(),
            began: self.began,
            ended,
            volumes: self.directory.volumes(),
        }
    }

    /// Holds the directory, at `path`, by its `locks`.
    pub fn hold(&self, path: PathBuf, locks: Vec<File>) {
        self.state.send_modify(|state| state.path = path);
        *self.locks.lock() = locks;
    }

    /// Lets go of the directory.
    pub fn release(&self) {
        self.locks.lock().clear();
    }

    /// Whether it is published, or was.
    pub fn is_published(&self) -> bool {
        matches!(self.state.borrow().step, ContainerVolumeStep::Published)
    }

    /// Marks it as published.
    pub fn set_published(&self) {
        self.state.send_modify(|state| state.step = ContainerVolumeStep::Published);
    }

    /// Marks it as failed.
    pub fn set_failed(&self, failure: Failure) {
        tracing::warn!("volume {}: {failure}", self.key);
        self.state.send_modify(|state| state.step = ContainerVolumeStep::Failed(failure));
    }

    /// Waits until it is published.
    ///
    /// # Errors
    /// Why it can't be; and [`Kind::Busy`] for one that was ended.
    pub async fn await_publication(&self) -> ApiResult<()> {
        let mut states = self.state.subscribe();
        let known = states.wait_for(|state| !matches!(state.step, ContainerVolumeStep::Preparing)).await;
        // The sender lives as long as `self`, so there is one.
        let Ok(state) = known else { return Err(Failure::closing()) };
        match &state.step {
            ContainerVolumeStep::Failed(failure) => Err(failure.clone()),
            _ if state.ended.is_some() => {
                let text =
                    format!("what was written to {} is being saved; ask again later", self.request.kind);
                Err(Failure::new(Kind::Busy, text))
            }
            _ => Ok(()),
        }
    }

    /// Whether it was ended and not all could be saved.
    pub fn is_unsaved(&self) -> bool {
        let state = self.state.borrow();
        state.ended.is_some() && matches!(state.step, ContainerVolumeStep::Failed(_))
    }

    /// Gives it up, unless it is published.
    pub fn cancel(&self) {
        self.state.send_modify(|state| state.is_cancelled = true);
    }

    /// Waits until it is given up.
    pub async fn cancelled(&self) {
        let _ = self.state.subscribe().wait_for(|state| state.is_cancelled).await;
    }

    /// Ends it, unless it was.
    pub fn end(&self) {
        self.state.send_modify(|state| {
            state.ended.get_or_insert_with(Utc::now);
        });
    }

    /// When it was ended.
    pub fn end_time(&self) -> Option<DateTime<Utc>> {
        self.state.borrow().ended
    }

    /// Whether it has the target of `other`, and is not ended.
    pub fn holds_target_of(&self, other: &Self) -> bool {
        other.target.is_some() && self.target == other.target && self.end_time().is_none()
    }

    /// Waits until it is ended.
    pub async fn await_end(&self) {
        let _ = self.state.subscribe().wait_for(|state| state.ended.is_some()).await;
    }

    /// Marks it as used by no container any more.
    pub fn set_unused(&self) {
        self.state.send_modify(|state| state.is_unused = true);
    }

    /// Whether no container uses it any more.
    pub fn is_unused(&self) -> bool {
        self.state.borrow().is_unused
    }

    /// Takes over the report of its saver.
    pub fn set_report(&self, report: SaveReport) {
        self.state.send_modify(|state| state.report = Some(report));
    }

    /// The report of its saver.
    pub fn report(&self) -> Option<SaveReport> {
        self.state.borrow().report.clone()
    }

    /// The path at which the container has it, as far as is known.
    pub fn container_path(&self) -> PathBuf {
        let own = || self.state.borrow().path.clone();
        self.target.as_ref().map_or_else(own, BindTarget::path)
    }

    /// The status for clients. Needs no disk.
    pub fn status(&self) -> ContainerVolumeStatus {
        let State { step, ended, report, .. } = self.state.borrow().clone();
        let state = match (&step, ended) {
            (_, None) => ContainerVolumeState::Published,
            (ContainerVolumeStep::Failed(_), _) => ContainerVolumeState::Unsaved,
            (_, Some(_)) => ContainerVolumeState::Saving,
        };
        let message = match (&step, &report) {
            (ContainerVolumeStep::Failed(failure), _) => failure.message.clone(),
            (_, Some(report)) => saving_message(report),
            _ => {
                let (kind, name) = (self.request.kind, &self.request.name);
                format!("{kind} of the {} {name}", kind.scope().as_str())
            }
        };
        let is_published = ended.is_none() && matches!(step, ContainerVolumeStep::Published);
        ContainerVolumeStatus {
            key: self.key.clone(),
            kind: self.request.kind,
            name: self.request.name.clone(),
            id: self.request.id.clone(),
            tenant: self.tenant.clone(),
            consumer: self.request.consumer.clone(),
            path: is_published.then(|| self.container_path()),
            state,
            message,
            saving: report,
        }
    }
}

/// The state of checkpoints, in one line.
fn saving_message(report: &SaveReport) -> String {
    let saved = report.checkpoints.iter().filter(|unit| unit.state == CheckpointState::Saved).count();
    let (saved, all) = (saved, text::count(report.checkpoints.len() as u64, "checkpoint"));
    let waiting = (report.backlog > 0).then(|| format!(", {} to upload", text::size(report.backlog)));
    let why = report.why.as_ref().map(|why| format!("; {why}"));
    format!("{saved} of {all} saved{}{}", waiting.unwrap_or_default(), why.unwrap_or_default())
}
