//! TaskProlog: the gate of a job. It runs as the job's user, and what it prints sets the environment of the task.

use std::time::Duration;

use anyhow::{Result, bail};
use bdnfs_agent::api::publication::PublicationState;

use super::comment;
use super::job_directory::SlurmJobDirectory;
use crate::{output, text};

/// The interval at which the state is read, a file in memory.
const STATE_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Waits until all that the job named is local, and exports where it is.
pub fn run(job: &SlurmJobDirectory) -> Result<()> {
    let result = wait(job);
    if let Err(error) = &result {
        // Slurm shows this line in the output of the task.
        let _ = output::print_line(&format!("print bdnfs: {}", text::line(error)));
    }
    result
}

fn wait(job: &SlurmJobDirectory) -> Result<()> {
    loop {
        // Before the state, which is the last that it writes.
        let is_abandoned = job.watcher_is_gone();
        let Some(state) = job.state()? else {
            if comment::of_job().is_some() {
                bail!(
                    "the job names sources, and nothing stages them: is `bdnfs slurm prolog` run as Prolog?"
                );
            }
            return Ok(());
        };
        match state.state {
            PublicationState::Staging if is_abandoned => bail!(
                "the process that stages the job's sources was killed, perhaps for memory; submit the job again"
            ),
            PublicationState::Staging => std::thread::sleep(STATE_POLL_INTERVAL),
            PublicationState::Failed => bail!("{}", state.message),
            PublicationState::Published => {
                for (name, path) in state.sources {
                    output::print_line(&format!("export {}={}", comment::variable(&name), path.display()))?;
                }
                return Ok(());
            }
        }
    }
}
