//! The contents in use: what all snapshots of an engine share of each blob.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::blob::{Blob, Key};
use crate::cache::removal::RemovalListener;
use crate::cache::removal_marks::Removal;
use crate::content::{Content, SharedResources};
use crate::fetch::Ladder;

/// The contents in use, so that all who use one blob share its flights.
#[derive(Debug, Default)]
pub struct Contents {
    live: Mutex<ContentTable>,
}

impl RemovalListener for Contents {
    fn blob_removed(&self, removal: &Removal, _: Option<&File>) {
        if let Some(content) = self.get(removal.key()) {
            content.reopen();
        }
    }
}

#[derive(Debug, Default)]
struct ContentTable {
    by_key: HashMap<Key, Weak<Content>>,
    /// The size at which dead entries are removed from the map.
    sweep_at: usize,
}

impl Contents {
    /// Waits, for the flights under way no longer than `limit`, until every blob of which nothing is missing any
    /// more is whole: durable, under its final name.
    pub(crate) async fn await_finished(&self, limit: Duration) {
        let live: Vec<_> = {
            let live = self.live.lock();
            live.by_key.values().filter_map(Weak::upgrade).collect()
        };
        let flying = live.iter().map(|content| content.await_flights());
        // Flights that are late are given up; their blocks that arrived stay.
        tokio::time::timeout(limit, join_all(flying)).await.ok();
        for content in live.iter().filter(|content| content.is_finishing()) {
            // A content that can't become whole has logged why; its blocks stay in its part.
            content.became_whole().await.ok();
        }
    }

    /// The content of `key`, if it is in use.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Content>> {
        self.live.lock().by_key.get(key).and_then(Weak::upgrade)
    }

    /// The content of `blob`, made if it is not in use. [`Content::open`] looks for it in the cache.
    pub(super) fn share(
        &self,
        blob: Blob,
        resources: &Arc<SharedResources>,
        ladder: &Arc<Ladder>,
    ) -> Arc<Content> {
        let mut live = self.live.lock();
        if let Some(content) = live.by_key.get(&blob.key).and_then(Weak::upgrade) {
            content.add_ladder(ladder);
            return content;
        }
        if live.by_key.len() >= live.sweep_at {
            live.by_key.retain(|_, content| content.strong_count() > 0);
            live.sweep_at = (live.by_key.len() * 2).max(1024);
        }
        let key = blob.key;
        let content = Content::new(blob, resources.clone(), ladder.clone());
        live.by_key.insert(key, Arc::downgrade(&content));
        content
    }
}
