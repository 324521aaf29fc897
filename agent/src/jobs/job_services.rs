//! The parts of the agent that the jobs of one queue use.

use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::source::SecretStore;

use super::job::Job;
use super::record::JobRecord;
use crate::api::job::JobRequest;
use crate::deploy::{AdmissionQueue, MirrorQueue};
use crate::lifecycle::Lifecycle;
use crate::mounts::MountManager;
use crate::records::Records;
use crate::volumes::{JobVolume, Volumes};

/// The services that all jobs use, and the directory of their records.
#[derive(Debug)]
pub struct JobServices {
    pub(super) records: Records<JobRecord>,
    pub(super) mounts: Arc<MountManager>,
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) mirrors: Arc<MirrorQueue>,
    pub(super) admission: Arc<AdmissionQueue>,
    pub(super) volumes: Arc<Volumes>,
    /// The maximum age of a verification of what a job reads.
    pub(super) scrub_interval: Duration,
}

impl JobServices {
    /// The tenant of a job.
    pub(super) fn tenant_of<'a>(&'a self, job: &'a Job) -> &'a str {
        job.request().tenant.as_deref().unwrap_or(self.mounts.mounter().engine.tenant())
    }

    /// The volume of a job.
    pub(super) fn volume_of(&self, job: &Job) -> JobVolume {
        self.volumes.of_job(self.tenant_of(job), job.request().training.id())
    }

    /// The stores that are searched for the secrets of a job's environment.
    pub(super) fn secret_stores(&self, request: &JobRequest) -> Vec<SecretStore> {
        request.secrets.iter().chain(&self.mounts.mounter().defaults.secrets).cloned().collect()
    }

    /// Writes the record of a job. Touches the local disk.
    pub(super) fn write_record(&self, job: &Job) -> Result<()> {
        job.write_record(|record| self.put_record(job, record))
    }

    /// Writes `record`, that of `job`. One that can't be read is left alone: it may be of a newer release. Touches the local disk.
    pub(super) fn put_record(&self, job: &Job, record: &JobRecord) -> Result<()> {
        if job.damage().is_some() {
            return Ok(());
        }
        self.records.put(&job.record_name(), record)
    }
}
