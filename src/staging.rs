//! Staging: making a snapshot local, verified and leased.
//!
//! A stage is a read without a waiting reader: it goes through the same flights as readers do, at the lowest urgency. The files
//! that tell what the others are go first, then the small ones, then the rest in order of size and path; so a job's first
//! reads find theirs at once ([`plan`]). What is here already, whole or in part, is not asked for again.

pub mod audit;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::{TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep};

use crate::block::BLOCK;
use crate::cache::verification_time;
use crate::content::Content;
use crate::error::{Error, Kind, Result};
use crate::extent::MAX_EXTENT_BLOCKS;
use crate::snapshot::Snapshot;
use crate::stage::Stage;
use crate::task::{blocking, join_error};
use crate::tier::Urgency;

use plan::MissingBlob;

/// The number of flights that a stage begins with, and that which it may come to. Small files need many at once, for each of them
/// is mostly waiting; large ones are held back by the budget long before. Each that lands lets one more start, as long as the tier
/// sends long extents: on a slow link many would only take bandwidth from readers that wait for a block now.
const INITIAL_FLIGHTS: usize = 8;
const MAX_FLIGHTS: usize = 64;

/// The number of flights that it may come to where nodes share. The owners are near, and all nodes ask all of them at once: more
/// streams bring no more, and cost memory and processor time. Eight nodes on two cores took 11.5 s for 1 GiB, with 64 it was 13.3.
const MAX_CLUSTER_FLIGHTS: usize = 16;

/// The number of blobs that are under way at once: more than flights, so that the disk's flushes are shared by many small ones
/// while others still arrive. Each has up to three open files.
const CONCURRENT_BLOBS: usize = 256;

/// The number of large blobs that are under way at once: enough for the longest extents to fill all flights, and so few that the
/// first ones are whole long before the last ones begin.
const CONCURRENT_LARGE_BLOBS: usize = 8;

/// The time that a stage waits for a disk that does not answer, as long as for a tier; and the interval at which it looks.
const DISK_STALL_LIMIT: Duration = Duration::from_secs(120);
const DISK_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The times that a stage waits before it tries again what the cache had no room for, two seconds in all. What comes is fetched
/// anew each time. Without jitter: nobody waits for the same disk but this node.
const ROOM_WAITS: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
    Duration::from_secs(1),
];

/// The number of times that blocks that vanished from the cache are fetched again: a scrub may run meanwhile, and the disk rot.
const REFETCH_LIMIT: usize = 4;

impl Snapshot {
    /// Begins to make everything local. Several calls share one stage; one that has failed is begun anew.
    pub fn stage(self: &Arc<Self>) -> Arc<Stage> {
        let mut stage = self.stage_slot().lock();
        let last = match stage.as_ref() {
            Some(last) if !matches!(last.outcome(), Some(Err(_))) => return last.clone(),
            failed => failed.cloned(),
        };
        stage.insert(Stage::start(self, false, last)).clone()
    }

    /// Starts a stage that also verifies the blocks that are already local.
    pub fn stage_verified(self: &Arc<Self>) -> Arc<Stage> {
        let mut last = self.stage_slot().lock();
        // A stage that is under way goes on beside it, and both share their flights.
        let stage = Stage::start(self, true, last.take());
        last.insert(stage).clone()
    }

    /// The last stage, if one was begun.
    pub fn staged(&self) -> Option<Arc<Stage>> {
        self.stage_slot().lock().clone()
    }

    /// Makes local again what a stage had made local, and what was [removed](crate::cache::removal) since. Nothing is begun
    /// where there was no stage.
    pub fn stage_again(self: &Arc<Self>) {
        let mut stage = self.stage_slot().lock();
        if stage.as_ref().is_some_and(|stage| !stage.plan_again()) {
            *stage = Some(Stage::start(self, false, stage.take()));
        }
    }
}

