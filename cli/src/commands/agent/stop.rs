//! `bdnfs agent --stop`: stops the running agent.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};

use crate::runtime;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use bdnfs_agent::api::client::{Client, ClientError};

/// Stops the agent that listens at `socket` and returns when it has exited.
pub fn run(socket: PathBuf) -> Result<()> {
    let client = Client::new(&socket);
    let agent = match runtime::block_on(async { Ok(client.status().await) })? {
        Ok(status) => status.agent,
        Err(ClientError::NotRunning(_)) => {
            bail!("no agent is running: nothing listens at {}", socket.display())
        }
        Err(error) => return Err(error.into()),
    };
    if !agent.persistent {
        bail!(
            "{}: process {} is an on-demand agent, which exits with its last mount; unmount its mounts instead",
            socket.display(),
            agent.pid
        );
    }
    let pid =
        i32::try_from(agent.pid).ok().and_then(Pid::from_raw).context("the agent reports no process id")?;
    // Opened before the request: afterwards the id may be another process's.
    let process = pidfd_open(pid, PidfdFlags::empty()).context("cannot wait for the agent")?;
    runtime::block_on(async { Ok(client.stop_agent().await?) })?;
    poll(&mut [PollFd::new(&process, PollFlags::IN)], None).context("cannot wait for the agent")?;
    Ok(())
}
