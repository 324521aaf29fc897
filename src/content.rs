//! Content: a blob on this node, with the blocks that are here and the way to fetch the others.
//!
//! All that read or stage a blob share one `Content`. It moves one way: no blocks present, some of them, all of them,
//! whole and durable under its final name. What turns out not to be right is removed, and the content starts anew.

mod completion;
mod fragments;
mod ingest;
mod ladders;
mod local_reads;
mod past_cache;
mod peer_reads;
mod prefetch;
mod proof;
mod recent_blocks;
mod recent_failure;
mod refutation;
mod resources;
mod single_flight;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::blob::Blob;
use crate::block::{self, BLOCK};
use crate::cache::leases::BlobLease;
use crate::cache::partial::PartialBlob;
use crate::cache::presence::BlockState;
use crate::error::{Error, Kind, Result};
use crate::extent::MAX_AHEAD_BLOCKS;
use crate::fetch::{FetchScope, Ladder};
use crate::flight::{Delivery, Flight, Flights};
use crate::tier::Urgency;

use fragments::FragmentHistory;
pub use fragments::RecentFragments;
use ladders::Ladders;
use past_cache::PastCacheFetches;
use proof::NOT_WHOLE_MESSAGE;
pub use recent_blocks::RecentBlocks;
use recent_failure::RecentFailures;
use refutation::Refutation;
pub use refutation::Refutations;
pub use resources::SharedResources;

/// The time that a read waits for a tier to answer before it fails (docs/semantics.md, "Errors and time").
pub const READ_DEADLINE: Duration = Duration::from_secs(30);

/// The time for which staging goes on asking while nothing arrives: a store that restarts must not fail a job's deployment.
const STAGE_STALL_LIMIT: Duration = Duration::from_secs(120);

/// The requester of a block.
#[derive(Clone, Copy, Debug)]
enum Requester {
    /// A reader of this node.
    Reader,
    /// Another node, for requesters of its own.
    Peer(Urgency),
}

/// The content of one blob, shared by all its users.
#[derive(Debug)]
pub struct Content {
    blob: Blob,
    resources: Arc<SharedResources>,
    ladders: Ladders,
    /// Whether the cache was looked into for it.
    opened: Once,
    /// The number of times that its file in the cache was removed.
    removals: AtomicU64,
    whole: RwLock<Option<Arc<File>>>,
    /// The part in the cache, from its first use until the blob is whole.
    partial: Mutex<Option<Arc<PartialBlob>>>,
    making: Mutex<()>,
    /// Flights that may wait for other nodes.
    flights: Flights,
    /// Direct flights, which other nodes may wait for. A block in both tables does no harm.
    direct_flights: Flights,
    /// The fragments that were fetched, where some may be.
    fragment_history: Option<FragmentHistory>,
    recent_failures: RecentFailures,
    past_cache: PastCacheFetches,
    committing: AtomicBool,
    /// The reason why the cache's disk could not make the blob durable.
    commit_error: Mutex<Option<Error>>,
    refutation: Arc<Refutation>,
    changed: Notify,
    _lease: BlobLease,
}

impl Content {
    /// The content of `blob`, in which the cache has not been [looked for](Self::open).
    pub fn new(blob: Blob, resources: Arc<SharedResources>, ladder: Arc<Ladder>) -> Arc<Self> {
        // The lease comes before the look: what was seen can't be evicted any more.
        let lease = resources.cache.leases().lease(blob.key);
        Arc::new(Self {
            opened: Once::new(),
            removals: AtomicU64::new(0),
            whole: RwLock::default(),
            partial: Mutex::default(),
            making: Mutex::default(),
            flights: Flights::default(),
            direct_flights: Flights::default(),
            fragment_history: FragmentHistory::of(&blob),
            recent_failures: RecentFailures::default(),
            past_cache: PastCacheFetches::default(),
            committing: AtomicBool::new(false),
            commit_error: Mutex::default(),
            refutation: resources.refutations.of(&blob.key),
            changed: Notify::new(),
            _lease: lease,
            blob,
            resources,
            ladders: Ladders::new(ladder),
        })
    }

    /// The ladder that missing blocks come down.
    fn ladder(&self) -> Arc<Ladder> {
        self.ladders.present()
    }

