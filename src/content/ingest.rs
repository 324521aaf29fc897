//! Ingest: fetching, verifying, delivering and storing the blocks of a flight.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument;

use crate::block::{Arrival, Verified};
use crate::cache::partial::PartialBlob;
use crate::cache::presence::BlockState;
use crate::error::{Kind, Result};
use crate::extent::MAX_EXTENT_BLOCKS;
use crate::fetch::{FetchOutcome, FetchScope, Wanted};
use crate::flight::{Delivery, Flight};
use crate::task::join_error;
use crate::tier::Urgency;

use super::{Content, READ_DEADLINE, STAGE_STALL_LIMIT};

/// The time that a block that is read from the disk alone waits for one that does not answer: half of what its reader has.
const DISK_STALL_TIMEOUT: Duration = Duration::from_secs(15);

/// The time to wait before such a disk is tried again, which is told at once while it does not answer.
const DISK_RETRY_INTERVAL: Duration = Duration::from_millis(250);

impl Content {
    /// Fetches the blocks of a flight that the disk does not have. Those that it may have kept through an unclean stop are
    /// verified first.
    pub(super) async fn fetch_missing(
        self: &Arc<Self>,
        flight: &Arc<Flight>,
        (scope, urgency): (FetchScope, Urgency),
    ) -> Result<FetchOutcome> {
        // It was found on a disk that did not answer before.
        if self.is_whole() {
            flight.extent().range().for_each(|index| flight.deliver(index, Delivery::Stored));
            return Ok(FetchOutcome::Complete);
        }
        let wanted = match self.part().and_then(|part| missing_unless_doubted(&part, flight)) {
            Some(wanted) => wanted,
            None => {
                let (content, joined) = (self.clone(), flight.clone());
                let verified = self.resources.runtime.spawn_blocking(move || content.verify_doubted(&joined));
                verified.await.map_err(join_error)?
            }
        };
        if wanted.is_empty() {
            return Ok(FetchOutcome::Complete);
        }
        let stall_limit = if urgency == Urgency::Stage { STAGE_STALL_LIMIT } else { READ_DEADLINE };
        if self.fetches_whole(flight) {
            return self.fetch_proved(flight, wanted, scope, stall_limit).await;
        }
        let present = flight.extent().range().filter(|index| wanted.binary_search(index).is_err());
        present.for_each(|index| flight.deliver(index, Delivery::Stored));
        // Other nodes ask for what this one fetches directly at about this time.
        let keep_for_peers = scope == FetchScope::Direct && self.is_shared();
        let accept = |arrival: Arrival| {
            // Begun at once, so that it is under way while the flight waits for what comes next.
            let accepted = match self.resources.hash_permits.clone().try_acquire_owned() {
                Ok(permit) => self.clone().spawn_accept(permit, flight.clone(), arrival, keep_for_peers),
                Err(_) => {
                    let (content, flight) = (self.clone(), flight.clone());
                    let waiting = async move {
                        let permit = content.resources.hash_permits.clone().acquire_owned().await;
                        content
                            .spawn_accept(permit, flight, arrival, keep_for_peers)
                            .await
                            .map_err(join_error)?
                    };
                    self.resources.runtime.spawn(waiting.in_current_span())
                }
            };
            async move { accepted.await.map_err(join_error)? }
        };
        let (accept, needs_disk) = (&accept, self.awaits_proof() || is_too_long_for_memory(flight));
        let accept = |arrival: Arrival| {
            let again = needs_disk.then(|| arrival.clone());
            let first = accept(arrival);
            async move {
                let (mut accepted, give_up) = (first.await, Instant::now() + DISK_STALL_TIMEOUT);
                while let (Err(error), Some(arrival)) = (&accepted, &again)
                    && error.kind() == Kind::Busy
                    && Instant::now() < give_up
                {
                    tokio::time::sleep(DISK_RETRY_INTERVAL).await;
                    accepted = accept(arrival.clone()).await;
                }
                accepted
            }
        };
        self.ladder().fetch(&self.blob, wanted, (scope, &|| flight.urgency()), stall_limit, accept).await
    }

