//! Homes that begin with a snapshot without waiting for the disk, and what is done where they did not get to the end of that.
//!
//! ```text
//!   begin_undurable ──> files are pulled ──> the snapshot is noted ──> a job runs ──> all of it is durable: noted
//!                  └──────────┬───────────┘                    └────────┬────────┘
//!         the agent died: all goes                     the node died: what no job wrote goes
//! ```
//!
//! What goes is in the mirror, and is pulled again. A file of which the power cut has left zeros, or nothing, looks as one that a
//! job has written; so none of those may stay.

use bdnfs::boot;
use bdnfs::error::{Kind, Result};
use bdnfs::tree_merge::{MergePlan, MergeTree};
use bdnfs::volume::{MergeDurability, VolumeDirectory, apply_merge};

use super::SyncState;
use crate::context::Context;
use crate::volumes::cache_home::CacheHome;

impl CacheHome {
    /// Marks an empty home as filled without fsync. A crash of the node then loses what it gets, until [`end_use`](Self::end_use)
    /// has flushed it.
    pub(super) fn begin_undurable(&self) -> Result<()> {
        let begun_in = Some(boot::id_line()?);
        self.write_sync_state(&SyncState { begun_in, ..self.sync_state()? })
    }

    /// Removes pulled files that may differ from the mirror's: those of an interrupted begin, and those of a begin of another boot
    /// that were never flushed. Nobody may use the home. Touches the local disk.
    pub(super) fn recover(&self) -> Result<()> {
        let state = self.sync_state()?;
        let Some(begun_in) = &state.begun_in else { return Ok(()) };
        if state.manifest.is_none() {
            return self.discard();
        }
        if *begun_in == boot::id_line()? {
            return Ok(());
        }
        self.create_tree().with_context(|| format!("cannot create {}", self.tree().display()))?;
        let directory = VolumeDirectory::open(&self.tree())?;
        let remove = match directory.walk() {
            Ok(scan) => scan.untouched_since(state.since),
            Err(error) if error.kind() == Kind::Invalid => {
                tracing::warn!("{self} was begun without waiting for the disk, and is emptied: {error}");
                return self.discard();
            }
            Err(error) => return Err(error),
        };
        tracing::warn!(
            "{self} was begun without waiting for the disk: {} entries are pulled again",
            remove.len()
        );
        let plan = MergePlan { remove, ..MergePlan::default() };
        apply_merge(&directory, &directory, &MergeTree::new(), &plan, MergeDurability::Now)?;
        let (publishing, pulling) = (None, None);
        let state = SyncState { manifest: None, since: 0, begun_in: None, publishing, pulling, ..state };
        self.write_sync_state(&state)
    }
}
