//! A cache home and what is saved of it in a mirror: each is updated to the state of the other.
//!
//! ```text
//!   pull:  what other nodes saved since this one last did ──> merge ──> the home
//!   save:   pull, then what was changed here ──> a snapshot in the mirror, the next generation of the cache's ref
//! ```
//!
//! Either is done under the home's sync lock ([`CacheHome::try_sync_lock`]), and while no job uses it. A home in use can only be
//! saved where nothing is to be pulled, with the files that no job writes. The file `sync.json` beside the tree says with which
//! snapshot it was last the same, and since when what was done to a file counts as a change.
//!
//! What is pulled is durable before that says so, with one exception: a user of a home that has nothing yet does not wait for the
//! disk. What a power cut has left of such a home is pulled again (`home_recovery`).

mod home_changes;
mod home_claim;
mod home_pull;
mod home_recovery;
mod home_report;
mod interrupted_sync;
mod sync_state;
#[cfg(test)]
mod tests;
mod unwritten_files;

use std::fs::File;
use std::sync::Arc;

use bdnfs::digest::Digest;
use bdnfs::download::{DownloadProgress, download_some};
use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::Manifest;
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::{Ref, source_key};
use bdnfs::mirroring::{
    MirrorConfig, MirrorOutcome, MirrorProgress, MirrorSource, PreviousState, mirror_source_announced,
};
use bdnfs::source::Patterns;
use bdnfs::task::blocking;
use bdnfs::tree_merge::{MergePlan, MergeTree, is_hidden_change, merge, tree_of};
use bdnfs::volume::{LeftOutFiles, SEAL_QUIET_PERIOD, SkipReason, VolumeDirectory, ignore_lease_signal};
use futures_util::FutureExt;
use tokio::time::sleep;

use super::cache_home::CacheHome;
use super::trash;
use crate::context::Context;
use home_changes::{ChangedHome, InUse};
pub use home_report::{LIVING_REPORT_AGE, REPORT_INTERVAL, UnsavedElsewhere};
pub use sync_state::SyncState;
use sync_state::{PublishingSnapshot, SavedSnapshot};

/// The number of attempts at a save when another node saves at the same time, or files are changed while they are read.
const SAVE_ATTEMPT_LIMIT: u32 = 5;

/// The sync of a home with its mirror, under the home's sync lock.
#[derive(Clone, Debug)]
pub struct CacheSync {
    home: CacheHome,
    mirror: Mirror,
    /// Work on the disk holds it to its end, also when it is given up.
    lock: Arc<File>,
}

/// The outcome of updating a home to the state that is saved.
#[derive(Clone, Debug, Default)]
pub struct PulledCache {
    /// The saved state; `None` where nothing is saved.
    pub latest: Option<Ref>,
    /// Number of entries that were pulled, new or changed.
    pub taken: usize,
    /// Number of entries that were removed.
    pub removed: usize,
    /// Bytes that were pulled.
    pub bytes: u64,
    /// The paths that were changed here and elsewhere, of which the later change was kept.
    pub conflicts: Vec<Vec<u8>>,
    /// Whether the home was removed on another node, and therefore emptied here.
    pub is_emptied: bool,
    generation: u64,
}

/// The outcome of saving a home.
#[derive(Debug)]
pub struct SavedCache {
    /// The outcome of the update before it.
    pub pulled: PulledCache,
    /// The published snapshot; `None` where nothing was changed.
    pub published: Option<MirrorOutcome>,
    /// The files that are being written, or that the disk failed to write: they are saved as they were before, or not at all.
    pub left_out: LeftOutFiles,
    /// The number of entries that can't be saved: fifos, sockets, devices.
    pub skipped: usize,
    /// The files and directories that can't be read, and why: what was saved of them before stays saved.
    pub unreadable: Vec<(Vec<u8>, SkipReason)>,
    /// The reason why other nodes were not told, who take it for not saved.
    pub unreported: Option<Error>,
}

/// The purpose for which a home is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PullPurpose {
    /// For a user that is about to begin.
    Use,
    /// For all else.
    Save,
}

impl CacheSync {
    /// The `home`, whose sync `lock` it is, and the `mirror` that it is saved in.
    pub fn new(home: CacheHome, mirror: Mirror, lock: Arc<File>) -> Self {
        Self { home, mirror, lock }
    }

