//! Interrupted saves and pulls, and what they had done.

use bdnfs::download::DownloadProgress;
use bdnfs::error::{Kind, Result};

use super::{CacheSync, PullPurpose, SavedSnapshot, SyncState};
use crate::volumes::cache_home::CacheHome;

impl CacheSync {
    /// The state of the home, also where the last save was interrupted when its snapshot was published, and not noted yet.
    pub(super) async fn note_last_save(&self) -> Result<SyncState> {
        let (state, name) = (self.with_home(CacheHome::sync_state).await?, self.mirror.name());
        let begun = state.publishing.as_ref().map(|next| &next.snapshot);
        let begun = begun.filter(|snapshot| snapshot.mirror == name);
        if begun.is_some() || (state.manifest.is_some() && state.mirror.as_deref() == Some(name)) {
            // What is in the directory of one whose disk has gone says nothing.
            self.mirror.ensure_exists().await?;
        }
        let Some(begun) = begun else { return Ok(state) };
        match self.mirror.generation(&self.home.key(), begun.generation).await {
            Ok(Some(found)) if !found.removed && found.manifest == begun.manifest => {
                self.with_home(CacheHome::note_published).await
            }
            // A damaged one is not known, as one that was collected.
            Err(error) if error.kind() != Kind::Corrupt => Err(error),
            _ => Ok(state),
        }
    }

    /// Brings the home to the snapshot `begun`, of which parts have come, where that is available: they would count as changed.
    /// Returns its state then.
    pub(super) async fn finish_begun(
        &self,
        begun: SavedSnapshot,
        state: SyncState,
        purpose: PullPurpose,
        progress: &DownloadProgress,
    ) -> Result<SyncState> {
        match self.pull_snapshot(begun, &state, purpose, progress).await {
            Ok(_) => self.with_home(CacheHome::sync_state).await,
            // It is damaged, or was collected, and never can: all else is tried again.
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) => {
                tracing::warn!("{}: cannot finish an interrupted pull: {error}", self.home);
                Ok(state)
            }
            Err(error) => Err(error),
        }
    }
}
