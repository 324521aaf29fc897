//! Jobs, as they travel over the control socket.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bdnfs::error::Error;
use bdnfs::source::{SecretStore, TreeLayout, Uri};
use bdnfs::stage::Progress;
pub use bdnfs::weights::{CheckpointLoading, TrainingCache, Variable};
use bdnfs::weights::{ShownSource, shown_sources};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use super::deploy_report::{BytesByTier, DeployReport, PhaseSeconds, SourceReport, Verdict};
pub use super::job_event::{JobEvent, event_count, events_after};
pub use super::job_log::{LOG_OFFSET_HEADER, LOG_STREAM_HEADER, LogChunk, OutputStream};
pub use super::job_state::JobState;
pub use super::saving::{CheckpointRequest, SaveReport};
pub use super::training::TrainingIdentity;
use super::{Failure, MirrorRequest, Weights};

/// A job that is to run. All paths are absolute.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JobRequest {
    /// The name that its user gave it.
    #[serde(default)]
    pub name: Option<String>,
    /// The sources of the job, each at the mount point where the job sees it.
    #[serde(default)]
    pub weights: Vec<Weights>,
    /// The commands to run, one after the other, each in a shell of its own.
    #[serde(default)]
    pub start_commands: Vec<String>,
    /// The environment of the commands.
    #[serde(default)]
    pub environment: BTreeMap<String, Variable>,
    /// The secret stores for the environment, searched before the agent's own.
    #[serde(default)]
    pub secrets: Vec<SecretStore>,
    /// The directory that the commands run in.
    pub workdir: PathBuf,
    /// The umask of the commands.
    #[serde(default = "default_umask")]
    pub umask: u32,
    /// The grace period between SIGTERM and SIGKILL when the job is stopped, in seconds.
    #[serde(default = "default_grace")]
    pub grace: u64,
    /// The tenant that the job belongs to; default: the agent's own tenant.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The mirror that its sources are copied to first; where none is named, the agent's own, or this machine's.
    #[serde(default)]
    pub mirror: Option<MirrorRequest>,
    /// Whether no mirror is used at all.
    #[serde(default)]
    pub direct: bool,
    /// Whether the job ends when the agent does, in whatever way.
    #[serde(default)]
    pub attached: bool,
    /// The training job that it belongs to, and its rank there.
    #[serde(default)]
    pub training: TrainingIdentity,
    /// The checkpoints that the job resumes from. At submission they are found and pinned, and become sources of the job.
    #[serde(default)]
    pub load: Option<CheckpointLoading>,
    /// The mount points of those of its sources that are read on demand: they are neither staged nor leased.
    #[serde(default)]
    pub lazy: Vec<PathBuf>,
    /// The snapshots of those of its sources that are pinned, as hexadecimal digests of their manifests, by their mount points.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pinned: BTreeMap<PathBuf, String>,
    /// The number of times that the job was submitted before.
    #[serde(default)]
    pub retries: u32,
    /// The training cache that it gets; default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<TrainingCache>,
    /// Whether its checkpoint directory is saved, and how.
    #[serde(default)]
    pub checkpoints: Option<CheckpointRequest>,
    /// Notes of the client that submits it, such as the keys of its specification without effect: its first events.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl JobRequest {
    /// The trees that the job sees, with their mount locations.
    ///
    /// # Errors
    /// [`Kind::Invalid`](bdnfs::error::Kind::Invalid) for a source that is none.
    pub fn shown_sources(&self) -> Result<Vec<ShownSource>, Error> {
        let located = |weights: &Weights| {
            Ok((weights.mountpoint.clone(), weights.layout, weights.source.expose().parse::<Uri>()?))
        };
        let caches = self.cache.as_ref().map_or_else(Vec::new, TrainingCache::paths);
        Ok(shown_sources(&self.weights.iter().map(located).collect::<Result<Vec<_>, _>>()?, &caches))
    }

    /// The mount location of its sources in the layout hf-cache, if they have one in common.
    pub fn hub_cache(&self) -> Option<&Path> {
        let mut caches = self.weights.iter().filter(|weights| weights.layout == Some(TreeLayout::HfCache));
        let first = caches.next()?.mountpoint.as_path();
        caches.all(|other| other.mountpoint == first).then_some(first)
    }
}

fn default_umask() -> u32 {
    0o022
}

/// The default grace period of a job's processes, in seconds, as of container runtimes.
pub fn default_grace() -> u64 {
    30
}

impl JobRequest {
    /// Removes the secrets, for a record on disk; also returns whether there were any.
    pub fn without_secrets(&self) -> Result<(Self, bool), bdnfs::error::Error> {
        let is_place = |store: &SecretStore| !matches!(store, SecretStore::Environment { .. });
        let mut bare = self.clone();
        bare.secrets.retain(is_place);
        let mut had = self.secrets.iter().any(SecretStore::holds_secrets);
        for weights in &mut bare.weights {
            let (without, lost) = weights.without_secrets()?;
            *weights = without;
            had |= lost;
        }
        if let Some(mirror) = &mut bare.mirror {
            let (without, lost) = mirror.without_secrets()?;
            *mirror = without;
            had |= lost;
        }
        Ok((bare, had))
    }
}

/// The exit of a job's commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobExit {
    /// The exit code of the last one that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The reason why the command could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether the commands were asked to end before they did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

