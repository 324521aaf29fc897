//! Fragments: what a reader that jumps about in a large file needs of a block, fetched without the rest of it.
//!
//! A page at random costs a whole block where that must be verified before its first byte is delivered. Where nothing is known
//! to hold it against, a fragment is as good as the block: every request for either is conditional on the same version. Fragments
//! stay in a bounded memory, which all contents share, and are never stored: what is on the disk are blocks. A block of which
//! several fragments came is fetched whole, and so is one in which a sequence begins. So what is read at random for long becomes
//! local, no fragment comes twice, and at most a quarter of a file comes both ways.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use futures_util::future::try_join_all;
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use parking_lot::Mutex;

use crate::blob::{Blob, Key};
use crate::block::{self, Arrival, BLOCK, FRAGMENT};
use crate::cache::presence::BlockState;
use crate::error::{Kind, Result};
use crate::fetch::Wanted;
use crate::origin;

use super::Content;

/// The most memory that fragments occupy, in bytes: 512 of them, for the bytes beside a page that are read soon after it.
const MAX_FRAGMENT_BYTES: u64 = 32 << 20;

/// The number of fragments of a block that are fetched before all of it is: a quarter of it. From a near store, a fragment takes a
/// third of the time of a block, from a far one more: later, they would have cost more than the block, which is local from then on;
/// earlier, readers of a few pages here and there would fetch what nobody reads.
const MAX_FRAGMENTS_OF_BLOCK: u32 = 4;

/// The maximum number of blocks of a content that are remembered, in some MiB: more than have a fragment in memory, by far.
const MAX_REMEMBERED_BLOCKS: usize = 1 << 17;

/// The number of fragments of a whole block, a bit each in [`BlockFragments`].
const FRAGMENTS_PER_BLOCK: u64 = BLOCK / FRAGMENT;
const _: () = assert!(FRAGMENTS_PER_BLOCK == u16::BITS as u64);

/// A tenant's number, the key of a blob of it, and the index of a fragment.
type FragmentKey = (u64, Key, u64);

/// One tenant's view of a shared LRU of recent fragments. Tenants share its limit, and no fragment.
#[derive(Clone, Debug)]
pub struct RecentFragments {
    fragments: Cache<FragmentKey, Bytes>,
    tenant: u64,
}

impl Default for RecentFragments {
    fn default() -> Self {
        let fragments = Cache::builder()
            .max_capacity(MAX_FRAGMENT_BYTES)
            .weigher(|_, bytes: &Bytes| bytes.len() as u32)
            .eviction_policy(EvictionPolicy::lru())
            .build();
        Self { fragments, tenant: 0 }
    }
}

impl RecentFragments {
    /// A view of the same memory for the tenant with this number.
    pub fn of(&self, tenant: u64) -> Self {
        Self { fragments: self.fragments.clone(), tenant }
    }

    fn key(&self, blob: &Blob, fragment: u64) -> FragmentKey {
        (self.tenant, blob.key, fragment)
    }

    fn contains(&self, blob: &Blob, fragment: u64) -> bool {
        self.fragments.contains_key(&self.key(blob, fragment))
    }

    /// Forgets all fragments, as if others had come since.
    #[cfg(test)]
    pub(super) async fn forget_all(&self) {
        self.fragments.invalidate_all();
        self.fragments.run_pending_tasks().await;
    }
}

/// The fragments of a content that were fetched: by the indices of their blocks, for as long as it is open.
#[derive(Debug, Default)]
pub(super) struct FragmentHistory(Mutex<HashMap<u64, BlockFragments>>);

/// The fragments of one block, a bit each.
#[derive(Clone, Copy, Debug, Default)]
struct BlockFragments {
    asked: u16,
    arrived: u16,
}

impl FragmentHistory {
    /// The history of `blob`; `None` where all of it is fetched by blocks: these are verified before they are read, or the blob is
    /// when it is whole; or requests for a fragment are not conditional on one version, or not answered; or it is small.
    pub fn of(blob: &Blob) -> Option<Self> {
        let is_unverified = blob.checks.is_none() && blob.sha256.is_none();
        (is_unverified && blob.size > BLOCK && origin::has_strong_version(&blob.version)).then(Self::default)
    }

    /// Whether `fragment`, which is not in memory, is to be fetched without its block: it is on its way so, or it never was and few
    /// fragments of its block were. From then on it counts as asked for.
    fn ask(&self, fragment: u64) -> bool {
        let (block, bit) = place(fragment);
        let mut history = self.0.lock();
        if history.len() >= MAX_REMEMBERED_BLOCKS {
            // Their fragments have left the memory long ago.
            history.clear();
        }
        let fragments = history.entry(block).or_default();
        if fragments.asked & bit != 0 {
            return fragments.arrived & bit == 0;
        }
        let asks = fragments.asked.count_ones() < MAX_FRAGMENTS_OF_BLOCK;
        fragments.asked |= if asks { bit } else { 0 };
        asks
    }

