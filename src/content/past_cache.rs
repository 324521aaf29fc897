//! Past the cache: blocks that the cache's disk has and does not give are fetched, and not stored there.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::block::{self, Arrival};
use crate::error::{Error, Kind, Result};

use super::Content;

/// The fetches under way past the cache, each shared by all who wait for its block.
#[derive(Debug, Default)]
pub(super) struct PastCacheFetches(Mutex<HashMap<u64, Weak<OnceCell<Bytes>>>>);

impl PastCacheFetches {
    /// The fetch of block `index`.
    fn of(&self, index: u64) -> Arc<OnceCell<Bytes>> {
        let mut fetches = self.0.lock();
        if let Some(fetch) = fetches.get(&index).and_then(Weak::upgrade) {
            return fetch;
        }
        fetches.retain(|_, fetch| fetch.strong_count() > 0);
        let fetch = Arc::default();
        fetches.insert(index, Arc::downgrade(&fetch));
        fetch
    }
}

impl Content {
    /// Fetches block `index`, which the cache's disk has and does not give, once for all who wait for it.
    ///
    /// # Errors
    /// Those of the ladder; [`Kind::Disk`] where the server may have another version of it by now, and can't tell.
    pub(super) async fn fetch_past_cache(&self, index: u64) -> Result<Bytes> {
        if self.is_unconditional() {
            let text = "cannot be read from the cache, and may have changed at the server";
            return Err(Error::new(Kind::Disk, format!("{}: {text}", self.blob)));
        }
        // Who waits for one that fails tries it next, in the rest of its own time.
        self.past_cache.of(index).get_or_try_init(|| self.fetch_unstored(index)).await.cloned()
    }

    async fn fetch_unstored(&self, index: u64) -> Result<Bytes> {
        let (len, known) = (block::len(self.blob.size, index), self.blob.checks.as_ref());
        let known = known.and_then(|checks| checks.get(index as usize));
        let keep = |arrival: Arrival| arrival.verify(known).map(|verified| verified.bytes().clone());
        let bytes = self.fetch_for_reader(vec![index].into(), len, keep).await?;
        self.resources.recent_blocks.put_only_copy(self.blob.key, index, bytes.clone());
        Ok(bytes)
    }
}