    /// Adds the ladder of another mount.
    pub(crate) fn add_ladder(&self, ladder: &Arc<Ladder>) {
        self.ladders.add(ladder);
    }

    /// The blob that this is the content of.
    pub fn blob(&self) -> &Blob {
        &self.blob
    }

    /// The local file that has all of it now: another one after this was [removed](crate::cache::removal).
    pub fn whole(&self) -> Option<Arc<File>> {
        self.whole.read().clone()
    }

    fn is_whole(&self) -> bool {
        self.whole.read().is_some()
    }

    /// Whether other nodes may have it.
    pub(crate) fn is_shared(&self) -> bool {
        self.ladder().is_shared(&self.blob)
    }

    /// Whether the cache's disk does not answer writes.
    pub(crate) fn is_disk_stalled(&self) -> bool {
        self.resources.cache.is_stalled()
    }

    /// The bytes that one request moves at the pace of the ladder.
    pub fn extent(&self) -> u64 {
        self.ladder().extent_blocks(&self.blob, 0) * BLOCK
    }

    /// Returns the number of blocks that one request moves ahead of a reader: a whole group where other nodes cut requests alike.
    pub fn ahead_blocks(&self) -> u64 {
        let most = if self.is_shared() { u64::MAX } else { MAX_AHEAD_BLOCKS };
        self.ladder().extent_blocks(&self.blob, 0).min(most)
    }

    /// The number of bytes in the node's cache. Not all of them before a published SHA-256 was compared.
    pub fn local_bytes(&self) -> u64 {
        if self.is_whole() {
            return self.blob.size;
        }
        let Some(partial) = self.part() else { return 0 };
        // All of it is local only when it is what its origin has published.
        let unproved = u64::from(self.published_sha256().is_some());
        let here = block::count(self.blob.size).saturating_sub(partial.presence().missing().max(unproved));
        (here * BLOCK).min(self.blob.size)
    }

    fn is_present(&self, index: u64) -> bool {
        self.is_whole() || self.part().is_some_and(|p| p.presence().state(index) == BlockState::Present)
    }

    /// All blocks in the order in which a stage asks for them, as [`Ladder::stage_order`] has it at that time.
    pub(crate) fn stage_order(self: &Arc<Self>) -> impl Iterator<Item = u64> + use<> {
        let (content, mut next_block) = (self.clone(), 0);
        let stretches = std::iter::from_fn(move || {
            let runs = content.ladder().stage_order(&content.blob, next_block);
            next_block = runs.iter().map(|run| run.end).max()?;
            Some(runs)
        });
        stretches.flatten().flatten()
    }

    /// Waits while the membership of the cluster is unstable, if this is shared there.
    pub(crate) async fn await_stable_membership(&self) {
        self.ladder().await_stable_membership(&self.blob).await;
    }

    /// Reads `range` from the nearest tier that has it. `run` more blocks behind the range will be wanted soon; `None` of a reader
    /// that jumps about.
    ///
    /// # Errors
    /// Those of the ladder; [`Kind::Timeout`] after [`READ_DEADLINE`].
    pub async fn read(self: &Arc<Self>, range: Range<u64>, run: Option<u64>) -> Result<Vec<Bytes>> {
        let late = || {
            let path = String::from_utf8_lossy(&self.blob.path).into_owned();
            let text = match self.ladder().recent_failure(READ_DEADLINE) {
                _ if self.awaits_proof() => format!("{NOT_WHOLE_MESSAGE} within {READ_DEADLINE:?}"),
                Some(error) => format!("nothing came within {READ_DEADLINE:?}: {error}"),
                None => format!("no tier had the bytes within {READ_DEADLINE:?}"),
            };
            Error::new(Kind::Timeout, format!("{path}: {text}"))
        };
        let (blocks, began) = (block::touched(&range), Instant::now());
        let mut failure = None;
        let read = async {
            loop {
                match self.read_blocks(began, range.clone(), run).await {
                    // No other tier has it, as where a node is offline.
                    Err(error) if self.may_be_on_late_disk(&blocks) => failure = Some(error),
                    read => return read,
                }
                self.await_late_disk().await;
                failure = None;
            }
        };
        let read = tokio::time::timeout(READ_DEADLINE, read).await;
        read.unwrap_or_else(|_| Err(failure.unwrap_or_else(late)))
            .inspect_err(|error| self.recent_failures.record(blocks, began.elapsed(), error))
    }

