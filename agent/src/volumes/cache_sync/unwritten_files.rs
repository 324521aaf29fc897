//! Homes on a disk that failed to write some of their files.

use bdnfs::error::{Kind, Result};
use bdnfs::volume::VolumeDirectory;

use super::SyncState;
use crate::volumes::cache_home::CacheHome;

/// The value of [`SyncState::begun_in`] that stands for no boot: the disk failed to write some of the snapshot that the home began
/// with.
const LOST: &str = "lost";

impl CacheHome {
    /// Makes the home, whose state is `state`, durable. What the disk failed to write is recorded, and where that is some of the
    /// snapshot that it began with, [`begun_in`](SyncState::begun_in) stays, so that this is pulled again. Returns its state then.
    /// Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub(super) fn flush(&self, state: SyncState) -> Result<SyncState> {
        let directory = VolumeDirectory::open(&self.tree())?;
        match directory.sync() {
            // Another may have been told of what was lost of a snapshot, whose files look unchanged.
            Ok(()) if state.begun_in.is_none() => Ok(state),
            flushed => self.record_unwritten(&directory, state, flushed),
        }
    }

    /// Asks each file whether the disk failed to write it, after the flush of the whole disk that is `flushed`: the next one says
    /// nothing.
    fn record_unwritten(
        &self,
        directory: &VolumeDirectory,
        mut state: SyncState,
        flushed: Result<()>,
    ) -> Result<SyncState> {
        let scan = match directory.walk() {
            // There are too many to be saved.
            Err(error) if error.kind() == Kind::Invalid => {
                return flushed.map(|()| SyncState { begun_in: None, ..state });
            }
            scan => scan?,
        };
        let pulled = state.begun_in.as_ref().map(|_| scan.untouched_since(state.since)).unwrap_or_default();
        let (mut lost, mut is_pulled_lost, mut failure) = (0, false, None);
        for (path, file) in &scan.files {
            match directory.is_written(path) {
                Ok(true) => {}
                Ok(false) if pulled.contains(path) => is_pulled_lost = true,
                Ok(false) => {
                    state.unwritten.add(file);
                    lost += 1;
                }
                Err(error) => failure = Some(error),
            }
        }
        if is_pulled_lost {
            state.begun_in = Some(LOST.to_owned());
        }
        if lost > 0 || is_pulled_lost {
            tracing::warn!("{self}: the disk failed to write some of its files");
            // First: no file tells it a second time.
            self.write_sync_state(&state)?;
        } else {
            // It was another directory of that disk.
            flushed?;
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(SyncState { begun_in: state.begun_in.take().filter(|_| is_pulled_lost), ..state }),
        }
    }
}
