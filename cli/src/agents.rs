//! The agents of this machine, found by the mounts that they serve and at the node agent's socket.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use bdnfs_agent::api::AgentStatus;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::socket;
use bdnfs_fs::mounts;
use tokio::task::JoinSet;

use crate::probe;
use crate::text;

/// How long an agent may take to answer with its status, from memory: one that takes longer is stopped or stuck.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Queries the status of each agent of this machine, or only of that of `cache`, by socket. One that does not answer has a
/// message.
pub async fn query_all(cache: Option<&Path>) -> Result<BTreeMap<PathBuf, Result<AgentStatus, String>>> {
    let mut sockets = Vec::new();
    match cache {
        Some(cache) => sockets.push(socket::of_cache(cache)),
        None => {
            let mounts = mounts::list()?;
            let healths = probe::mounts(mounts.iter().map(|mounted| mounted.mountpoint.as_path()));
            sockets.extend(healths.iter().filter_map(|probe| probe.socket().cloned()));
            sockets.extend(socket::well_known());
        }
    }
    query(sockets).await
}

/// Queries the status of the agents at `sockets`, all at once; a socket without an agent has no entry.
pub async fn query(sockets: Vec<PathBuf>) -> Result<BTreeMap<PathBuf, Result<AgentStatus, String>>> {
    let sockets: BTreeSet<PathBuf> = sockets.into_iter().collect();
    let mut queries: JoinSet<_> = sockets.into_iter().map(query_one).collect();
    let mut agents = BTreeMap::new();
    while let Some(answer) = queries.join_next().await {
        agents.extend(answer?);
    }
    Ok(agents)
}

/// Queries the status of the agent at `socket`; `None` where there is none.
async fn query_one(socket: PathBuf) -> Option<(PathBuf, Result<AgentStatus, String>)> {
    let answer = match tokio::time::timeout(QUERY_TIMEOUT, Client::new(&socket).status()).await {
        Ok(Err(ClientError::NotRunning(_))) => return None,
        Ok(answer) => answer.map_err(|error| text::line(&error.into())),
        Err(_) => Err(unresponsive(&socket)),
    };
    Some((socket, answer))
}

/// The error that the agent at `socket` does not answer, with its process id: its lock lies beside its socket.
fn unresponsive(socket: &Path) -> String {
    let locks = [socket.with_added_extension("lock"), socket.with_file_name("lock")];
    let owner = locks.iter().find_map(|lock| std::fs::read_to_string(lock).ok());
    let process = owner.map_or(String::new(), |pid| format!(" (process {})", pid.trim()));
    format!(
        "the agent at {}{process} does not respond within {} s",
        socket.display(),
        QUERY_TIMEOUT.as_secs()
    )
}
