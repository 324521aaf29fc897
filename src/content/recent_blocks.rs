//! Recent blocks: what arrived for readers and for other nodes, kept in memory for a while.
//!
//! A reader comes in pieces smaller than a block, and the window brings blocks before it comes: with these it has each
//! from memory instead of from the disk that they are just being written to, and fetches each once even while that disk
//! is full or out of order. What other nodes turn to this one for they all want at about the same time: it is kept for them, too,
//! and not read from the disk for each. There is one such store for all contents, so that its bound holds for any number of files.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::blob::Key;
use crate::block::BLOCK;

/// The number of blocks that are kept: 64 MiB, the widest window of one reader, a share for each of a few dozen random ones, and
/// small beside the budget for flights.
const MAX_BLOCKS: usize = 64;

/// One tenant's view of a shared LRU of recently received blocks. It has blocks that arrived for readers and were not read to
/// their ends yet. Tenants share its limit, and no block.
#[derive(Debug, Default)]
pub struct RecentBlocks {
    blocks: Arc<Mutex<VecDeque<RecentBlock>>>,
    tenant: u64,
}

/// A tenant's number, and the key of a blob of it.
type TenantKey = (u64, Key);

#[derive(Debug)]
struct RecentBlock {
    key: TenantKey,
    index: u64,
    bytes: Bytes,
    /// The cache could not take it: there is no other copy.
    only: bool,
}

impl RecentBlocks {
    /// A view of the same blocks for the tenant with this number.
    pub fn of(&self, tenant: u64) -> Self {
        Self { blocks: self.blocks.clone(), tenant }
    }

    /// Keeps block `index` of `key`, in the place of the oldest.
    pub fn put(&self, key: Key, index: u64, bytes: Bytes) {
        let (key, mut blocks) = ((self.tenant, key), self.blocks.lock());
        blocks.retain(|kept| !kept.is(&key, index));
        if blocks.len() == MAX_BLOCKS {
            blocks.pop_front();
        }
        blocks.push_back(RecentBlock { key, index, bytes, only: false });
    }

    /// Keeps a block that the cache could not take. True when it is the only one of its blob.
    pub fn put_only_copy(&self, key: Key, index: u64, bytes: Bytes) -> bool {
        self.put(key, index, bytes);
        let (key, mut blocks) = ((self.tenant, key), self.blocks.lock());
        let first = !blocks.iter().any(|kept| kept.key == key && kept.only);
        if let Some(kept) = blocks.iter_mut().find(|kept| kept.is(&key, index)) {
            kept.only = true;
        }
        first
    }

    /// The bytes `range` of `key`, in order, if all of them are still kept. What was read to its end, and is in the cache
    /// too, is not kept any longer.
    pub fn read(&self, key: &Key, range: &Range<u64>) -> Option<Vec<Bytes>> {
        let pieces = self.peek(key, range)?;
        let key = (self.tenant, *key);
        self.blocks.lock().retain(|kept| kept.only || !kept.is_read_by(&key, range));
        Some(pieces)
    }

    /// Reads blocks for another node: they stay, for the next one that asks.
    pub fn peek(&self, key: &Key, range: &Range<u64>) -> Option<Vec<Bytes>> {
        let (key, blocks) = (&(self.tenant, *key), self.blocks.lock());
        let mut pieces = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let index = at / BLOCK;
            let bytes = &blocks.iter().find(|kept| kept.is(key, index))?.bytes;
            let (start, end) = (at - index * BLOCK, (range.end - index * BLOCK).min(bytes.len() as u64));
            if start >= end {
                return None;
            }
            pieces.push(bytes.slice(start as usize..end as usize));
            at = index * BLOCK + end;
        }
        Some(pieces)
    }

    /// Forgets the blocks of `key`.
    pub fn forget(&self, key: &Key) {
        let key = (self.tenant, *key);
        self.blocks.lock().retain(|kept| kept.key != key);
    }
}

impl RecentBlock {
    fn is(&self, key: &TenantKey, index: u64) -> bool {
        self.index == index && self.key == *key
    }

    /// Whether a read of `range` has its last byte.
    fn is_read_by(&self, key: &TenantKey, range: &Range<u64>) -> bool {
        let end = self.index * BLOCK + self.bytes.len() as u64;
        range.start < end && end <= range.end && self.key == *key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key::origin("test://", b"file", &n.to_le_bytes())
    }

    #[test]
    fn recent_blocks_beyond_the_limit_drop_the_oldest() {
        let recent = RecentBlocks::default();
        for n in 0..100 {
            assert!(recent.put_only_copy(key(n), 0, Bytes::from_static(b"old")));
            assert!(!recent.put_only_copy(key(n), 1, Bytes::new()));
        }
        assert!(!recent.put_only_copy(key(99), 0, Bytes::from_static(b"new")));
        assert_eq!(recent.read(&key(99), &(0..3)), Some(vec![Bytes::from_static(b"new")]));
        assert_eq!(recent.read(&key(10), &(0..3)), None);
        assert_eq!(recent.blocks.lock().len(), MAX_BLOCKS);
    }

    #[test]
    fn recent_blocks_of_one_tenant_are_invisible_to_another() {
        let alice = RecentBlocks::default().of(1);
        let bob = alice.of(2);
        alice.put(key(0), 0, Bytes::from_static(b"alice"));
        assert_eq!(bob.read(&key(0), &(0..5)), None);
        bob.put(key(0), 0, Bytes::from_static(b"bob"));
        bob.forget(&key(0));
        assert_eq!(alice.read(&key(0), &(0..3)), Some(vec![Bytes::from_static(b"ali")]));
    }

    #[test]
    fn recent_block_is_kept_until_read_to_its_end_or_forgotten() {
        let recent = RecentBlocks::default();
        let block = |fill: u8| Bytes::from(vec![fill; BLOCK as usize]);
        recent.put(key(0), 0, block(0));
        recent.put(key(0), 1, block(1));
        recent.put_only_copy(key(0), 2, block(2));
        let read = |range: Range<u64>| recent.read(&key(0), &range);
        for _ in 0..2 {
            assert_eq!(recent.peek(&key(0), &(0..BLOCK)).expect("kept for the next"), [block(0)]);
        }
        assert_eq!(read(0..BLOCK - 1).expect("kept"), [block(0).slice(1..)]);
        assert_eq!(read(5..BLOCK + 5).expect("kept"), [block(0).slice(5..), block(1).slice(..5)]);
        assert_eq!(read(0..1), None, "it was read to its end");
        for _ in 0..2 {
            assert_eq!(
                read(2 * BLOCK..3 * BLOCK).expect("kept").concat(),
                block(2),
                "there is no other copy"
            );
        }
        assert_eq!(read(BLOCK..4 * BLOCK), None, "never a part");
        recent.forget(&key(0));
        assert_eq!(read(BLOCK..BLOCK + 1), None);
    }
}
