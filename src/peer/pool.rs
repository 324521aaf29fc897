//! Pool: streams that are kept while nobody uses them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::stream::Stream;

/// How many to one peer are kept: as many as a stage has at once, which may all be to one owner, and readers' beside them.
const KEPT: usize = 64;

/// For how long: less than a peer has patience.
const IDLE: Duration = Duration::from_secs(60);

/// To whom a stream is, where, and as whom: in which state of the identity.
pub(super) type To = (String, SocketAddr, u64);

/// The streams that nobody uses.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Idle>);

#[derive(Debug, Default)]
struct Idle {
    /// Those that were used last at the end of each, with when that was.
    streams: HashMap<To, Vec<(Instant, Stream)>>,
    /// Whether somebody will look for those that have been there for too long.
    watched: bool,
}

impl Pool {
    /// One to `to`, which its peer may have closed meanwhile.
    pub(super) fn take(&self, to: &To) -> Option<Stream> {
        self.idle().streams.get_mut(to)?.pop().map(|(_, stream)| stream)
    }

    /// Keeps one to `to`. Called on a runtime.
    pub(super) fn keep(self: &Arc<Self>, to: To, stream: Stream) {
        let mut idle = self.idle();
        let kept = idle.streams.entry(to).or_default();
        if kept.len() < KEPT {
            kept.push((Instant::now(), stream));
        }
        if !std::mem::replace(&mut idle.watched, true) {
            tokio::spawn(watch(Arc::downgrade(self)));
        }
    }

    /// Closes those that have been there for too long. Whether there are others.
    fn close(&self) -> bool {
        let mut idle = self.idle();
        idle.streams.retain(|_, kept| {
            kept.retain(|(since, _)| since.elapsed() < IDLE);
            !kept.is_empty()
        });
        idle.watched = !idle.streams.is_empty();
        idle.watched
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        // What a panic may leave is a list all the same.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes what nobody uses for too long, as long as there is something.
async fn watch(pool: Weak<Pool>) {
    loop {
        sleep(IDLE / 2).await;
        if !pool.upgrade().is_some_and(|pool| pool.close()) {
            return;
        }
    }
}
