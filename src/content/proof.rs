//! Proofs: a content that fits into one flight is held against the SHA-256 that its origin publishes before its first byte is
//! delivered. A larger one is read while it arrives, and [refuted](super::completion) afterwards.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::block::{self, Arrival, Verified};
use crate::error::{Error, Kind, Result};
use crate::fetch::{FetchOutcome, FetchScope};
use crate::flight::Flight;
use crate::task::lost;
use crate::tier::Urgency;

use super::Content;

/// How many blocks fit into one flight at any pace: those of the slowest origin that is still waited for (1 MiB in 5 s) arrive
/// within a reader's deadline.
const MIN_PROVED_BLOCKS: u64 = 4;

/// How often a flight asks for a content before what comes is taken to be all that the origin has.
const ATTEMPTS: u32 = 2;

impl Content {
    /// Whether the blob is proved as a whole, and fits into one flight at the pace of the ladder.
    pub(super) fn fits_one_flight(&self) -> bool {
        let most = || self.ladder().extent_blocks(&self.blob, 0).max(MIN_PROVED_BLOCKS);
        self.published_sha256().is_some() && block::count(self.blob.size) <= most()
    }

    /// Whether `flight` is to bring all of a content that is to be proved as a whole.
    pub(super) fn fetches_whole(&self, flight: &Flight) -> bool {
        self.published_sha256().is_some() && flight.extent().blocks == block::count(self.blob.size)
    }

    /// Fetches a whole content, and delivers it once it is proved.
    pub(super) async fn fetch_proved(
        self: &Arc<Self>,
        flight: &Arc<Flight>,
        (scope, urgency): (FetchScope, Urgency),
        patience: Duration,
    ) -> Result<FetchOutcome> {
        let mut attempt = 1;
        loop {
            let held = Mutex::new(Vec::new());
            let accept = async |arrival: Arrival| {
                let index = arrival.index;
                held.lock().push(arrival);
                Ok(index)
            };
            let wanted = flight.extent().range().collect();
            let outcome = self.ladder().fetch(&self.blob, wanted, (scope, urgency), patience, accept).await?;
            if outcome == FetchOutcome::BecameOwner {
                return Ok(outcome);
            }
            let (content, flight, arrivals) = (self.clone(), flight.clone(), held.into_inner());
            let permit = self.resources.hash_permits.clone().acquire_owned().await;
            let proved = self.resources.runtime.spawn_blocking(move || {
                let _permit = permit;
                content.deliver_proved(&flight, arrivals)
            });
            match proved.await.map_err(lost)? {
                Ok(()) => return Ok(FetchOutcome::Complete),
                Err(error) if attempt == ATTEMPTS => return Err(error),
                Err(error) => tracing::warn!(%error, "wrong bytes"),
            }
            attempt += 1;
        }
    }

    /// Delivers all blocks of a content, if they are what its origin publishes.
    fn deliver_proved(&self, flight: &Flight, arrivals: Vec<Arrival>) -> Result<()> {
        let blocks = arrivals.into_iter().map(|arrival| arrival.verify(None));
        let mut blocks = blocks.collect::<Result<Vec<_>>>()?;
        blocks.sort_by_key(Verified::index);
        let expected =
            self.published_sha256().ok_or_else(|| Error::new(Kind::Corrupt, "nothing to prove"))?;
        let mut hasher = Sha256::new();
        blocks.iter().for_each(|block| hasher.update(block.bytes()));
        self.compare(hasher, expected)?;
        for block in &blocks {
            self.keep(flight, block, false);
        }
        Ok(())
    }
}
