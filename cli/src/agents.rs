//! Finding daemons: by the mounts that they serve, and where an agent listens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use bdnfs_agent::api::AgentStatus;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::socket;
use bdnfs_fs::mounts;

use crate::pulse;
use crate::text;

/// What each daemon of this machine answers, by its socket; with `cache` only the daemon of that. What does not answer is
/// told in a line.
pub async fn daemons(cache: Option<&Path>) -> Result<BTreeMap<PathBuf, Result<AgentStatus, String>>> {
    let mut sockets = Vec::new();
    match cache {
        Some(cache) => sockets.push(socket::of_cache(cache)),
        None => {
            let mounts = mounts::list()?;
            let pulses = pulse::all(mounts.iter().map(|mounted| mounted.mountpoint.as_path()));
            sockets.extend(pulses.iter().filter_map(|pulse| pulse.socket().cloned()));
            sockets.extend(socket::well_known());
        }
    }
    asked(sockets).await
}

/// What the daemons at `sockets` answer; where nobody listens there is none.
pub async fn asked(sockets: Vec<PathBuf>) -> Result<BTreeMap<PathBuf, Result<AgentStatus, String>>> {
    let mut daemons = BTreeMap::new();
    for socket in sockets {
        if daemons.contains_key(&socket) {
            continue;
        }
        match Client::new(&socket).status().await {
            Err(ClientError::NotRunning(_)) => {}
            answer => drop(daemons.insert(socket, answer.map_err(|trouble| text::line(&trouble.into())))),
        }
    }
    Ok(daemons)
}
