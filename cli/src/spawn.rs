//! Starts an agent in a process of its own and waits until it is ready.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use bdnfs::error::Kind;
use bdnfs_agent::api::Failure;
use bdnfs_agent::cache::{self, CacheConfig};

use crate::access::SECRET_VARIABLES;
use crate::secrets;

/// The time that an agent may take to exit before its cache is given up: it makes its data durable first.
pub const AGENT_EXIT_TIMEOUT: Duration = Duration::from_secs(30);
/// The time to wait before its socket and lock are tried again.
pub const AGENT_START_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The message of a detached agent to its parent once it listens; anything else is a [`Failure`].
pub const READY_MESSAGE: &str = "ready";

/// The outcome of starting an agent.
#[derive(Debug)]
pub enum SpawnOutcome {
    /// The agent listens.
    Ready,
    /// Another agent owns the cache, or is about to.
    CacheInUse(Failure),
}

/// Starts an agent for `cache`, detached from this process, and waits until it listens or has failed.
pub fn spawn(cache: &CacheConfig, verbose: u8) -> Result<SpawnOutcome> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bdnfs").arg("daemon").arg("--cache-dir").arg(&cache.dir);
    if let Some(size) = cache.size {
        command.arg("--cache-size").arg(size.to_string());
    }
    if let Some(reserve) = cache.reserve {
        command.arg("--cache-reserve").arg(reserve.to_string());
    }
    command.args(std::iter::repeat_n("--verbose", verbose.into()));
    for variable in SECRET_VARIABLES {
        command.env_remove(variable);
    }
    for (variable, _) in std::env::vars_os() {
        if variable.as_encoded_bytes().starts_with(secrets::SECRET_VARIABLE_PREFIX.as_bytes()) {
            command.env_remove(variable);
        }
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(cache::open_log(&cache.dir)?);
    let mut child = command.spawn().context("cannot start the agent")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("cannot read from the agent")?;
    }
    if line.trim_end() == READY_MESSAGE {
        return Ok(SpawnOutcome::Ready);
    }
    child.wait().context("cannot wait for the agent")?;
    match serde_json::from_str::<Failure>(&line) {
        Ok(failure) if failure.is(Kind::Busy) => Ok(SpawnOutcome::CacheInUse(failure)),
        Ok(failure) => Err(failure.into()),
        Err(_) => Err(anyhow!("the agent exited before it was ready; see {}", cache.log().display())),
    }
}
