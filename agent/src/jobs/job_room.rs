//! Room for what jobs write: the cache gives way, and homes of training caches.

use std::convert::Infallible;
use std::sync::Arc;

use bdnfs::error::Result;
use bdnfs::snapshot::Snapshot;
use bdnfs::task::blocking;
use tokio::time::sleep;

use super::run::JobRun;
use crate::volumes::ROOM_INTERVAL;

/// Makes room again and again while a job runs, as long as it is polled.
pub async fn keep_room(run: &JobRun) -> Infallible {
    loop {
        sleep(ROOM_INTERVAL).await;
        make_room(run).await;
    }
}

/// Makes room where too little is free on the disk of volumes: what is not in use leaves the cache, and then homes of training caches go
/// that are saved and not in use, each with an event.
pub async fn make_room(run: &JobRun) {
    let queue = Arc::clone(&run.queue);
    let evicted = blocking(move || {
        let usage = queue.mounts.mounter().engine.usage();
        Ok(queue.volume_space.make_room(&queue.volumes, usage.reserve))
    });
    for home in evicted.await.into_iter().flatten() {
        run.job.note(home.to_string());
    }
}

/// Evicts homes of training caches that are saved and not in use where `snapshots` would not fit into the cache beside them, on the disk that
/// they share, each with an event.
pub async fn make_room_to_read(run: &JobRun, snapshots: &[Arc<Snapshot>]) -> Result<()> {
    let (queue, snapshots) = (Arc::clone(&run.queue), snapshots.to_vec());
    let evicted = blocking(move || {
        let (engine, volumes) = (&queue.mounts.mounter().engine, &queue.volumes);
        let needed = snapshots.iter().map(|snapshot| snapshot.content_bytes()).sum::<Result<u64>>()?;
        // No disk grows by what leaves it, and no limit of the cache.
        let most = queue.volume_space.disk_size()?.min(engine.usage().capacity.unwrap_or(u64::MAX));
        if needed > most || !queue.volume_space.is_on_disk_of_cache() {
            return Ok(Vec::new());
        }
        let is_short = |_| {
            let usage = engine.usage();
            usage.used.is_some_and(|used| used + usage.free < needed + usage.reserve)
        };
        Ok(volumes.evict_homes(is_short))
    });
    evicted.await?.iter().for_each(|home| run.job.note(home.to_string()));
    Ok(())
}

/// Evicts one home, if there is one that may go, with an event; false where there is none.
pub async fn evict_home(run: &JobRun) -> bool {
    let queue = Arc::clone(&run.queue);
    let evicted =
        blocking(move || Ok(queue.volumes.evict_homes(|freed| freed == 0))).await.unwrap_or_default();
    evicted.iter().for_each(|home| run.job.note(home.to_string()));
    !evicted.is_empty()
}
