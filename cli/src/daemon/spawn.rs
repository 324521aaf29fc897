//! Starting a daemon of its own process, and learning whether it came up.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow};
use bdnfs::error::Kind;

use super::READY;
use crate::access::SECRET_VARIABLES;
use crate::cache::Cache;
use crate::control::api::Failure;
use crate::secrets;

/// The log starts anew beyond this: weeks of what a daemon normally says, and quick to look through.
const LONGEST_LOG: u64 = 10 << 20;

/// What became of it.
#[derive(Debug)]
pub enum Spawned {
    /// It listens.
    Ready,
    /// Another daemon has the cache, or is to have it.
    Busy(Failure),
}

/// Starts a daemon for `cache`, detached from this process, and waits until it listens or has failed.
pub fn spawn(cache: &Cache, verbose: u8) -> Result<Spawned> {
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
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log(&cache.log())?);
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

/// The log of what is detached, at `path`.
pub fn log(path: &Path) -> Result<File> {
    let open = || {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        if file.metadata()?.len() > LONGEST_LOG {
            file.set_len(0)?;
        }
        Ok::<_, std::io::Error>(file)
    };
    open().with_context(|| format!("cannot write the daemon's log {}", path.display()))
}
