//! The watcher of an on-demand agent: an fd store that holds nothing, and that continues the agent when a signal has stopped it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::task::blocking;

use super::{FDSTORE_RESTART_PAUSE, FdStore};

/// The interval at which it is checked whether a watcher is needed. A mount that ends before costs none.
const WATCHER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The pause before a watcher that could not be started is tried again: the fd store of another agent may have the cache for
/// minutes.
const WATCHER_RETRY_PAUSE: Duration = Duration::from_secs(30);

/// Has another process continue this agent, that of the cache in the directory `cache`, when a signal has stopped it. The
/// process is started once it `is_needed`, and ends with the agent. Never ends.
pub async fn continue_when_stopped(cache: &Path, is_needed: impl Fn() -> bool) {
    // It is sent no heartbeats: to be killed would end the mounts, since no agent takes over from this one.
    let watcher = Arc::new(FdStore::empty(cache));
    loop {
        tokio::select! {
            biased;
            () = watcher.await_loss() => tokio::time::sleep(FDSTORE_RESTART_PAUSE).await,
            () = tokio::time::sleep(WATCHER_CHECK_INTERVAL) => {}
        }
        if is_needed() {
            let starting = Arc::clone(&watcher);
            if let Err(error) = blocking(move || starting.connect_or_start()).await {
                tracing::debug!("no process continues this agent if a signal stops it: {error}");
                tokio::time::sleep(WATCHER_RETRY_PAUSE).await;
            }
        }
    }
}