    async fn read_blocks(
        self: &Arc<Self>,
        began: Instant,
        range: Range<u64>,
        run: Option<u64>,
    ) -> Result<Vec<Bytes>> {
        if let Some(error) = self.refutation.active_error() {
            return Err(error);
        }
        let blocks = block::touched(&range);
        if let Some(error) = self.recent_failures.find(&blocks) {
            return Err(error);
        }
        if let Some(fragments) = self.fragments_to_read(run.is_none(), &range) {
            return self.read_fragments(fragments, &range).await;
        }
        // All flights start first, so that they run in parallel.
        let (mut joined, run) = (Vec::new(), run.unwrap_or(0));
        for index in blocks.clone() {
            joined.push(self.join_or_start(index, blocks.end - index + run, Urgency::Read));
        }
        let mut pieces = Vec::with_capacity(joined.len());
        for (index, flight) in blocks.zip(joined) {
            let start = (index * BLOCK).max(range.start);
            let end = (index * BLOCK + block::len(self.blob.size, index)).min(range.end);
            pieces.extend(self.read_block((Requester::Reader, began), index, flight, start..end).await?);
        }
        Ok(pieces)
    }

    /// The bytes `range` of block `index`, which `flight` may bring, for a requester that asks since `began`.
    async fn read_block(
        self: &Arc<Self>,
        (requester, began): (Requester, Instant),
        index: u64,
        mut flight: Option<Arc<Flight>>,
        range: Range<u64>,
    ) -> Result<Vec<Bytes>> {
        let part = || (range.start - index * BLOCK) as usize..(range.end - index * BLOCK) as usize;
        loop {
            let delivery = match (&flight, requester) {
                (Some(joined), Requester::Reader) => match self.await_hedged(joined, index).await {
                    // It had spent some of its time before this reader came, who has all of its own.
                    Err(error)
                        if joined.began() < began
                            && matches!(error.kind(), Kind::Unavailable | Kind::Timeout) =>
                    {
                        flight = self.join_or_start(index, 1, Urgency::Read);
                        continue;
                    }
                    outcome => outcome?,
                },
                (Some(flight), Requester::Peer(_)) => flight.block(index).await?,
                (None, _) => Delivery::Stored,
            };
            if let Delivery::Bytes(block) = delivery {
                return Ok(vec![block.slice(part())]);
            }
            // A content that is proved meanwhile is local only from then on.
            let was_present = self.is_present(index) && !self.awaits_proof();
            if let Some(pieces) = self.load_in_time(requester, range.clone()).await? {
                return Ok(pieces);
            }
            if let Some(error) = self.refutation.active_error() {
                return Err(error);
            }
            if self.awaits_proof() {
                self.make_whole().await?;
                flight = None;
                continue;
            }
            flight = match requester {
                Requester::Reader => self.join_or_start(index, 1, Urgency::Read),
                Requester::Peer(urgency) => self.join_or_start_in(FetchScope::Direct, index, 1, urgency),
            };
            if flight.is_none() && was_present && self.is_present(index) {
                let answered = self.resources.cache.reads().answered();
                tokio::select! {
                    biased;
                    fetched = self.fetch_past_cache(index) => return Ok(vec![fetched?.slice(part())]),
                    () = answered, if self.is_disk_late() => {}
                }
            }
        }
    }

    /// The part in the cache, made on first use: a file that is opened and never read costs no disk.
    fn partial(&self) -> Result<Arc<PartialBlob>> {
        let _one = self.making.lock();
        if let Some(partial) = self.part() {
            return Ok(partial);
        }
        let partial = self.resources.cache.begin(&self.blob.key, self.blob.size)?;
        *self.slot() = Some(partial.clone());
        Ok(partial)
    }

    fn part(&self) -> Option<Arc<PartialBlob>> {
        self.slot().clone()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<PartialBlob>>> {
        self.partial.lock()
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        self.resources.recent_blocks.forget(&self.blob.key);
        // Some processes keep a file open for days.
        if let Some(file) = self.whole() {
            self.resources.cache.mark_used(&file);
        }
    }
}