    /// Runs `work` on the home on a blocking thread, under the lock.
    async fn with_home<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CacheHome) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (home, lock) = (self.home.clone(), Arc::clone(&self.lock));
        blocking(move || {
            let _lock = lock;
            work(&home)
        })
        .await
    }

    /// Pulls what other nodes saved into the home, unless it is there; it is durable then. No job may use the home meanwhile.
    ///
    /// # Errors
    /// Those of the mirror; [`Kind::Corrupt`] for content that is not what was saved, [`Kind::Disk`], [`Kind::NoSpace`].
    pub async fn pull(&self, progress: &DownloadProgress) -> Result<PulledCache> {
        self.pull_for(PullPurpose::Save, progress).await
    }

    /// Like [`pull`](Self::pull), for a user that is about to begin: a home that has nothing yet is durable only when it is next
    /// saved, or no longer used. Until then, what a power cut leaves of it is pulled again.
    ///
    /// # Errors
    /// Those of [`pull`](Self::pull).
    pub async fn pull_for_use(&self, progress: &DownloadProgress) -> Result<PulledCache> {
        self.pull_for(PullPurpose::Use, progress).await
    }

    async fn pull_for(&self, purpose: PullPurpose, progress: &DownloadProgress) -> Result<PulledCache> {
        let latest = self.mirror.latest(&self.home.key()).await?;
        let nothing = PulledCache { generation: latest.generation, ..PulledCache::default() };
        // First: what a save that was published has made durable stays.
        self.note_last_save().await?;
        let recover = |home: &CacheHome| home.recover().and_then(|()| home.sync_state());
        let state = self.with_home(recover).await?;
        let Some(found) = latest.content? else { return Ok(nothing) };
        if found.removed {
            if !state.is_in(self.mirror.name()) {
                return Ok(nothing);
            }
            self.with_home(CacheHome::discard).await?;
            return Ok(PulledCache { is_emptied: true, ..nothing });
        }
        let id = found.manifest;
        let pulled = PulledCache { latest: Some(found), ..nothing };
        let (name, generation) = (self.mirror.name().to_owned(), pulled.generation);
        if state.manifest == Some(id.to_string()) {
            self.with_home(move |home| home.note_saved_in(&name, generation)).await?;
            return Ok(pulled);
        }
        let target = SavedSnapshot { manifest: id, mirror: name, generation };
        let begun = state.pulling.clone().filter(|begun| *begun != target && begun.mirror == target.mirror);
        let state = match begun {
            Some(begun) => self.finish_begun(begun, state, purpose, progress).await?,
            None => state,
        };
        let MergePlan { take, remove, conflicts } =
            self.pull_snapshot(target, &state, purpose, progress).await?;
        Ok(PulledCache {
            taken: take.len(),
            removed: remove.len(),
            bytes: progress.read().bytes,
            conflicts: conflicts.into_iter().collect(),
            ..pulled
        })
    }

    /// Brings the home, whose state is `state`, to the snapshot `target`, but for what was changed here.
    async fn pull_snapshot(
        &self,
        target: SavedSnapshot,
        state: &SyncState,
        purpose: PullPurpose,
        progress: &DownloadProgress,
    ) -> Result<MergePlan> {
        let base = match state.manifest.as_deref().map(str::parse) {
            // One that was collected meanwhile: all that is here counts as changed.
            Some(Ok(base)) => self.mirror.manifest(&base).await?,
            _ => None,
        };
        let theirs = self.manifest(&target.manifest).await?;
        let since = base.as_ref().map_or(0, |_| state.since);
        let is_first = state.manifest.is_none();
        let read = move |home: &CacheHome| {
            home.begin_pull()?;
            let tree = |manifest: &Manifest| tree_of(manifest, &manifest.file_versions()?);
            let base = base.as_ref().map_or(Ok(MergeTree::new()), tree)?;
            let (scan, theirs) = (VolumeDirectory::open(&home.tree())?.walk()?, tree(&theirs)?);
            let is_new = is_first && scan.is_empty() && !home.is_shared();
            if is_new && purpose == PullPurpose::Use {
                home.begin_undurable()?;
            }
            let ours = scan.tree(since);
            let plan = merge(&base, &ours, &theirs);
            let is_kept = |path: &Vec<u8>| !plan.take.contains(path) && !plan.remove.contains(path);
            let hides =
                |(path, now): &(&Vec<u8>, &_)| is_hidden_change(base.get(*path), now) && is_kept(path);
            let hidden: Vec<_> = ours.iter().filter(hides).map(|(path, _)| path.clone()).collect();
            Ok((plan, theirs, hidden))
        };
        let (plan, theirs, hidden) = self.with_home(read).await?;
        if !plan.take.is_empty() {
            let (id, incoming) = (&target.manifest, self.home.incoming());
            download_some(&self.mirror, id, &incoming, plan.take.clone(), progress).await?;
        }
        self.with_home(move |home| {
            home.finish_pull(&plan, &theirs, target, &hidden)?;
            Ok(plan)
        })
        .await
    }

    /// Saves the home, after what other nodes saved was pulled into it. No job may use it meanwhile. The process ignores SIGIO from
    /// now on.
    ///
    /// # Errors
    /// Those of [`pull`](Self::pull) and [`mirror_source_announced`]; [`Kind::Busy`] where other nodes save all the time.
    pub async fn save(&self, config: MirrorConfig, progress: &MirrorProgress) -> Result<SavedCache> {
        ignore_lease_signal();
        let mut attempt = 1;
        loop {
            let pulled = self.pull(&DownloadProgress::default()).await?;
            match self.publish(pulled, None, config, progress).await {
                Err(error) if error.kind() == Kind::Busy && attempt < SAVE_ATTEMPT_LIMIT => attempt += 1,
                saved => {
                    let mut saved = saved?;
                    self.with_home(|home| home.clear_pending_save()).await?;
                    saved.unreported = self.home.report_use(&self.mirror, false).await.err();
                    return Ok(saved);
                }
            }
        }
    }

    /// Saves the home while jobs use it, without the files that they write; so many bytes a second are read at most. `None` where
    /// other nodes saved meanwhile, which can only be pulled when no job uses it. The process ignores SIGIO from now on.
    ///
    /// # Errors
    /// Those of [`mirror_source_announced`]; [`Kind::Changed`] where files are changed again and again while they are read.
    pub async fn save_in_use(
        &self,
        bytes_per_second: Option<u64>,
        config: MirrorConfig,
        progress: &MirrorProgress,
    ) -> Result<Option<SavedCache>> {
        ignore_lease_signal();
        let mut attempt = 1;
        loop {
            let latest = self.mirror.latest(&self.home.key()).await?;
            let state = self.note_last_save().await?;
            let found = latest.content?;
            let is_newest = match &found {
                None => true,
                Some(found) if found.removed => !state.is_in(self.mirror.name()),
                Some(found) => state.manifest == Some(found.manifest.to_string()),
            };
            if !is_newest {
                return Ok(None);
            }
            let found = found.filter(|found| !found.removed);
            let pulled =
                PulledCache { generation: latest.generation, latest: found, ..PulledCache::default() };
            match self.publish(pulled, Some(InUse { bytes_per_second }), config, progress).await {
                Err(error) if error.kind() == Kind::Busy => return Ok(None),
                Err(error) if error.kind() == Kind::Changed && attempt < SAVE_ATTEMPT_LIMIT => {
                    attempt += 1;
                    // What was touched just before the walk counts as being written.
                    sleep(SEAL_QUIET_PERIOD).await;
                }
                saved => {
                    let mut saved = saved?;
                    saved.unreported = self.home.report_use(&self.mirror, true).await.err();
                    return Ok(Some(saved));
                }
            }
        }
    }

    async fn publish(
        &self,
        pulled: PulledCache,
        in_use: Option<InUse>,
        config: MirrorConfig,
        progress: &MirrorProgress,
    ) -> Result<SavedCache> {
        let former = match &pulled.latest {
            Some(found) => Some(self.manifest(&found.manifest).await?),
            None => None,
        };
        let changed = self.with_home(move |home| home.changes(former.as_ref(), in_use)).await?;
        let ChangedHome { origin, since, left_out, skipped, unreadable } = changed;
        let saved = SavedCache { pulled, published: None, left_out, skipped, unreadable, unreported: None };
        let Some(origin) = origin else { return Ok(saved) };
        let pulled = &saved.pulled;
        let follows = PreviousState::After(pulled.generation);
        let source = MirrorSource::local(self.home.source(), Arc::new(origin), follows);
        let announce = |next: &Ref| {
            let (sync, manifest, mirror) = (self.clone(), next.manifest, self.mirror.name().to_owned());
            let snapshot = SavedSnapshot { manifest, mirror, generation: pulled.generation + 1 };
            let next = PublishingSnapshot { snapshot, since };
            async move { sync.with_home(|home| home.begin_publishing(next)).await }.boxed()
        };
        let published = mirror_source_announced(&self.mirror, &source, config, progress, &announce).await?;
        // Its disk may have gone meanwhile, and what was written there is on another.
        self.mirror.ensure_exists().await?;
        let manifest = Some(published.latest_ref.manifest.to_string());
        let unsaved_since = Some(since).filter(|_| in_use.is_some() || !saved.left_out.is_empty());
        let mirror = Some(self.mirror.name().to_owned());
        let generation = pulled.generation + u64::from(published.new);
        self.with_home(move |home| {
            let SyncState { boot, begun_in, unwritten, .. } = home.sync_state()?;
            // Not all of what was pulled was asked whether the disk failed to write it.
            let begun_in = begun_in.filter(|_| in_use.is_some());
            let state = SyncState {
                manifest,
                since,
                boot,
                begun_in,
                unwritten,
                unsaved_since,
                mirror,
                generation,
                ..SyncState::default()
            };
            home.write_sync_state(&state)
        })
        .await?;
        Ok(SavedCache { published: Some(published).filter(|published| published.new), ..saved })
    }

    async fn manifest(&self, id: &Digest) -> Result<Manifest> {
        let missing = || {
            let text = format!("the mirror {} lacks the manifest {id} of {}", self.mirror.name(), self.home);
            Error::new(Kind::Corrupt, text)
        };
        self.mirror.manifest(id).await?.ok_or_else(missing)
    }
}

impl CacheHome {
    /// The key of its ref in a mirror.
    pub fn key(&self) -> Digest {
        source_key(&self.source(), &Patterns::default())
    }

    /// Empties the home.
    fn discard(&self) -> Result<()> {
        let failed = || format!("cannot empty {}", self.path().display());
        self.move_to_trash(&self.tree()).and_then(|()| self.create_tree()).with_context(failed)?;
        let state = self.sync_state()?;
        let SyncState { boot, mirror, generation, .. } = state;
        self.write_sync_state(&SyncState { boot, mirror, generation, ..SyncState::default() })?;
        trash::empty(self.trash().to_owned());
        Ok(())
    }
}