    /// Fetches the one piece of `len` bytes that readers want, directly and outside of all flights: what `keep` makes of it.
    pub(super) async fn fetch_for_reader(
        &self,
        wanted: Wanted,
        len: u64,
        keep: impl Fn(Arrival) -> Result<Bytes> + Send + Sync,
    ) -> Result<Bytes> {
        let _flying = self.resources.metrics.start_flight();
        let ticket = self.resources.direct_budget.queue(len, Urgency::Read);
        let _permit = ticket.await_grant().await;
        let fetched = Mutex::new(Bytes::new());
        let accept = async |arrival: Arrival| {
            let index = arrival.index;
            *fetched.lock() = keep(arrival)?;
            Ok(index)
        };
        let fetch = || async {
            let scope = (FetchScope::Direct, &(|| Urgency::Read) as &(dyn Fn() -> Urgency + Sync));
            self.ladder().fetch(&self.blob, wanted.clone(), scope, READ_DEADLINE, &accept).await
        };
        self.ladders.fetch(fetch).await?;
        Ok(fetched.into_inner())
    }

    /// Accepts a block on a blocking thread, under a hash permit.
    fn spawn_accept(
        self: Arc<Self>,
        permit: impl Send + 'static,
        flight: Arc<Flight>,
        arrival: Arrival,
        keep_for_peers: bool,
    ) -> JoinHandle<Result<u64>> {
        let (runtime, span) = (self.resources.runtime.clone(), tracing::Span::current());
        runtime.spawn_blocking(move || {
            let _permit = permit;
            span.in_scope(|| self.accept(&flight, arrival, keep_for_peers))
        })
    }

    /// Verifies the doubted blocks of a flight, and returns those that must be fetched.
    fn verify_doubted(&self, flight: &Flight) -> Vec<u64> {
        let partial = match self.partial() {
            Ok(partial) => partial,
            Err(error) => {
                flight.record_store_failure(error);
                return flight.extent().range().collect();
            }
        };
        for index in flight.extent().range() {
            if partial.presence().state(index) == BlockState::Doubted {
                let known = self.blob.checks.as_ref().and_then(|checks| checks.get(index as usize));
                partial.verify_doubted(index, known);
            }
        }
        missing(&partial, flight)
    }

    /// Verifies a block, delivers it to all who wait for it, and stores it. With `keep_for_peers` the
    /// block also stays in memory: other nodes are about to ask for it.
    fn accept(&self, flight: &Flight, arrival: Arrival, keep_for_peers: bool) -> Result<u64> {
        let known = self.blob.checks.as_ref().and_then(|checks| checks.get(arrival.index as usize));
        let verified = arrival.verify(known)?;
        if self.awaits_proof() {
            // No reader may have it before the rest is here.
            self.partial()?.put(&verified)?;
            self.resources.blocks_transferred.fetch_add(1, Relaxed);
            return Ok(verified.index());
        }
        self.deliver_and_store(flight, &verified, keep_for_peers)
    }

    /// Delivers a verified block to all who wait for it, and stores it.
    ///
    /// # Errors
    /// What kept it from being stored, where the flight is too long for its blocks to stay in memory.
    pub(super) fn deliver_and_store(
        &self,
        flight: &Flight,
        verified: &Verified,
        keep_for_peers: bool,
    ) -> Result<u64> {
        let index = verified.index();
        if keep_for_peers || flight.urgency() > Urgency::Stage {
            self.resources.recent_blocks.put(self.blob.key, index, verified.bytes().clone());
        }
        self.resources.blocks_transferred.fetch_add(1, Relaxed);
        flight.deliver(index, Delivery::Bytes(verified.bytes().clone()));
        match self.partial().and_then(|partial| partial.put(verified)) {
            Ok(()) => flight.deliver(index, Delivery::Stored),
            Err(error) if is_too_long_for_memory(flight) => return Err(error),
            Err(error) => {
                if self.resources.recent_blocks.put_only_copy(self.blob.key, index, verified.bytes().clone())
                {
                    tracing::warn!(%error, "a block was delivered but could not be kept; so may others be");
                }
                flight.record_store_failure(error);
            }
        }
        Ok(index)
    }
}

/// Whether the blocks of a flight are kept on the disk alone.
fn is_too_long_for_memory(flight: &Flight) -> bool {
    flight.extent().blocks > MAX_EXTENT_BLOCKS
}

/// The blocks of a flight that must be fetched; `None` when some are doubted. Needs no disk I/O.
fn missing_unless_doubted(partial: &PartialBlob, flight: &Flight) -> Option<Vec<u64>> {
    let doubted = flight.extent().range().any(|index| partial.presence().state(index) == BlockState::Doubted);
    (!doubted).then(|| missing(partial, flight))
}

/// The missing blocks of a flight, in order.
fn missing(partial: &PartialBlob, flight: &Flight) -> Vec<u64> {
    let is_missing = |index: &u64| partial.presence().state(*index) != BlockState::Present;
    flight.extent().range().filter(is_missing).collect()
}
