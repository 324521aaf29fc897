//! The order of a saver: what it saves, and how it learns that the job has ended.

use std::fs;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::MirrorRequest;
use crate::api::job::{CommandsEnd, SIGNAL_CODE_BASE, WrittenFiles};
use crate::volumes::is_locked;

/// The order of a saver. It travels over a pipe, for there are secrets in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct SaveOrder {
    /// The directory of the job's volume.
    pub volume: PathBuf,
    /// The directory in it that is saved.
    pub directory: PathBuf,
    /// The path at which the job sees that, for messages.
    pub place: PathBuf,
    /// The file that is locked as long as the job's commands may write; `None` where a container does.
    pub job_lock: Option<PathBuf>,
    /// The file that is locked until the job's commands are ended, or have ended; `None` where nothing tells.
    #[serde(default)]
    pub commands_lock: Option<PathBuf>,
    /// The file with the exit of the job's commands; of a container it only says that it has ended.
    pub job_exit: PathBuf,
    /// The project of the job.
    pub project: String,
    /// The id of the job.
    pub id: String,
    /// The rank of this node.
    pub rank: u32,
    /// The mirror.
    pub mirror: MirrorRequest,
    /// The directory that remembers which mirrors this node has seen.
    pub seen_mirrors: PathBuf,
    /// The most bytes a second that are read for it.
    pub upload_rate: Option<u64>,
    /// The time for which failed saves are retried when the job has ended.
    pub give_up: Duration,
    /// The number of complete checkpoints of the project that stay in the mirror; `None`: all.
    #[serde(default)]
    pub keep: Option<NonZeroU32>,
}

impl SaveOrder {
    /// Whether the job's commands are being ended, or have ended: what they close from then on may be half written.
    pub(super) fn is_ending(&self) -> bool {
        // The supervisor of an earlier version makes no such file.
        let is_released = |lock: &PathBuf| lock.exists() && !is_locked(lock);
        self.commands_lock.as_ref().is_some_and(is_released) || self.job_end().is_some()
    }

    /// The end of the job's commands; `None` while they run.
    pub(super) fn job_end(&self) -> Option<JobEnd> {
        let Some(job_lock) = &self.job_lock else {
            // No runtime says how its container ended.
            return self.job_exit.exists().then_some(JobEnd::Failed);
        };
        // Without a lock there was never a supervisor, or the cache was removed.
        let runs = is_locked(job_lock);
        (!runs).then(|| match self.commands_end().map(|end| end.exit) {
            Some(exit) if exit.is_success() && !exit.stopped => JobEnd::Completed,
            // What it wrote is closed; whether it had finished, only a hint tells.
            Some(exit) if exit.is_success() => JobEnd::Failed,
            // A launcher that passes the signal on ends with whatever code.
            Some(exit) if !exit.stopped && exit.code.is_some_and(|code| code < SIGNAL_CODE_BASE) => {
                JobEnd::Failed
            }
            _ => JobEnd::Killed,
        })
    }

    /// The files that the job's processes were writing when these were ended, once the job has ended: half written, however that
    /// went.
    pub(super) fn cut_files(&self) -> WrittenFiles {
        self.job_lock.as_ref().and_then(|_| self.commands_end()).unwrap_or_default().cut
    }

    fn commands_end(&self) -> Option<CommandsEnd> {
        serde_json::from_slice(&fs::read(&self.job_exit).ok()?).ok()
    }
}

/// The end of a job's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// The commands succeeded.
    Completed,
    /// The commands failed, or were stopped and ended in good order: what they wrote is closed.
    Failed,
    /// A signal ended the commands, or made them fail: what they were writing may be torn.
    Killed,
}
