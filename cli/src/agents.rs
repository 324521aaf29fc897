//! The agents of this machine, found by the mounts that they serve and at the node agent's socket.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use bdnfs::timeout::within;
use bdnfs_agent::api::AgentStatus;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::socket;
use bdnfs_fs::mounts;
use tokio::task::JoinSet;

use crate::probe;
use crate::text;

/// The time in which an agent must answer with its status, from memory: one that takes longer is stopped or stuck.
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
    let answer = match within(QUERY_TIMEOUT, Client::new(&socket).status()).await {
        Some(Err(ClientError::NotRunning(_))) => return None,
        Some(answer) => answer.map_err(|error| text::line(&error.into())),
        None => Err(unresponsive(&socket)),
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn query_by_a_command_that_was_stopped_for_a_while_gives_no_agent_up() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).expect("bound");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            assert_ne!(stream.read(&mut [0; 1000]).await.expect("a request"), 0);
            // As when the command is stopped: nobody polls, and time goes by.
            tokio::time::advance(Duration::from_secs(30)).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        });
        let (_, answer) = query_one(path).await.expect("an agent");
        let error = answer.expect_err("it hangs up");
        assert!(error.contains("ended before it responded"), "{error}");
    }
}
