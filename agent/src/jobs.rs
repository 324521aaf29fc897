//! Jobs: each mirrors its sources, mounts and stages them, and runs its commands when all is local.
//!
//! ```text
//! JobQueue ── Job, JobRecord: what each is, and what a restart must not forget
//!   └─ JobRun ── Deployment: mirror, mount, admit, stage ──> supervisor process ──> commands ──> exit
//!        └─ JobServices: the parts of the agent that all jobs use
//! ```
//!
//! A job is a task here, a directory in `<cache>/jobs` and a record in `<cache>/state/jobs`. Its commands run below a
//! [`supervisor`] of their own, so they outlive this process: the next agent finds them by what lies in the directory, and
//! goes on where this one ended.

mod cache_updates;
mod deployment;
mod earlier_jobs;
mod event_file;
mod job;
mod job_audit;
mod job_caches;
mod job_files;
mod job_run;
mod job_saver;
mod job_services;
mod job_space;
mod job_volume;
mod loaded_checkpoints;
mod mount_requests;
mod process;
mod queue;
mod record;
mod run;
mod stop_request;
pub mod supervisor;
mod validation;
mod volume_limits;

pub use job_caches::check_cache_places;
pub use queue::JobQueue;
#[cfg(feature = "fuzz")]
pub(crate) use record::JobRecord;
