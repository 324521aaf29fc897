//! Homes on a disk that failed to write some of their files.

use std::collections::BTreeSet;

use bdnfs::error::{Error, Result};
use bdnfs::tree_merge::{MergePlan, MergeTree};
use bdnfs::volume::{MergeDurability, VolumeDirectory, apply_merge};

use super::SyncState;
use crate::volumes::cache_home::CacheHome;

impl CacheHome {
    /// Asks each file of the home, whose state is `state`, whether the disk failed to write it, since a flush of the whole disk failed
    /// with `error`; the next flush says nothing. Returns the state with what was lost. What no job wrote of that goes, and is pulled
    /// again. Touches the local disk.
    ///
    /// # Errors
    /// `error` where none did: it was another directory of that disk.
    pub(super) fn without_unwritten(&self, mut state: SyncState, error: Error) -> Result<SyncState> {
        let directory = VolumeDirectory::open(&self.tree())?;
        let scan = directory.walk()?;
        let mut lost = BTreeSet::new();
        for (path, file) in &scan.files {
            if !directory.is_written(path)? {
                state.unwritten.add(file);
                lost.insert(path.clone());
            }
        }
        if lost.is_empty() {
            return Err(error);
        }
        tracing::warn!("{self}: the disk failed to write {} of its files: {error}", lost.len());
        if state.begun_in.is_some() {
            let remove: BTreeSet<_> = &scan.untouched_since(state.since) & &lost;
            if !remove.is_empty() {
                let plan = MergePlan { remove, ..MergePlan::default() };
                apply_merge(&directory, &directory, &MergeTree::new(), &plan, MergeDurability::Now)?;
                (state.manifest, state.since, state.publishing, state.pulling) = (None, 0, None, None);
            }
        }
        Ok(state)
    }
}
