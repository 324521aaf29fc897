//! `bdnfs agent --check`: the state of the running agent, for probes. Unlike `bdnfs status` it touches no mount and no disk.

use std::path::PathBuf;

use anyhow::{Context, Result};
use bdnfs_agent::api::client::Client;

use crate::runtime;

/// The state to check for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AgentState {
    /// It answers
    Live,
    /// What was mounted before it started is back
    Ready,
}

/// Succeeds if the agent that listens at `socket` is in `state`.
pub fn run(socket: PathBuf, state: AgentState) -> Result<()> {
    let (client, is_ready) = (Client::new(socket), state == AgentState::Ready);
    let said = if is_ready { "the agent is not ready" } else { "the agent does not respond" };
    runtime::block_on(async { client.check_health(is_ready).await.context(said) })
}
