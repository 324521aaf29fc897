//! One mount of a daemon: its snapshot, and how far it is staged.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bdnfs::manifest::Slice;
use bdnfs::snapshot::Snapshot;
use bdnfs::stage::Stage;
use bdnfs_fs::{Mount, mounts};
use tokio::sync::watch;

use crate::api::{MountInfo, MountRequest, MountStatus, StageState, StageStatus};
use crate::mounts::kept::Kept;

/// Each blob costs a look at the disk; beyond so many a status would take longer than people wait.
const COUNTED_BLOBS: u32 = 10_000;

/// A mount and what is known of it.
#[derive(Debug)]
pub struct Hosted {
    snapshot: Arc<Snapshot>,
    mount: Mount,
    kept: Kept,
    /// What was asked for, with its secrets.
    request: MountRequest,
    staged: AtomicBool,
    detached: AtomicBool,
    /// Whether it outlives this process.
    held: AtomicBool,
    gone: watch::Sender<bool>,
}

impl Hosted {
    /// A mount of `snapshot` that `request` asked for, and what is to be kept of it.
    pub fn new(snapshot: Arc<Snapshot>, mount: Mount, kept: Kept, request: MountRequest) -> Self {
        let staged = AtomicBool::new(kept.staged);
        Self {
            snapshot,
            mount,
            kept,
            request,
            staged,
            detached: AtomicBool::new(false),
            held: AtomicBool::new(false),
            gone: watch::Sender::new(false),
        }
    }

    /// What is to be kept of it.
    pub fn kept(&self) -> Kept {
        Kept { staged: self.staged.load(Ordering::Relaxed), ..self.kept.clone() }
    }

    /// Notes that all of it is to be local; false where that is known already.
    pub fn to_be_staged(&self) -> bool {
        !self.staged.swap(true, Ordering::Relaxed)
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.kept.id
    }

    /// What was asked for, with its secrets.
    pub fn request(&self) -> &MountRequest {
        &self.request
    }

    /// Notes whether it outlives this process.
    pub fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Whether it does.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Where it is.
    pub fn mountpoint(&self) -> &Path {
        self.mount.mountpoint()
    }

    /// The mount itself.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// What is mounted.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Takes it out of the tree; who uses it may go on. Blocks on the kernel.
    pub fn detach(&self) -> bdnfs::error::Result<()> {
        mounts::detach(self.mountpoint())?;
        self.detached.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether that was done: it only lives on for those who still use it.
    pub fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    /// Says that nothing is left of it: it is unmounted, and what it held elsewhere was given back.
    pub fn forgotten(&self) {
        self.gone.send_replace(true);
    }

    /// Waits until nothing is left of it.
    pub async fn gone(&self) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// What it is.
    pub fn mounted(&self) -> MountInfo {
        let manifest = self.snapshot.manifest();
        MountInfo {
            id: self.id(),
            source: manifest.source().to_owned(),
            mountpoint: self.mountpoint().to_owned(),
            snapshot: self.snapshot.id().to_string(),
            files: manifest.files(),
            bytes: manifest.bytes(),
            passthrough: self.mount.passthrough(),
            warnings: Vec::new(),
        }
    }

    /// How it is doing. Touches the local disk.
    pub fn status(&self) -> MountStatus {
        let local = self.local().unwrap_or_else(|error| {
            tracing::warn!("cannot tell how much of {} is local: {error}", self.mountpoint().display());
            None
        });
        let traffic = self.snapshot.traffic();
        MountStatus {
            mounted: self.mounted(),
            local,
            since: self.kept.since,
            traffic,
            stage: self.snapshot.staged().map(|stage| told(stage)),
        }
    }

    fn local(&self) -> bdnfs::error::Result<Option<u64>> {
        let manifest = self.snapshot.manifest();
        if manifest.blobs() > COUNTED_BLOBS {
            let staged = matches!(self.stage_state(), Some(StageState::Done));
            return Ok(staged.then(|| manifest.bytes()));
        }
        let mut local = 0;
        for blob in 0..manifest.blobs() {
            let len = manifest.blob_size(blob)?;
            local += self.snapshot.local(Slice { blob, offset: 0, len })?;
        }
        Ok(Some(local))
    }

    /// Begins to make all of it local, unless that is under way or done.
    pub fn stage(&self) -> StageStatus {
        told(&self.snapshot.stage())
    }

    /// Whether its stage goes on; `None`: it was never asked for.
    pub fn stage_state(&self) -> Option<StageState> {
        self.snapshot.staged().map(|stage| told(stage).state)
    }

    /// How far that is, at its end or after `news`; `None`: it was never asked for.
    pub async fn staging(&self, news: Duration) -> Option<StageStatus> {
        let stage = self.snapshot.staged()?;
        // Either way the state is told as it is then.
        tokio::time::timeout(news, stage.done()).await.ok();
        Some(told(stage))
    }
}

fn told(stage: &Stage) -> StageStatus {
    let state = match stage.outcome() {
        None => StageState::Running,
        Some(Ok(())) => StageState::Done,
        Some(Err(error)) => StageState::Failed(error.into()),
    };
    // After the outcome: done is then told with figures that say so.
    StageStatus { progress: stage.progress(), state }
}
