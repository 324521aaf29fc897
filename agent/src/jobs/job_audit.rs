//! The audit of a job: what it reads and was not verified recently is verified beside its commands.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread;

use bdnfs::error::Result;
use bdnfs::snapshot::Snapshot;
use bdnfs::staging::audit::audit;
use tokio::sync::oneshot;

use super::job::Job;
use super::job_run::JobRun;
use crate::cache::scrubber::recent;
use crate::context::Context;
use crate::runtime;

/// An audit under way. Dropped, it is given up.
#[derive(Debug)]
pub struct JobAudit {
    given_up: Arc<AtomicBool>,
    outcome: oneshot::Receiver<Result<()>>,
}

impl Drop for JobAudit {
    fn drop(&mut self) {
        self.given_up.store(true, Relaxed);
    }
}

impl JobAudit {
    /// Starts to verify the sources of a job, all of which are mounted and local. Damage is an event of the job soon after it is
    /// found, and not at its end only: another agent may be there by then.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) where there is no thread for it.
    pub fn start(run: &JobRun) -> Result<Self> {
        let (services, job) = (&run.services, &run.job);
        let numbers = 0..job.request().weights.len();
        let mounts = numbers.filter_map(|number| services.mounts.at(&job.mountpoint(number)));
        let snapshots: Vec<Weak<Snapshot>> = mounts.map(|mount| Arc::downgrade(mount.snapshot())).collect();
        let (given_up, period) = (Arc::<AtomicBool>::default(), recent(services.scrub_interval));
        let (sender, outcome) = oneshot::channel();
        let cancelled = Arc::clone(&given_up);
        let owner = Arc::clone(job);
        let verify = move || {
            runtime::lower_priority();
            let mut tell = |damaged| {
                owner.note(format!(
                    "damaged in the cache, removed and fetched again; its commands may have read it: {damaged}"
                ));
            };
            let mut audit = |snapshot| audit(snapshot, &period, &|_| !cancelled.load(Relaxed), &mut tell);
            let outcome = snapshots.iter().try_for_each(&mut audit);
            // The receiver is gone if the audit was given up.
            if let Err(Err(error)) = sender.send(outcome) {
                tracing::warn!("job {}: {error}", owner.id());
            }
        };
        thread::Builder::new()
            .name("bdnfs-audit".to_owned())
            .spawn(verify)
            .context("cannot start a thread")?;
        Ok(Self { given_up, outcome })
    }

    /// Waits until all is verified; what could not be is an event of `job`.
    pub async fn finish(mut self, job: &Job) {
        // Where its thread panicked, that was logged.
        if let Ok(Err(error)) = (&mut self.outcome).await {
            job.note(format!("not all that it read could be verified again: {error}"));
        }
    }
}
