//! Epilog: releases what a job named.

use anyhow::Result;

use super::ProvisionArgs;
use crate::publications::unpublish_all;
use crate::runtime;

/// Releases what the job named. A job that named nothing is left alone.
pub fn run(args: &ProvisionArgs) -> Result<()> {
    let job = args.jobs.job()?;
    // First, so that the watcher stops asking. What the job's user made of the state is no reason to leave the rest.
    let ended = job.end();
    if matches!(ended, Ok(false)) && !job.exists() {
        return Ok(());
    }
    let client = args.publisher.client()?;
    runtime::block_on(async { Ok(unpublish_all(&client, &job.key_prefix()).await?) })?;
    ended?;
    job.remove()
}
