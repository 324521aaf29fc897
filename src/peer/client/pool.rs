//! The pool of idle connections to peers.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use super::connection::PeerConnection;

/// The number of idle connections that are kept: as many as some stages have at once. Each has 68 KiB of buffers.
const MAX_IDLE_CONNECTIONS: usize = 256;

/// The time for which a connection may be idle, and the interval at which that is checked: together less than the idle timeout of
/// the listener.
const CONNECTION_IDLE_TIMEOUT: Duration = Duration::from_secs(45);
const POOL_SWEEP_INTERVAL: Duration = Duration::from_secs(15);

/// The key of a connection in the pool: the peer's id and address, and the version of this node's identity.
pub(super) type PoolKey = (String, SocketAddr, u64);

/// The idle connections.
#[derive(Debug, Default)]
pub(super) struct ConnectionPool(Mutex<IdleConnections>);

#[derive(Debug, Default)]
struct IdleConnections {
    /// Each with when it was last used, in that order.
    streams: Vec<(PoolKey, Instant, PeerConnection)>,
    /// Whether a task closes those that are idle for too long.
    watched: bool,
}

impl ConnectionPool {
    /// A connection for `to`, which its peer may have closed meanwhile.
    pub(super) fn take(&self, to: &PoolKey) -> Option<PeerConnection> {
        let mut idle = self.idle();
        let at = idle.streams.iter().rposition(|(other, ..)| other == to)?;
        let (_, since, stream) = idle.streams.remove(at);
        (since.elapsed() < CONNECTION_IDLE_TIMEOUT).then_some(stream)
    }

    /// Keeps a connection for `to`, unless it has unread bytes. Needs a runtime.
    pub(super) fn keep(self: &Arc<Self>, to: PoolKey, stream: PeerConnection) {
        if !stream.is_clear() {
            return;
        }
        let mut idle = self.idle();
        let oldest = (idle.streams.len() == MAX_IDLE_CONNECTIONS).then(|| idle.streams.remove(0));
        idle.streams.push((to, Instant::now(), stream));
        if !std::mem::replace(&mut idle.watched, true) {
            tokio::spawn(watch(Arc::downgrade(self)));
        }
        drop((idle, oldest));
    }

    /// Closes connections that were idle for too long. True while there are others.
    fn close(&self) -> bool {
        let mut idle = self.idle();
        idle.streams.retain(|(_, since, _)| since.elapsed() < CONNECTION_IDLE_TIMEOUT);
        idle.watched = !idle.streams.is_empty();
        idle.watched
    }

    fn idle(&self) -> MutexGuard<'_, IdleConnections> {
        // The list is valid even after a panic.
        self.0.lock()
    }
}

/// Closes connections that are idle for too long, until there is none.
async fn watch(pool: Weak<ConnectionPool>) {
    loop {
        sleep(POOL_SWEEP_INTERVAL).await;
        if !pool.upgrade().is_some_and(|pool| pool.close()) {
            return;
        }
    }
}
