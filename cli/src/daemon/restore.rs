//! Restore: what was mounted when the agent ended comes back when it starts.
//!
//! First all leases, from what the cache itself has: until then nothing is evicted. Then the mounts, each in the place of
//! the dead one, and what was being staged goes on. Nobody outside this machine is asked. What can't be mounted again keeps
//! its lease and its record, and is told in the status.

use std::sync::Arc;

use bdnfs::cache::evict::Hold;
use bdnfs::snapshot::Snapshot;
use futures_util::{StreamExt, future, stream};

use super::host::{Host, blocking};
use super::hosted::Hosted;
use super::kept::Kept;
use super::snapshot;
use crate::control::api::{Failure, Lost};

/// How many mounts are made at once: each waits for the kernel, and one whose place does not answer must not hold up all.
const AT_ONCE: usize = 16;

/// A mount that could not be made again.
#[derive(Debug)]
pub struct Missing {
    /// What is kept of it.
    pub kept: Kept,
    /// Why it could not.
    pub why: Failure,
    /// It keeps its lease.
    pub _snapshot: Option<Arc<Snapshot>>,
}

impl Missing {
    /// What a client is told of it.
    pub fn told(&self) -> Lost {
        let source = self.kept.request.source.expose().to_owned();
        let mountpoint = self.kept.request.mountpoint.clone();
        Lost { id: self.kept.id, source, mountpoint, why: self.why.clone() }
    }
}

impl Host {
    /// Brings back what was mounted; lets go of `hold` as soon as all leases are there.
    pub async fn restore(self: &Arc<Self>, hold: Hold) {
        let kept = self.kept().await;
        self.table().last = kept.iter().map(|kept| kept.id).max().unwrap_or(0);
        let mut found = Vec::new();
        for kept in kept {
            let snapshot = self.again(&kept).await;
            found.push((kept, snapshot));
        }
        drop(hold);
        let staged: Vec<_> = stream::iter(found)
            .map(|(kept, snapshot)| self.bring_back(kept, snapshot))
            .buffer_unordered(AT_ONCE)
            .filter_map(future::ready)
            .collect()
            .await;
        // What is mounted is served at once. What is to be fetched anew waits for those who may have it.
        self.cluster_settled().await;
        for hosted in staged {
            hosted.stage();
        }
        self.ready.send_replace(true);
    }

    /// All records, oldest first.
    async fn kept(&self) -> Vec<Kept> {
        let Some(records) = self.records.clone() else { return Vec::new() };
        let mut kept = match blocking(move || Ok(records.all()?)).await {
            Ok(kept) => kept.into_iter().map(|(_, kept)| kept).collect::<Vec<_>>(),
            Err(failure) => {
                tracing::error!("what was mounted can't be brought back: {failure}");
                Vec::new()
            }
        };
        kept.sort_by_key(|kept| kept.id);
        kept
    }

    /// The snapshot of a mount, with its lease.
    async fn again(&self, kept: &Kept) -> Result<Arc<Snapshot>, Failure> {
        let request = self.equip(&kept.request);
        let engine = self.engine_of(&request).await?;
        let snapshot = snapshot::again(&engine, &self.cache, kept, &request).await?;
        if kept.staged {
            let held = Arc::clone(&snapshot);
            blocking(move || Ok(held.hold()?)).await?;
        }
        Ok(snapshot)
    }

    /// Mounts what was mounted; answers with the mount if it is to be staged.
    async fn bring_back(
        self: &Arc<Self>,
        kept: Kept,
        snapshot: Result<Arc<Snapshot>, Failure>,
    ) -> Option<Arc<Hosted>> {
        let (staged, id) = (kept.staged, kept.id);
        let mounted = match &snapshot {
            Ok(snapshot) => self.attach(snapshot, &kept.request).await,
            Err(failure) => Err(failure.clone()),
        };
        let why = match (mounted, snapshot.clone()) {
            (Ok(mount), Ok(snapshot)) => match self.register(snapshot, mount, kept.clone()).await {
                Ok(hosted) => return staged.then_some(hosted),
                Err(failure) => failure,
            },
            (Err(failure), _) | (_, Err(failure)) => failure,
        };
        let place = kept.request.mountpoint.display();
        tracing::error!("{} can't be mounted at {place} again: {why}", kept.request.source);
        let missing = Missing { kept, why, _snapshot: snapshot.ok() };
        self.table().missing.insert(id, missing);
        None
    }
}
