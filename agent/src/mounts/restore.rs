//! Restore: what was mounted when the agent ended comes back when it starts.
//!
//! What a [holder](crate::fdstore) has held meanwhile is not mounted again: it was never gone, and is served on.
//!
//! First all leases, from what the cache itself has: until then nothing is evicted. Then the mounts, each in the place of
//! the dead one, and what was being staged goes on. Nobody outside this machine is asked. What can't be mounted again keeps
//! its lease and its record, and is told in the status. What was mounted for a job that has ended is cleared away: that agent
//! died while it took it down.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bdnfs::cache::eviction::EvictionPause;
use bdnfs::snapshot::Snapshot;
use bdnfs_fs::handover::MountDescriptors;
use bdnfs_fs::{Mount, mounts};
use futures_util::{StreamExt, future, stream};

use crate::api::{Failure, LostMount, MountRequest};
use crate::fdstore::keeper::Found;
use crate::jobs::Reader;
use crate::mounts::host::{Host, blocking};
use crate::mounts::hosted::Hosted;
use crate::mounts::kept::Kept;
use crate::mounts::snapshot;

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
    pub fn told(&self) -> LostMount {
        let source = self.kept.request.weights.source.expose().to_owned();
        let mountpoint = self.kept.request.weights.mountpoint.clone();
        LostMount { id: self.kept.id, source, mountpoint, why: self.why.clone() }
    }
}

impl Host {
    /// Brings back what was mounted, `held` or not; lets go of `hold` as soon as all leases are there.
    pub async fn restore(self: &Arc<Self>, hold: EvictionPause, held: Vec<Found>) {
        let mut held: HashMap<u64, Found> = held.into_iter().map(|held| (held.id, held)).collect();
        let kept = self.kept().await;
        self.table().last = kept.iter().map(|kept| kept.id).max().unwrap_or(0);
        let mut found = Vec::new();
        for kept in kept {
            let (kept, request, held) = before(kept, &mut held);
            if self.jobs().reader_of(&request.weights.mountpoint) == Reader::Gone {
                drop(held);
                self.clear_away(kept.id, request.weights.mountpoint).await;
                continue;
            }
            let snapshot = self.again(&kept, &request).await;
            found.push((kept, request, held, snapshot));
        }
        drop(hold);
        // Nobody knows what they are: they were about to end.
        for (id, unknown) in held {
            drop(unknown);
            self.no_longer_held(id).await;
        }
        let staged: Vec<_> = stream::iter(found)
            .map(|(kept, request, held, snapshot)| self.bring_back(kept, request, held, snapshot))
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
    async fn again(&self, kept: &Kept, request: &MountRequest) -> Result<Arc<Snapshot>, Failure> {
        let request = self.equip(request);
        let engine = self.engine_of(&request).await?;
        let snapshot = snapshot::again(&engine, &self.cache, kept, &request).await?;
        let reader = self.jobs().reader_of(&kept.request.weights.mountpoint);
        if kept.staged || reader == (Reader::Job { has_room: true }) {
            let held = Arc::clone(&snapshot);
            blocking(move || Ok(held.hold()?)).await?;
        }
        Ok(snapshot)
    }

    /// Takes down what was mounted for a job that has ended.
    async fn clear_away(self: &Arc<Self>, id: u64, place: PathBuf) {
        tracing::info!("what was mounted at {} is not wanted any more", place.display());
        self.no_longer_held(id).await;
        let host = Arc::clone(self);
        let cleared = blocking(move || {
            // It may be gone already, and its place too.
            let _ = mounts::detach(&place);
            let _ = std::fs::remove_dir(&place);
            host.drop_record(id);
            Ok(())
        });
        let _ = cleared.await;
    }

    /// Serves a mount on that was `held`; mounts it anew where none was, or that one can't be served.
    async fn resume(
        &self,
        id: u64,
        snapshot: &Arc<Snapshot>,
        request: &MountRequest,
        held: Option<MountDescriptors>,
    ) -> Result<Mount, Failure> {
        let Some(held) = held else { return self.attach(snapshot, request).await };
        let (options, served) = (self.options(request), Arc::clone(snapshot));
        let (runtime, place) = (tokio::runtime::Handle::current(), request.weights.mountpoint.clone());
        let resumed = blocking(move || Ok(Mount::resume(served, runtime, &place, &options, held)?)).await;
        match resumed {
            Ok(mount) => Ok(mount),
            Err(failure) => {
                tracing::warn!("{} can't be served on: {failure}", request.weights.mountpoint.display());
                // Then it ends, and gives way to a new one.
                self.no_longer_held(id).await;
                self.attach(snapshot, request).await
            }
        }
    }

    /// Has what was mounted be so; answers with the mount if it is to be staged.
    async fn bring_back(
        self: &Arc<Self>,
        kept: Kept,
        request: MountRequest,
        held: Option<MountDescriptors>,
        snapshot: Result<Arc<Snapshot>, Failure>,
    ) -> Option<Arc<Hosted>> {
        let (staged, id) = (kept.staged, kept.id);
        let mounted = match &snapshot {
            Ok(snapshot) => self.resume(id, snapshot, &request, held).await,
            Err(failure) => {
                drop(held);
                self.no_longer_held(id).await;
                Err(failure.clone())
            }
        };
        let why = match (mounted, snapshot.clone()) {
            (Ok(mount), Ok(snapshot)) => match self.register(snapshot, mount, kept.clone(), request).await {
                Ok(hosted) => return staged.then_some(hosted),
                Err(failure) => failure,
            },
            (Err(failure), _) | (_, Err(failure)) => failure,
        };
        let place = kept.request.weights.mountpoint.display();
        tracing::error!("{} can't be mounted at {place} again: {why}", kept.request.weights.source);
        let missing = Missing { kept, why, _snapshot: snapshot.ok() };
        self.table().missing.insert(id, missing);
        None
    }
}

/// What is known of a mount from before: its record, what was asked for, and its descriptors if it was held. Then its secrets
/// are there, too.
fn before(kept: Kept, held: &mut HashMap<u64, Found>) -> (Kept, MountRequest, Option<MountDescriptors>) {
    let bare = kept.request.clone();
    let Some(Found { note, held, .. }) = held.remove(&kept.id) else { return (kept, bare, None) };
    match serde_json::from_str(&note) {
        Ok(request) => (Kept { bereft: false, ..kept }, request, Some(held)),
        Err(error) => {
            tracing::warn!("the secrets of {} are lost: {error}", bare.weights.mountpoint.display());
            (kept, bare, Some(held))
        }
    }
}
