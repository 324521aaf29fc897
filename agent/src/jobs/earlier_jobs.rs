//! The jobs of an earlier run, those among them whose records can't be read: what is known of these without.
//!
//! The commands of such a job may run, and its supervisor and its mounts are there. So it stays a job, which can be stopped, and
//! fails when its commands have ended: what else it asked for is not known.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use bdnfs::error::{Error, Kind, Result};
use bdnfs::source::{Access, Secret};

use super::event_file::EventFile;
use super::job::{MOUNTS_DIRECTORY, now};
use super::record::JobRecord;
use super::supervisor;
use crate::api::job::{JobRequest, JobState, JobStatus, TrainingIdentity};
use crate::api::{Failure, Weights};
use crate::records::Records;

/// The jobs of an earlier run.
pub struct EarlierJobs {
    /// The records of the jobs by their ids, each with the reason why it can't be read.
    pub jobs: BTreeMap<u64, (JobRecord, Option<Failure>)>,
    /// The highest id that there was, also of a job of which only the directory is left; 0 for none.
    pub last: u64,
}

impl EarlierJobs {
    /// The jobs that have a record, or a directory in `directory` and a supervisor. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn read(records: &Records<JobRecord>, directory: &Path) -> Result<Self> {
        let mut jobs = BTreeMap::new();
        let unreadable = |id: u64, error: io::Error| {
            let path = records.path(&id.to_string());
            let text = format!(
                "the record {} of the job cannot be read: {error}; when its commands have ended, submit it again",
                path.display()
            );
            tracing::error!("job {id}: {text}");
            let damage = Failure::new(Kind::Corrupt, text);
            (without_record(id, &directory.join(id.to_string()), &damage), Some(damage))
        };
        for (name, record) in records.read_all()? {
            match (record, name.parse()) {
                (Ok(record), _) => drop(jobs.insert(record.job.id, (record, None))),
                (Err(error), Ok(id)) => drop(jobs.insert(id, unreadable(id, error))),
                (Err(error), Err(_)) => tracing::warn!("{name} is no record of a job: {error}"),
            }
        }
        let mut last = jobs.keys().last().copied().unwrap_or(0);
        for id in
            numbers(directory).map_err(|e| Error::disk(format!("cannot read {}", directory.display()), e))?
        {
            last = last.max(id);
            let own = directory.join(id.to_string());
            // A crash may leave the directory of a job that was not accepted yet.
            let is_launched = || supervisor::read_info(&own).is_some() || supervisor::is_supervised(&own);
            if !jobs.contains_key(&id) && is_launched() {
                jobs.insert(id, unreadable(id, ErrorKind::NotFound.into()));
            }
        }
        Ok(Self { jobs, last })
    }
}

/// The entries of `directory` that are numbers.
fn numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let number =
        |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().to_str()?.parse().ok());
    fs::read_dir(directory)?.filter_map(|entry| number(entry).transpose()).collect()
}

/// Makes the record of a job from what its `directory` tells. Touches the local disk.
fn without_record(id: u64, directory: &Path, damage: &Failure) -> JobRecord {
    let (_, events) = EventFile::read(directory);
    // `<volumes>/<tenant>/jobs/<id>`
    let volume = supervisor::read_info(directory).and_then(|started| started.volume);
    let part =
        |above: usize| volume.as_deref()?.ancestors().nth(above)?.file_name()?.to_str().map(str::to_owned);
    let mounts = numbers(&directory.join(MOUNTS_DIRECTORY)).unwrap_or_default();
    let request = JobRequest {
        tenant: part(2),
        training: TrainingIdentity { id: part(0), ..TrainingIdentity::default() },
        weights: mounts.iter().map(|_| unknown_source()).collect(),
        ..JobRequest::default()
    };
    let created = events.first().map_or_else(now, |first| first.at);
    let mut job = JobStatus::new(id, &request, Vec::new(), created);
    job.state = JobState::Running;
    job.exit = supervisor::read_exit(directory);
    match events.last().filter(|last| last.state.is_last()) {
        Some(last) => {
            job.exit_code = Some(JobStatus::exit_code(last.state, job.exit.as_ref()));
            (job.state, job.ended) = (last.state, Some(last.at));
        }
        None => job.started = Some(created),
    }
    job.why = (job.state != JobState::Completed).then(|| damage.clone());
    let admitted = supervisor::is_supervised(directory);
    JobRecord { job, request, stop: false, stop_now: false, admitted, saver_events: 0 }
}

/// A source of which only its mount point is known, by its number.
fn unknown_source() -> Weights {
    let (source, access) = (Secret::new(String::new()), Access::default());
    Weights { source, mountpoint: PathBuf::new(), allow: None, ignore: Vec::new(), access, layout: None }
}
