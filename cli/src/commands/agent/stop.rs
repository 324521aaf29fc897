//! `bdnfs agent --stop`: everything is taken down.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::runtime;

/// Asks the agent that listens at `socket`, and returns when it has ended.
pub fn run(socket: PathBuf) -> Result<()> {
    let client = Client::new(&socket);
    let daemon = match runtime::block_on(async { Ok(client.status().await) })? {
        Ok(status) => status.daemon,
        Err(ClientError::NotRunning(_)) => bail!("no agent listens at {}", socket.display()),
        Err(trouble) => return Err(trouble.into()),
    };
    if !daemon.agent {
        bail!("process {} at {} is no agent: it ends with its last mount", daemon.pid, socket.display());
    }
    let pid = i32::try_from(daemon.pid).ok().and_then(Pid::from_raw).context("the agent has no number")?;
    // Before it is asked: afterwards the number may be another process's.
    let process = pidfd_open(pid, PidfdFlags::empty()).context("cannot wait for the agent")?;
    runtime::block_on(async { Ok(client.stop_agent().await?) })?;
    poll(&mut [PollFd::new(&process, PollFlags::IN)], None).context("cannot wait for the agent")?;
    Ok(())
}