    fn was_asked(&self, fragment: u64) -> bool {
        let (block, bit) = place(fragment);
        self.0.lock().get(&block).is_some_and(|fragments| fragments.asked & bit != 0)
    }

    fn record_arrival(&self, fragment: u64) {
        let (block, bit) = place(fragment);
        if let Some(fragments) = self.0.lock().get_mut(&block) {
            fragments.arrived |= bit;
        }
    }
}

/// The block of `fragment`, and its bit there.
fn place(fragment: u64) -> (u64, u16) {
    (fragment / FRAGMENTS_PER_BLOCK, 1 << (fragment % FRAGMENTS_PER_BLOCK))
}

impl Content {
    /// The fragments that bring `range` without its blocks; `None` where it is better read by blocks. A reader that `jumps` is at
    /// another place of the file than it was before.
    pub(super) fn fragments_to_read(&self, jumps: bool, range: &Range<u64>) -> Option<Range<u64>> {
        let history = self.fragment_history.as_ref().filter(|_| range.end - range.start <= FRAGMENT)?;
        let fragments = range.start / FRAGMENT..range.end.div_ceil(FRAGMENT);
        let is_lacking = |fragment: &u64| !self.resources.recent_fragments.contains(&self.blob, *fragment);
        let lacking: Vec<u64> = fragments.clone().filter(is_lacking).collect();
        let Some(first) = lacking.first() else { return Some(fragments) };
        if !jumps || block::touched(range).any(|index| self.is_coming(index)) {
            return None;
        }
        // The first bytes behind what some reader has read continue a sequence.
        let is_read =
            |fragment: u64| history.was_asked(fragment) || self.is_coming(fragment / FRAGMENTS_PER_BLOCK);
        if first.checked_sub(1).is_some_and(is_read) {
            return None;
        }
        lacking.into_iter().all(|fragment| history.ask(fragment)).then_some(fragments)
    }

    /// Whether block `index` is on the disk, perhaps still to be verified, or on its way.
    fn is_coming(&self, index: u64) -> bool {
        let is_on_disk =
            || self.part().is_some_and(|part| part.presence().state(index) != BlockState::Absent);
        self.is_whole() || is_on_disk() || self.direct_flights.find(index).is_some()
    }

    /// Reads `range`, which lies in `fragments`.
    pub(super) async fn read_fragments(
        &self,
        fragments: Range<u64>,
        range: &Range<u64>,
    ) -> Result<Vec<Bytes>> {
        let pieces = fragments.map(async |fragment| {
            let (bytes, at) = (self.read_fragment(fragment).await?, fragment * FRAGMENT);
            let end = range.end.min(at + bytes.len() as u64);
            Ok(bytes.slice((range.start.max(at) - at) as usize..(end - at) as usize))
        });
        try_join_all(pieces).await
    }

    /// A fragment from memory, or fetched once for all who wait for it.
    async fn read_fragment(&self, fragment: u64) -> Result<Bytes> {
        let recent = &self.resources.recent_fragments;
        loop {
            let mut is_first = false;
            let fetch = async {
                is_first = true;
                self.fetch_fragment(fragment).await
            };
            match recent.fragments.try_get_with(recent.key(&self.blob, fragment), fetch).await {
                Ok(bytes) => {
                    if let (true, Some(history)) = (is_first, &self.fragment_history) {
                        history.record_arrival(fragment);
                    }
                    return Ok(bytes);
                }
                // Whoever asked first had spent some of its time before this reader came, who has all of its own.
                Err(error) if !is_first && matches!(error.kind(), Kind::Unavailable | Kind::Timeout) => {}
                Err(error) => return Err(error.share()),
            }
        }
    }

    async fn fetch_fragment(&self, fragment: u64) -> Result<Bytes> {
        // What arrived may lie in a larger buffer, all of which it would keep.
        let keep = |arrival: Arrival| Ok(Bytes::copy_from_slice(&arrival.bytes));
        self.fetch_for_reader(Wanted::fragment(fragment), FRAGMENT, keep).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key::origin("test://", b"file", &n.to_le_bytes())
    }

    #[tokio::test]
    async fn recent_fragments_of_all_tenants_stay_below_their_limit() {
        let recent = [RecentFragments::default()];
        let recent = [recent[0].of(1), recent[0].of(2)];
        for fragment in 0..2000 {
            for tenant in &recent {
                tenant
                    .fragments
                    .insert(
                        (tenant.tenant, key(fragment % 3), fragment),
                        Bytes::from(vec![0; FRAGMENT as usize]),
                    )
                    .await;
            }
        }
        recent[0].fragments.run_pending_tasks().await;
        assert_eq!(recent[1].fragments.weighted_size(), MAX_FRAGMENT_BYTES);
        assert_eq!(recent[1].fragments.entry_count(), MAX_FRAGMENT_BYTES / FRAGMENT);
    }
}
