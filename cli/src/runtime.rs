//! The runtimes of commands: those of the agent, with the errors of commands.

use anyhow::Result;

/// Runs `work` on this thread.
pub fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    bdnfs_agent::runtime::block_on(work)
}

/// Runs `work`, that of an agent, on as many threads as there are processors.
pub fn block_on_threads<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    bdnfs_agent::runtime::block_on_threads(work)
}
