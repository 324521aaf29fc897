//! One mount of an agent: its snapshot, and how far it is staged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::manifest::Slice;
use bdnfs::snapshot::Snapshot;
use bdnfs::source::Uri;
use bdnfs::stage::Stage;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::attachment::Attachment;
use super::record::MountRecord;
use crate::api::{MountBackend, MountInfo, MountRequest, MountStatus, StageState, StageStatus};
use crate::telemetry::scrape::MountScrape;

/// The most blobs whose local bytes are counted: each costs a stat(2), and people wait for a status.
const MAX_COUNTED_BLOBS: u32 = 10_000;

/// A mount and what the agent knows of it.
#[derive(Debug)]
pub struct ManagedMount {
    snapshot: Arc<Snapshot>,
    mountpoint: PathBuf,
    attachment: RwLock<Arc<Attachment>>,
    /// Held while the mount is unmounted or its attachment replaced: an attachment made meanwhile would stay.
    changing: Mutex<()>,
    record: MountRecord,
    /// The request that made the mount, with its secrets.
    request: MountRequest,
    /// Whether an earlier agent mounted this, and this one goes on with that mount.
    resumed: bool,
    staged: AtomicBool,
    detached: AtomicBool,
    /// Whether the fd store has the mount's descriptors, so that the mount outlives this process.
    stored: AtomicBool,
    gone: watch::Sender<bool>,
    converting: watch::Sender<bool>,
    /// The reason why the mount is not native.
    note: Mutex<Option<String>>,
}

impl ManagedMount {
    /// A mount of `snapshot` that `request` asked for, and its record.
    pub fn new(
        snapshot: Arc<Snapshot>,
        attachment: Attachment,
        record: MountRecord,
        request: MountRequest,
    ) -> Self {
        let staged = AtomicBool::new(record.staged);
        Self {
            snapshot,
            mountpoint: attachment.mountpoint().to_owned(),
            // It may become native later.
            resumed: attachment.is_resumed() || attachment.is_native(),
            attachment: RwLock::new(Arc::new(attachment)),
            changing: Mutex::default(),
            record,
            request,
            staged,
            detached: AtomicBool::new(false),
            stored: AtomicBool::new(false),
            gone: watch::Sender::new(false),
            converting: watch::Sender::new(false),
            note: Mutex::default(),
        }
    }

    /// The record of the mount, as it is now.
    pub fn record(&self) -> MountRecord {
        MountRecord { staged: self.staged.load(Ordering::Relaxed), ..self.record.clone() }
    }

    /// Marks the mount as one to be staged. False where it is marked already.
    pub fn mark_staged(&self) -> bool {
        !self.staged.swap(true, Ordering::Relaxed)
    }

    /// Marks the mount as not to be staged: [`mark_staged`](Self::mark_staged) could not be recorded.
    pub fn unmark_staged(&self) {
        self.staged.store(false, Ordering::Relaxed);
    }

    /// The id of the mount.
    pub fn id(&self) -> u64 {
        self.record.id
    }

    /// The request that made the mount, with its secrets.
    pub fn request(&self) -> &MountRequest {
        &self.request
    }

    /// Whether an earlier agent made the mount: what was bound then shows it.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Sets whether the fd store has the mount's descriptors.
    pub fn set_stored(&self, stored: bool) {
        self.stored.store(stored, Ordering::Relaxed);
    }

    /// Whether the fd store has the mount's descriptors, so that the mount outlives this process.
    pub fn is_stored(&self) -> bool {
        self.stored.load(Ordering::Relaxed)
    }

    /// The mount point.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The attachment that serves the mount now.
    pub fn attachment(&self) -> Arc<Attachment> {
        self.attachment.read().clone()
    }

    /// Replaces the mount's attachment by the one that `replace` makes of it, and returns whether it made one. A detached mount
    /// keeps its own. Blocks on the kernel.
    ///
    /// # Errors
    /// Those of `replace`.
    pub(super) fn replace_attachment(
        &self,
        replace: impl FnOnce(&Attachment) -> Result<Option<Attachment>>,
    ) -> Result<bool> {
        let _changing = self.changing.lock();
        let replaced = if self.is_detached() { None } else { replace(&self.attachment())? };
        let is_replaced = replaced.is_some();
        replaced.into_iter().for_each(|new| *self.attachment.write() = Arc::new(new));
        Ok(is_replaced)
    }

    /// Marks the mount as about to become native: until that is [known](Self::end_conversion), its stage is not reported as done.
    /// False where it is marked, or is no FUSE mount of this process's own.
    pub(super) fn begin_conversion(&self) -> bool {
        // Asked under the lock of the mark: one that was just converted is unmarked, and no FUSE mount any more.
        self.converting.send_if_modified(|converting| {
            let is_lazy = matches!(&*self.attachment(), Attachment::Fuse(mount) if !mount.is_resumed());
            let begins = is_lazy && !*converting;
            *converting |= begins;
            begins
        })
    }

