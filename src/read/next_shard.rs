//! Read-ahead across shards: as a loader comes to the end of one shard of a model, the beginning of the next is on its way.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use tokio::runtime::Handle;

use super::Reader;

/// The number of shards that one window may reach into: more than one only where they are small.
const MAX_SHARDS_AHEAD: usize = 4;

/// The shard that follows an open one, opened when the read-ahead first comes to it.
#[derive(Debug)]
pub(crate) struct NextShard {
    runtime: Handle,
    /// Its reader, as long as the shard before it is open: with the last one, what arrived would leave the memory. `None` where
    /// it can't be opened, which whoever reads it is told.
    reader: LazyLock<Option<Reader>, Box<dyn FnOnce() -> Option<Reader> + Send>>,
    /// The number of its bytes that were asked for: what the cache could not store is not fetched again before somebody reads it.
    asked: AtomicU64,
}

impl NextShard {
    /// The shard that `open` opens on a blocking thread of `runtime`.
    pub fn new(runtime: Handle, open: impl FnOnce() -> Option<Reader> + Send + 'static) -> Self {
        Self { runtime, reader: LazyLock::new(Box::new(open)), asked: AtomicU64::new(0) }
    }

    /// Starts to fetch its first `bytes` bytes. Waits for nothing, not for the local disk either.
    pub fn start_prefetch(self: Arc<Self>, bytes: u64) {
        self.runtime.clone().spawn_blocking(move || self.prefetch(bytes, MAX_SHARDS_AHEAD));
    }

    /// Starts to fetch the first `bytes` bytes of this and the following shards, of `shards` at the most. Touches the local disk.
    pub fn prefetch(&self, bytes: u64, shards: usize) {
        if let Some(left) = shards.checked_sub(1)
            && let Some(reader) = &*self.reader
        {
            reader.prefetch_start(self.asked.fetch_max(bytes, Relaxed), bytes, left);
        }
    }
}
