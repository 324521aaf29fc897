//! Starting a daemon of its own process, and learning whether it came up.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow};
use bdnfs::error::Kind;
use bdnfs_agent::api::Failure;
use bdnfs_agent::cache::{self, CacheConfig};

use crate::access::SECRET_VARIABLES;
use crate::secrets;

/// What a detached daemon writes to its parent once it listens; anything else is a [`Failure`].
pub const READY: &str = "ready";

/// What became of it.
#[derive(Debug)]
pub enum Spawned {
    /// It listens.
    Ready,
    /// Another daemon has the cache, or is to have it.
    Busy(Failure),
}

/// Starts a daemon for `cache`, detached from this process, and waits until it listens or has failed.
pub fn spawn(cache: &CacheConfig, verbose: u8) -> Result<Spawned> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bdnfs").arg("daemon").arg("--cache-dir").arg(&cache.dir);
    if let Some(size) = cache.size {
        command.arg("--cache-size").arg(size.to_string());
    }
    command.args(std::iter::repeat_n("--verbose", verbose.into()));
    for variable in SECRET_VARIABLES {
        command.env_remove(variable);
    }
    for (variable, _) in std::env::vars_os() {
        if variable.as_encoded_bytes().starts_with(secrets::PREFIX.as_bytes()) {
            command.env_remove(variable);
        }
    }
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(cache::open_log(&cache.log())?);
    let mut child = command.spawn().context("cannot start the daemon")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("cannot hear from the daemon")?;
    }
    if line.trim_end() == READY {
        return Ok(Spawned::Ready);
    }
    child.wait().context("cannot wait for the daemon")?;
    match serde_json::from_str::<Failure>(&line) {
        Ok(failure) if failure.is(Kind::Busy) => Ok(Spawned::Busy(failure)),
        Ok(failure) => Err(failure.into()),
        Err(_) => Err(anyhow!("the daemon ended before it was ready; see {}", cache.log().display())),
    }
}
