//! Room for what jobs write: the cache gives way, and homes of training caches.

use std::convert::Infallible;
use std::sync::Arc;

use bdnfs::error::Result;
use bdnfs::snapshot::Snapshot;
use bdnfs::task::blocking;
use tokio::time::sleep;

use super::job_run::JobRun;
use crate::deploy::home_use;
use crate::volumes::{HomeEvictions, SPACE_CHECK_INTERVAL};

/// Makes room again and again while a job runs, as long as it is polled.
pub async fn keep_space(run: &JobRun) -> Infallible {
    loop {
        sleep(SPACE_CHECK_INTERVAL).await;
        home_use::make_room(run).await;
    }
}

/// Evicts homes of training caches that are saved and not in use where `snapshots` would not fit into the cache beside them, on the
/// disk that they share, each with an event.
pub async fn make_space_to_read(run: &JobRun, snapshots: &[Arc<Snapshot>]) -> Result<()> {
    let (services, snapshots) = (Arc::clone(&run.services), snapshots.to_vec());
    let evicted = blocking(move || {
        let (engine, volumes) = (&services.mounts.mounter().engine, &services.volumes);
        let needed = snapshots.iter().map(|snapshot| snapshot.content_bytes()).sum::<Result<u64>>()?;
        // No disk grows by what leaves it, and no limit of the cache.
        let most = volumes.space().disk_size()?.min(engine.usage().capacity.unwrap_or(u64::MAX));
        if needed > most || !volumes.space().is_on_disk_of_cache() {
            return Ok(HomeEvictions::default());
        }
        let is_short = |_| {
            let usage = engine.usage();
            usage.used.is_some_and(|used| used + usage.free < needed + usage.reserve)
        };
        Ok(volumes.evict_homes(is_short))
    });
    evicted.await?.notes().for_each(|note| run.job.note(note));
    Ok(())
}
