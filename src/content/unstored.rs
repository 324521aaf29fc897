//! Blocks that the cache could not take, kept in memory for a while.
//!
//! A reader comes in pieces smaller than a block; with these it fetches each block once, even while the cache's disk is
//! full or out of order. There is one such store for all contents, so that its bound holds for any number of files.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::blob::Key;

/// How many blocks are kept: 64 MiB, a share for each of a few dozen readers, and small beside the budget for flights.
const MOST: usize = 64;

/// The blocks that could not be stored, the newest of them.
#[derive(Debug, Default)]
pub struct Unstored {
    blocks: Mutex<VecDeque<(Key, u64, Bytes)>>,
}

impl Unstored {
    /// Keeps block `index` of `key`, in the place of the oldest. True when it is the only one of its blob.
    pub fn put(&self, key: Key, index: u64, bytes: Bytes) -> bool {
        let mut blocks = self.lock();
        blocks.retain(|(k, i, _)| (k, i) != (&key, &index));
        if blocks.len() == MOST {
            blocks.pop_front();
        }
        let first = blocks.iter().all(|(k, ..)| *k != key);
        blocks.push_back((key, index, bytes));
        first
    }

    /// Block `index` of `key`, if it is still kept.
    pub fn get(&self, key: &Key, index: u64) -> Option<Bytes> {
        self.lock().iter().find(|(k, i, _)| (k, i) == (key, &index)).map(|(.., bytes)| bytes.clone())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Key, u64, Bytes)>> {
        // A panic in between leaves whole entries.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_whosever_they_are() {
        let unstored = Unstored::default();
        let key = |n: u64| Key::origin("test://", b"file", &n.to_le_bytes());
        for n in 0..100 {
            assert!(unstored.put(key(n), 0, Bytes::from_static(b"old")));
            assert!(!unstored.put(key(n), 1, Bytes::new()));
        }
        assert!(!unstored.put(key(99), 0, Bytes::from_static(b"new")));
        assert_eq!(unstored.get(&key(99), 0).as_deref(), Some(&b"new"[..]));
        assert_eq!(unstored.get(&key(10), 0), None);
        assert_eq!(unstored.lock().len(), MOST);
    }
}
