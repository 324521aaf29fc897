//! The agents of this machine, found by the mounts that they serve and at the node agent's socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use bdnfs_agent::api::AgentStatus;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::socket;
use bdnfs_fs::mounts;

use crate::probe;
use crate::text;

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

/// Queries the status of the agents at `sockets`; a socket without an agent has no entry.
pub async fn query(sockets: Vec<PathBuf>) -> Result<BTreeMap<PathBuf, Result<AgentStatus, String>>> {
    let mut agents = BTreeMap::new();
    for socket in sockets {
        if agents.contains_key(&socket) {
            continue;
        }
        match Client::new(&socket).status().await {
            Err(ClientError::NotRunning(_)) => {}
            answer => drop(agents.insert(socket, answer.map_err(|error| text::line(&error.into())))),
        }
    }
    Ok(agents)
}
