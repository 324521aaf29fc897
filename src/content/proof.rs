//! Proofs: a content that fits into one flight is held against the SHA-256 that its origin publishes before its first byte is
//! delivered. A larger one is read while it arrives, and [refuted](super::completion) afterwards; unless its parts could be of
//! several states of the file, because no request is conditional on one. Then nothing of it is read before it is whole.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::block::{self, Arrival, Verified};
use crate::error::{Error, Kind, Result};
use crate::extent::MAX_EXTENT_BLOCKS;
use crate::fetch::{FetchOutcome, FetchScope};
use crate::flight::Flight;
use crate::origin;
use crate::task::join_error;
use crate::tier::Urgency;

use super::Content;

/// The number of blocks that fit into one flight at any pace: those of the slowest origin that is still waited for (1 MiB in 5 s)
/// arrive within a reader's deadline.
const MIN_PROVED_BLOCKS: u64 = 4;

/// The number of times that a flight asks for a content before what comes is taken to be all that the origin has.
const PROOF_ATTEMPT_LIMIT: u32 = 2;

/// The number of flights that fetch a content which is readable only when it is whole. They are so many that the slowest does not
/// hold up the rest, and few enough to leave memory to the readers of others.
const MAX_WHOLE_FLIGHTS: usize = 8;

/// The error of a reader of a file that did not become whole within its deadline.
pub(super) const NOT_WHOLE_MESSAGE: &str = "the server sends no version, so a file is read when it is complete and verified; it was not \
                                      within the deadline";

impl Content {
    /// Whether the blob is proved as a whole, and fits into one flight at the pace of the ladder.
    pub(super) fn fits_one_flight(&self) -> bool {
        let most = || self.ladder().extent_blocks(&self.blob, 0).max(MIN_PROVED_BLOCKS);
        self.published_sha256().is_some() && block::count(self.blob.size) <= most()
    }

    /// Whether `flight` is to bring all of a content that is to be proved as a whole.
    pub(super) fn fetches_whole(&self, flight: &Flight) -> bool {
        let blocks = flight.extent().blocks;
        // A longer one does not fit into memory.
        self.published_sha256().is_some()
            && blocks == block::count(self.blob.size)
            && blocks <= MAX_EXTENT_BLOCKS
    }

    /// Whether its parts could be of several states of the file, and only its SHA-256 tells.
    pub(super) fn is_unconditional(&self) -> bool {
        self.published_sha256().is_some() && origin::is_unconditional(&self.blob.version)
    }

    /// Whether one request has to bring all of it, in order.
    pub(super) fn is_sequential(&self) -> bool {
        self.blob.checks.is_none() && origin::is_sequential(&self.blob.version)
    }

    /// Whether a request for a part of it may move all of it, so that nothing is fetched which nobody wants for certain.
    pub(crate) fn is_sent_whole(&self) -> bool {
        self.blob.checks.is_none() && origin::is_sent_whole(&self.blob)
    }

    /// Whether nothing of it may be read yet that is not proved.
    pub(super) fn awaits_proof(&self) -> bool {
        !self.is_whole() && self.is_unconditional()
    }

    /// Fetches all that is missing, and waits until it is proved and durable. What has come stays if this is given up.
    pub(super) async fn make_whole(self: &Arc<Self>) -> Result<()> {
        let mut next = 0..block::count(self.blob.size);
        let flights = std::iter::from_fn(|| {
            let flight = next.find_map(|i| self.join_or_start(i, MAX_EXTENT_BLOCKS, Urgency::Ahead))?;
            next.start = flight.extent().range().end;
            Some(flight)
        });
        let stored = stream::iter(flights).map(|flight| async move { flight.await_stored().await });
        stored.buffer_unordered(MAX_WHOLE_FLIGHTS).try_collect::<()>().await?;
        if self.finish() { self.became_whole().await.map(drop) } else { Ok(()) }
    }

    /// Fetches the blocks `wanted` of a whole content, and delivers them once they are proved together with those that are here.
    /// If these are not what the origin publishes, they are discarded, and all blocks are fetched.
    pub(super) async fn fetch_proved(
        self: &Arc<Self>,
        flight: &Arc<Flight>,
        mut wanted: Vec<u64>,
        scope: FetchScope,
        stall_limit: Duration,
    ) -> Result<FetchOutcome> {
        let (mut attempt, mut has_discarded) = (1, false);
        loop {
            let is_partial = (wanted.len() as u64) < flight.extent().blocks;
            let held = Mutex::new(Vec::new());
            let accept = async |arrival: Arrival| {
                let index = arrival.index;
                held.lock().push(arrival);
                Ok(index)
            };
            let urgency = || flight.urgency();
            let outcome =
                self.ladder().fetch(&self.blob, wanted, (scope, &urgency), stall_limit, accept).await?;
            if outcome == FetchOutcome::BecameOwner {
                return Ok(outcome);
            }
            let (content, joined, arrivals) = (self.clone(), flight.clone(), held.into_inner());
            let permit = self.resources.hash_permits.clone().acquire_owned().await;
            let proved = self.resources.runtime.spawn_blocking(move || {
                let _permit = permit;
                let proved = content.deliver_proved(&joined, arrivals);
                if let (Err(_), true, Some(partial)) = (&proved, is_partial, content.part()) {
                    content.discard(&partial);
                }
                proved
            });
            match proved.await.map_err(join_error)? {
                Ok(()) => return Ok(FetchOutcome::Complete),
                Err(error) if attempt == PROOF_ATTEMPT_LIMIT && !is_partial => {
                    if has_discarded {
                        self.refute(error.share());
                    }
                    return Err(error);
                }
                Err(error) => tracing::warn!(%error, "wrong bytes"),
            }
            has_discarded |= is_partial;
            attempt += u32::from(!is_partial);
            wanted = flight.extent().range().collect();
        }
    }

    /// Delivers the blocks of a content that arrived, if they and those that are here are what its origin publishes.
    fn deliver_proved(&self, flight: &Flight, arrivals: Vec<Arrival>) -> Result<()> {
        let blocks = arrivals.into_iter().map(|arrival| arrival.verify(None));
        let mut blocks = blocks.collect::<Result<Vec<_>>>()?;
        blocks.sort_by_key(Verified::index);
        let expected =
            self.published_sha256().ok_or_else(|| Error::new(Kind::Corrupt, "nothing to prove"))?;
        let mut hasher = Sha256::new();
        let (partial, mut arrived) = (self.part(), blocks.iter().peekable());
        for index in flight.extent().range() {
            match (arrived.next_if(|block| block.index() == index), &partial) {
                (Some(block), _) => hasher.update(block.bytes()),
                (None, Some(partial)) => hasher.update(partial.read_once(index)?),
                (None, None) => return Err(Error::new(Kind::Corrupt, "a block in the cache is gone")),
            }
        }
        self.compare(hasher, expected)?;
        for block in &blocks {
            self.deliver_and_store(flight, block, false)?;
        }
        Ok(())
    }
}