    /// Waits while the mount is about to become native.
    pub(super) async fn await_conversion(&self) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.converting.subscribe().wait_for(|converting| !converting).await;
    }

    /// Ends the conversion to a native mount; `note` says why the mount is not native, where it failed.
    pub(super) fn end_conversion(&self, note: Option<String>) {
        *self.note.lock() = note;
        self.converting.send_replace(false);
    }

    /// The mounted snapshot.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Detaches the mount from the directory tree; processes that use it go on. Blocks on the kernel.
    ///
    /// # Errors
    /// Those of [`Attachment::detach`].
    pub fn detach(&self) -> Result<()> {
        let _changing = self.changing.lock();
        self.attachment().detach()?;
        self.detached.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Unmounts the mount. From then on it counts as detached, though it may end a moment later. Blocks on the kernel.
    ///
    /// # Errors
    /// Those of [`Attachment::unmount`].
    pub fn unmount(&self) -> Result<()> {
        let _changing = self.changing.lock();
        self.attachment().unmount()?;
        self.detached.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the mount point still shows this mount: somebody else may have unmounted it. Blocks on the kernel.
    ///
    /// # Errors
    /// Those of [`Attachment::is_mounted`].
    pub fn is_mounted(&self) -> Result<bool> {
        let _changing = self.changing.lock();
        self.attachment().is_mounted()
    }

    /// Whether the mount is detached: it lives on only for the processes that use it.
    pub fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    /// Whether processes see this mount at `mountpoint`.
    pub fn is_at(&self, mountpoint: &Path) -> bool {
        self.mountpoint() == mountpoint && !self.is_detached()
    }

    /// Marks the mount as removed: it is unmounted, and its leases and records are gone.
    pub fn set_gone(&self) {
        self.gone.send_replace(true);
    }

    /// Whether the mount is removed: unmounted, by anybody, and its leases and records gone.
    pub fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    /// Waits until the mount is unmounted, and its leases and records are gone.
    pub async fn await_removal(&self) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// The description of the mount for clients.
    pub fn info(&self) -> MountInfo {
        let manifest = self.snapshot.manifest();
        MountInfo {
            id: self.id(),
            source: manifest.source().to_owned(),
            requested: self.request.weights.source.expose().parse().ok().map(|uri: Uri| uri.to_string()),
            mountpoint: self.mountpoint().to_owned(),
            snapshot: self.snapshot.id().to_string(),
            files: manifest.files(),
            bytes: manifest.bytes(),
            passthrough: self.attachment().passthrough(),
            via: if self.attachment().is_native() { MountBackend::Native } else { MountBackend::Fuse },
            warnings: self.note.lock().iter().cloned().collect(),
        }
    }

    /// The status of the mount, with so many bytes of it `local`, where that is known.
    pub fn status(&self, local: Option<u64>) -> MountStatus {
        let traffic = self.snapshot.traffic();
        MountStatus {
            mounted: self.info(),
            local,
            since: self.record.since,
            traffic,
            stage: self.snapshot.staged().map(|stage| self.status_of(&stage)),
        }
    }

    /// Counts the bytes of the mount that are local; `None` where that takes too long or fails. Touches the local disk.
    pub fn local(&self) -> Option<u64> {
        self.count_local().unwrap_or_else(|error| {
            tracing::warn!("cannot tell how much of {} is local: {error}", self.mountpoint().display());
            None
        })
    }

    fn count_local(&self) -> Result<Option<u64>> {
        let manifest = self.snapshot.manifest();
        if manifest.blobs() > MAX_COUNTED_BLOBS {
            let staged = matches!(self.stage_state(), Some(StageState::Done));
            return Ok(staged.then(|| manifest.bytes()));
        }
        let mut local = 0;
        for blob in 0..manifest.blobs() {
            let len = manifest.blob_size(blob)?;
            local += self.snapshot.local_bytes(Slice { blob, offset: 0, len })?;
        }
        Ok(Some(local))
    }

    /// Starts to stage the mount, unless that is under way or done. With `verify` it always starts, and verifies what is local
    /// already.
    pub fn stage(&self, verify: bool) -> StageStatus {
        let stage = if verify { self.snapshot.stage_verified() } else { self.snapshot.stage() };
        self.status_of(&stage)
    }

    /// The state of the mount's stage; `None` where it was never staged.
    pub fn stage_state(&self) -> Option<StageState> {
        self.snapshot.staged().map(|stage| self.status_of(&stage).state)
    }

    /// The values of the mount's metrics.
    pub fn scrape(&self) -> MountScrape {
        let state = match self.stage_state() {
            None => "ready",
            Some(StageState::Running) => "staging",
            Some(StageState::Done) => "staged",
            Some(StageState::Failed(_)) => "failed",
        };
        let (manifest, traffic) = (self.snapshot.manifest(), self.snapshot.traffic());
        let (source, mountpoint) = (manifest.source().to_owned(), self.mountpoint().display().to_string());
        MountScrape { source, mountpoint, state, bytes: manifest.bytes(), traffic }
    }

    /// The progress of the mount's stage at the end of the stage, or after `timeout`; `None` where it was never staged.
    pub async fn staging(&self, timeout: Duration) -> Option<StageStatus> {
        let stage = self.snapshot.staged()?;
        // At the end or at the timeout, the answer is the state at that moment.
        let settled = async {
            if stage.done().await.is_ok() {
                self.await_conversion().await;
            }
        };
        tokio::time::timeout(timeout, settled).await.ok();
        Some(self.status_of(&stage))
    }

    /// The progress of the mount's `stage`, for clients.
    fn status_of(&self, stage: &Stage) -> StageStatus {
        let state = match stage.outcome() {
            None => StageState::Running,
            Some(Ok(())) if *self.converting.borrow() => StageState::Running,
            Some(Ok(())) => StageState::Done,
            Some(Err(error)) => StageState::Failed(error.into()),
        };
        // Read after the outcome, so that the figures of a finished stage are final.
        StageStatus { progress: stage.progress(), state }
    }
}