impl Stage {
    /// Starts to stage `snapshot`. It goes on until it is done, or until the snapshot is dropped. With `verify` the blocks
    /// that are here already are read and verified before that. Its progress is that of the `last` one until it is planned.
    fn start(snapshot: &Arc<Snapshot>, verify: bool, last: Option<Arc<Self>>) -> Arc<Self> {
        let progress = last.as_ref().map(|last| last.progress()).unwrap_or_default();
        let manifest = snapshot.manifest();
        // Blocks that come from now on are verified after the second in which this begins.
        let since = verification_time::seconds(snapshot.resources().cache.now()) + 1;
        let stage = Arc::new(Self {
            verified_since: verify.then_some(since),
            files: manifest.files(),
            bytes: manifest.bytes(),
            files_done: AtomicU64::new(progress.files_done),
            bytes_done: AtomicU64::new(progress.bytes_done),
            bytes_found: AtomicU64::new(progress.bytes_found),
            extra_flights: AtomicUsize::new(0),
            large_blobs: Semaphore::new(CONCURRENT_LARGE_BLOBS),
            planned: AtomicBool::new(last.is_some_and(|last| last.is_planned())),
            outdated: Mutex::new(false),
            outcome: OnceLock::new(),
            changed: Notify::new(),
        });
        let (running, weak) = (stage.clone(), Arc::downgrade(snapshot));
        let runtime = snapshot.resources().runtime.clone();
        snapshot.resources().runtime.spawn(async move {
            let work = running.clone();
            let outcome = runtime.spawn(async move { work.run(weak).await }).await;
            // Callers that wait for it must see its end, even a panic.
            running.outcome.set(outcome.unwrap_or_else(|e| Err(join_error(e)))).ok();
            running.changed.notify_waiters();
        });
        stage
    }

    async fn run(self: &Arc<Self>, snapshot: Weak<Snapshot>) -> Result<()> {
        let flights = Arc::new(Semaphore::new(INITIAL_FLIGHTS));
        loop {
            let Some(held) = snapshot.upgrade() else { return Err(abandoned()) };
            let stage = self.clone();
            let missing = blocking(move || stage.plan(&held)).await?;
            stream::iter(missing.into_iter().map(Ok))
                .try_for_each_concurrent(CONCURRENT_BLOBS, |missing| {
                    self.make_whole(&snapshot, missing, flights.clone())
                })
                .await?;
            if *self.outdated.lock() {
                continue;
            }
            if let Some(since) = self.verified_since
                && !audit::audit_since(snapshot.clone(), since).await?
            {
                continue;
            }
            let kept = snapshot.clone();
            let keep = move || match kept.upgrade() {
                Some(held) => held.resources().cache.sync_names().inspect(|()| held.announce()),
                None => Err(abandoned()),
            };
            blocking(keep).await?;
            // Something may have been removed meanwhile.
            if self.finish() {
                return Ok(());
            }
        }
    }

    async fn make_whole(
        &self,
        snapshot: &Weak<Snapshot>,
        missing: MissingBlob,
        flights: Arc<Semaphore>,
    ) -> Result<()> {
        let large = missing.size > MAX_EXTENT_BLOCKS * BLOCK;
        let large_permit = if large { self.large_blobs.acquire().await.ok() } else { None };
        let Some(held) = snapshot.upgrade() else { return Err(abandoned()) };
        let content = blocking(move || held.content(missing.blob)).await?;
        let found = content.local_bytes();
        self.bytes_found.fetch_add(found, Relaxed);
        self.bytes_done.fetch_add(found, Relaxed);
        let mut arrived = self.fetch_all(snapshot, &content, &flights).await?;
        if let Err(error) = content.became_whole().await {
            if error.kind() != Kind::Corrupt {
                return Err(error);
            }
            // One retry: damage in transit is usually transient.
            self.bytes_done.fetch_sub(found + arrived, Relaxed);
            content.await_retry().await;
            self.bytes_done.fetch_add(found, Relaxed);
            arrived = self.fetch_all(snapshot, &content, &flights).await?;
            content.became_whole().await?;
        }
        drop(large_permit);
        self.bytes_done.fetch_add(missing.size.saturating_sub(found + arrived), Relaxed);
        self.files_done.fetch_add(missing.files, Relaxed);
        Ok(())
    }

