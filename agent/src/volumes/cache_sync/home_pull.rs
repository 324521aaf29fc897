//! The last step of a pull: what was downloaded is moved to its place in the home.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use bdnfs::error::Result;
use bdnfs::tree_merge::{MergePlan, MergeTree};
use bdnfs::volume::{MergeDurability, VolumeDirectory, apply_merge};

use super::sync_state::{SavedSnapshot, SyncState};
use crate::context::Context;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::trash;

/// The directory beside the tree with what is pulled.
const INCOMING_DIRECTORY: &str = "incoming";

impl CacheHome {
    /// The directory with what is pulled, until it is in its place.
    pub(super) fn incoming(&self) -> PathBuf {
        self.path().join(INCOMING_DIRECTORY)
    }

    /// Makes the tree, if it is not there, and an empty directory for what is pulled, without what an interrupted run has left.
    pub(super) fn begin_pull(&self) -> Result<()> {
        let (failed, incoming) = (|| format!("cannot write to {}", self.path().display()), self.incoming());
        self.create_tree().and_then(|()| self.move_to_trash(&incoming)).with_context(failed)?;
        DirBuilder::new().mode(0o700).create(&incoming).with_context(failed)
    }

    /// Moves pulled files into place and records snapshot `target` as the base. Local changes stay; the files `hidden` are changed,
    /// too, though they look as they did.
    pub(super) fn finish_pull(
        &self,
        plan: &MergePlan,
        theirs: &MergeTree,
        target: SavedSnapshot,
        hidden: &[Vec<u8>],
    ) -> Result<()> {
        let (tree, incoming) = (self.tree(), self.incoming());
        let durability = match self.sync_state()? {
            SyncState { manifest: None, begun_in: Some(_), .. } => MergeDurability::Later,
            _ => MergeDurability::Now,
        };
        let (directory, source) = (VolumeDirectory::open(&tree)?, VolumeDirectory::open(&incoming)?);
        if !plan.take.is_empty() || !plan.remove.is_empty() {
            // What comes from there is no change of this node, also where it does not get to the end.
            self.write_sync_state(&SyncState { pulling: Some(target.clone()), ..self.sync_state()? })?;
        }
        apply_merge(&directory, &source, theirs, plan, durability)?;
        // Also what interrupted runs have left of other snapshots.
        let failed = || format!("cannot remove {}", incoming.display());
        for entry in fs::read_dir(self.path()).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            if entry.file_name().as_encoded_bytes().starts_with(INCOMING_DIRECTORY.as_bytes()) {
                self.move_to_trash(&entry.path()).with_context(failed)?;
            }
        }
        trash::empty(self.trash().to_owned());
        let SavedSnapshot { manifest, mirror, generation } = target;
        let state = self.sync_state()?;
        let since = self.time()?;
        // Only the time of that tells, which is later than `since` from now on.
        hidden.iter().try_for_each(|path| directory.touch_change(path))?;
        let begun_in = state.begun_in.filter(|_| durability == MergeDurability::Later);
        let (manifest, mirror) = (Some(manifest.to_string()), Some(mirror));
        let (publishing, pulling) = (None, None);
        let state = SyncState { manifest, since, begun_in, mirror, generation, publishing, pulling, ..state };
        self.write_sync_state(&state)
    }
}