impl JobExit {
    /// Whether all commands ended in good order.
    pub fn is_success(&self) -> bool {
        self.code == Some(0) && self.why.is_none()
    }
}

/// A file of a node as long as that is there: its device and its inode. Its path may be another to each process.
pub type FileId = (u64, u64);

/// The end of a job's commands, as their supervisor writes it down for the job's saver.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct CommandsEnd {
    /// Their exit.
    #[serde(flatten)]
    pub exit: JobExit,
    /// The files that processes were writing when the supervisor ended these.
    #[serde(flatten)]
    pub cut: WrittenFiles,
}

/// The files on the disk of a job's checkpoints that processes of the job were writing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFiles {
    /// The files that were found.
    #[serde(default, rename = "cut", skip_serializing_if = "BTreeSet::is_empty")]
    pub files: BTreeSet<FileId>,
    /// Whether there may be others: not all processes could be looked at in time.
    #[serde(default, rename = "cut_incomplete", skip_serializing_if = "std::ops::Not::not")]
    pub is_incomplete: bool,
}

/// The exit code of a command that runs a job which did not complete, where the job's own commands do not say another.
pub const NOT_COMPLETED_CODE: u8 = 125;
/// The number that a shell adds to a signal's for the exit code of the command that it ended; commands' own codes are less.
pub(crate) const SIGNAL_CODE_BASE: i32 = 128;

/// The status of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobStatus {
    /// The number of the job.
    pub id: u64,
    /// The name that its user gave it.
    pub name: Option<String>,
    /// The state of the job.
    pub state: JobState,
    /// When it was submitted.
    pub created: DateTime<Utc>,
    /// When its commands began to run.
    pub started: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended: Option<DateTime<Utc>>,
    /// When its commands ended; checkpoints may still be saved then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited: Option<DateTime<Utc>>,
    /// The state of its checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saving: Option<SaveReport>,
    /// The exit of the commands.
    pub exit: Option<JobExit>,
    /// The exit code of `bdnfs job run`, once the job has ended: see [`exit_code`](Self::exit_code).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// The reason why it failed; of one that was stopped, why not all of its checkpoints are saved.
    pub why: Option<Failure>,
    /// The tenant that it belongs to.
    pub tenant: Option<String>,
    /// The training job that it belongs to, and its rank there.
    #[serde(default)]
    pub training: TrainingIdentity,
    /// The sources of the job, and where it sees them.
    pub weights: Vec<JobSource>,
    /// The commands of the job.
    pub start_commands: Vec<String>,
    /// The report of its deployment, once it is deployed.
    pub report: Option<DeployReport>,
    /// Progress of staging, while it is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging: Option<Progress>,
    /// The events so far: the first and the last of them.
    #[serde(default)]
    pub events: Vec<JobEvent>,
}

impl JobStatus {
    /// The status of the job `id`, which was `created` and has not begun yet; it reads `weights`.
    pub fn new(id: u64, request: &JobRequest, weights: Vec<JobSource>, created: DateTime<Utc>) -> Self {
        Self {
            id,
            name: request.name.clone(),
            state: JobState::Created,
            created,
            started: None,
            ended: None,
            exited: None,
            saving: None,
            exit: None,
            exit_code: None,
            why: None,
            tenant: request.tenant.clone(),
            training: request.training.clone(),
            weights,
            start_commands: request.start_commands.clone(),
            report: None,
            staging: None,
            events: Vec::new(),
        }
    }

    /// Returns the exit code of a job that ended in `state`, as podman counts. It is 0 where the job completed, else that of its
    /// command, 128 and the number of the signal that ended it, or [`NOT_COMPLETED_CODE`] where no command failed.
    pub fn exit_code(state: JobState, exit: Option<&JobExit>) -> u8 {
        if state == JobState::Completed {
            return 0;
        }
        let signal = |exit: &JobExit| exit.signal.map(|signal| SIGNAL_CODE_BASE + signal);
        let code = exit.and_then(|exit| exit.code.or_else(|| signal(exit)));
        code.and_then(|code| code.try_into().ok()).filter(|code| *code != 0).unwrap_or(NOT_COMPLETED_CODE)
    }
}

/// A source of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobSource {
    /// The source, as the origin names it.
    pub source: String,
    /// The path at which the job sees it.
    pub mount_location: PathBuf,
}

/// All jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobList {
    /// Oldest first, each with the last of its events.
    pub jobs: Vec<JobStatus>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_of_a_job_is_its_commands_or_125() {
        let of = |code, signal| JobExit { code, signal, ..JobExit::default() };
        for (state, exit, code) in [
            (JobState::Completed, Some(of(Some(0), None)), 0),
            (JobState::Failed, Some(of(Some(3), None)), 3),
            (JobState::Failed, Some(of(Some(127), None)), 127),
            (JobState::Failed, Some(of(None, Some(9))), 137),
            (JobState::Failed, None, 125),
            (JobState::Failed, Some(of(Some(0), None)), 125),
            (JobState::Stopped, Some(of(Some(0), None)), 125),
            (JobState::Stopped, Some(of(None, Some(15))), 143),
            (JobState::Stopped, None, 125),
        ] {
            assert_eq!(JobStatus::exit_code(state, exit.as_ref()), code, "{state} {exit:?}");
        }
    }
}