    /// Fetches until no block is missing, and returns the bytes that came.
    async fn fetch_all(
        &self,
        snapshot: &Weak<Snapshot>,
        content: &Arc<Content>,
        flights: &Arc<Semaphore>,
    ) -> Result<u64> {
        let mut arrived = self.fetch_retrying_disk(snapshot, content, flights).await?;
        // Blocks that could not be made durable when they came may be now.
        for _ in 1..REFETCH_LIMIT {
            if content.finish() {
                return Ok(arrived);
            }
            arrived += self.fetch_retrying_disk(snapshot, content, flights).await?;
        }
        if content.finish() {
            return Ok(arrived);
        }
        let text = format!("blocks of {} are evicted or removed as soon as they are fetched", content.blob());
        Err(Error::new(Kind::Disk, text))
    }

    /// Fetches what is missing, and once more when the cache's disk did not answer and does so again, or when the cache had no
    /// room: what another mount held, which has just ended, may be in use for a moment still.
    async fn fetch_retrying_disk(
        &self,
        snapshot: &Weak<Snapshot>,
        content: &Arc<Content>,
        flights: &Arc<Semaphore>,
    ) -> Result<u64> {
        let (give_up, mut room_waits) = (Instant::now() + DISK_STALL_LIMIT, ROOM_WAITS.into_iter());
        loop {
            match self.fetch_missing(snapshot, content, flights.clone()).await {
                Err(error) if error.kind() == Kind::Busy && Instant::now() < give_up => {
                    while content.is_disk_stalled() && Instant::now() < give_up {
                        sleep(DISK_POLL_INTERVAL).await;
                    }
                }
                // On a disk that is full, more writes can do harm: its file system may fail as a whole.
                Err(error) if error.kind() == Kind::NoSpace && !error.is_of_disk() => match room_waits.next()
                {
                    Some(wait) => sleep(wait).await,
                    None => return Err(error),
                },
                outcome => return outcome,
            }
        }
    }

    /// Joins or starts a flight for every missing block, and returns the bytes that they brought.
    async fn fetch_missing(
        &self,
        snapshot: &Weak<Snapshot>,
        content: &Arc<Content>,
        flights: Arc<Semaphore>,
    ) -> Result<u64> {
        let size = content.blob().size;
        let mut waits = JoinSet::new();
        let (mut joined, mut arrived) = (0..0, 0);
        for index in content.stage_order() {
            if joined.contains(&index) {
                continue;
            }
            let slot = flights.clone().acquire_owned().await.map_err(|_| abandoned())?;
            if snapshot.strong_count() == 0 {
                return Err(abandoned());
            }
            content.await_stable_membership().await;
            let Some(flight) = content.join_or_start(index, MAX_EXTENT_BLOCKS, Urgency::Stage) else {
                continue;
            };
            joined = flight.extent().range();
            waits.spawn(async move {
                let bytes = flight.extent().bytes(size);
                let stored = flight.await_stored().await;
                drop(slot);
                stored.map(|()| bytes.end - bytes.start)
            });
            while let Some(ended) = waits.try_join_next() {
                arrived += self.on_flight_ended(ended, content, &flights)?;
            }
        }
        while let Some(ended) = waits.join_next().await {
            arrived += self.on_flight_ended(ended, content, &flights)?;
        }
        Ok(arrived)
    }

    fn on_flight_ended(
        &self,
        ended: std::result::Result<Result<u64>, JoinError>,
        content: &Content,
        flights: &Semaphore,
    ) -> Result<u64> {
        let bytes = ended.map_err(join_error)??;
        self.bytes_done.fetch_add(bytes, Relaxed);
        let is_fast = content.extent() > BLOCK;
        let most = if content.is_shared() { MAX_CLUSTER_FLIGHTS } else { MAX_FLIGHTS };
        if is_fast && self.extra_flights.fetch_add(1, Relaxed) < most - INITIAL_FLIGHTS {
            flights.add_permits(1);
        }
        Ok(bytes)
    }
}

fn abandoned() -> Error {
    Error::new(Kind::Interrupted, "the stage was given up: its mount has ended")
}
