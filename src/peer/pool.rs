//! Pool: streams that are kept while nobody uses them.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use super::stream::Stream;

/// How many are kept: as many as some stages have at once. Each has 68 KiB of buffers.
const KEPT: usize = 256;

/// For how long, and how often that is looked at: together less than a peer has patience.
pub(super) const IDLE: Duration = Duration::from_secs(45);
const LOOK: Duration = Duration::from_secs(15);

/// To whom a stream is, where, and as whom: in which state of the identity.
pub(super) type To = (String, SocketAddr, u64);

/// The streams that nobody uses.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Idle>);

#[derive(Debug, Default)]
struct Idle {
    /// The one that was used last at the end, each with when that was.
    streams: Vec<(To, Instant, Stream)>,
    /// Whether somebody will look for those that have been there for too long.
    watched: bool,
}

impl Pool {
    /// One to `to`, which its peer may have closed meanwhile.
    pub(super) fn take(&self, to: &To) -> Option<Stream> {
        let mut idle = self.idle();
        let at = idle.streams.iter().rposition(|(other, ..)| other == to)?;
        let (_, since, stream) = idle.streams.remove(at);
        (since.elapsed() < IDLE).then_some(stream)
    }

    /// Keeps one to `to`, unless something is left on it that nobody has asked for. Called on a runtime.
    pub(super) fn keep(self: &Arc<Self>, to: To, stream: Stream) {
        if !stream.is_clear() {
            return;
        }
        let mut idle = self.idle();
        let oldest = (idle.streams.len() == KEPT).then(|| idle.streams.remove(0));
        idle.streams.push((to, Instant::now(), stream));
        if !std::mem::replace(&mut idle.watched, true) {
            tokio::spawn(watch(Arc::downgrade(self)));
        }
        drop((idle, oldest));
    }

    /// Closes those that have been there for too long. Whether there are others.
    fn close(&self) -> bool {
        let mut idle = self.idle();
        idle.streams.retain(|(_, since, _)| since.elapsed() < IDLE);
        idle.watched = !idle.streams.is_empty();
        idle.watched
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        // What a panic may leave is a list all the same.
        self.0.lock()
    }
}

/// Closes what nobody uses for too long, as long as there is something.
async fn watch(pool: Weak<Pool>) {
    loop {
        sleep(LOOK).await;
        if !pool.upgrade().is_some_and(|pool| pool.close()) {
            return;
        }
    }
}
