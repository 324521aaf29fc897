//! Job records: what a restart must not forget of a job.

use serde::{Deserialize, Serialize};

use super::stop_request::StopRequest;
use crate::api::job::{JobRequest, JobStatus};

/// The record of a job. It holds no secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobRecord {
    /// The job, but for its events.
    pub job: JobStatus,
    /// The request, without its secrets.
    pub request: JobRequest,
    /// Whether a stop of the job was requested.
    pub stop: bool,
    /// Whether that is to be without grace. In a record of an earlier version it is missing: then there is grace.
    #[serde(default)]
    pub stop_now: bool,
    /// Whether the job is admitted: then all its sources are leased.
    #[serde(default)]
    pub admitted: bool,
    /// The number of events of its saver that are events of the job.
    #[serde(default)]
    pub saver_events: u64,
}

impl JobRecord {
    /// Returns the last request to stop the job.
    pub fn stop_request(&self) -> StopRequest {
        match (self.stop, self.stop_now) {
            (false, _) => StopRequest::None,
            (true, false) => StopRequest::Graceful,
            (true, true) => StopRequest::Now,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::super::job::Job;
    use super::*;

    /// A new job in `jobs`.
    fn job_in(jobs: &Path) -> Job {
        let request = r#"{"start_commands": ["true"], "workdir": "/"}"#;
        Job::new(1, serde_json::from_str(request).expect("a request"), jobs).expect("a job")
    }

    #[test]
    fn record_of_a_job_is_removed_after_its_files() {
        let jobs = tempfile::tempdir().expect("a directory");
        let job = job_in(jobs.path());
        fs::write(job.directory().join("started.json"), "{}").expect("written");
        let mut is_removed = false;
        let remove = || {
            is_removed = true;
            assert!(!job.directory().exists(), "a crash would leave a job that seems to run");
            Ok(())
        };
        job.remove(remove).expect("removed");
        assert!(is_removed);
    }

    #[test]
    fn record_that_is_written_slowly_does_not_replace_a_newer_one() {
        let jobs = tempfile::tempdir().expect("a directory");
        let job = job_in(jobs.path());
        let (last, (begins, begun), (go_on, slow)) = (Mutex::default(), mpsc::channel(), mpsc::channel());
        let write = |record: &JobRecord| {
            *last.lock() = Some(record.stop_request());
            Ok(())
        };
        std::thread::scope(|scope| {
            let (job, write) = (&job, &write);
            scope.spawn(move || {
                job.write_record(|record| {
                    begins.send(()).expect("the test waits");
                    slow.recv().expect("the test lives");
                    write(record)
                })
            });
            begun.recv().expect("it writes");
            assert!(job.stop(true));
            let newer = scope.spawn(move || job.write_record(write));
            // Time enough for it to be written first.
            std::thread::sleep(Duration::from_millis(200));
            go_on.send(()).expect("it waits");
            newer.join().expect("no panic").expect("written");
        });
        assert_eq!(last.into_inner(), Some(StopRequest::Now));
    }
}
