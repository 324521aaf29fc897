//! The changes in a home since a snapshot of it, ready to be published.

use std::fs;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::{FileVersions, Manifest};
use bdnfs::tree_merge::{MergeTree, is_changed, tree_of};
use bdnfs::volume::{LeftOutFiles, SealedOrigin, SkipReason, VolumeDirectory, former_files};

use super::SyncState;
use crate::volumes::cache_home::CacheHome;

/// The mode of saving a home that jobs use.
#[derive(Clone, Copy, Debug)]
pub(super) struct InUse {
    /// The most bytes that are read in a second.
    pub bytes_per_second: Option<u64>,
}

/// A home, ready to be published.
#[derive(Default)]
pub(super) struct ChangedHome {
    /// `None` where there is nothing new.
    pub origin: Option<SealedOrigin>,
    pub since: i64,
    pub left_out: LeftOutFiles,
    pub skipped: usize,
    pub unreadable: Vec<(Vec<u8>, SkipReason)>,
}

impl CacheHome {
    /// Notes that there is nothing to save but what comes at `unsaved_since` or later.
    fn note_unchanged(&self, unsaved_since: Option<i64>) -> Result<()> {
        self.write_sync_state(&SyncState { unsaved_since, ..self.sync_state()? })
    }

    /// Whether the directory that jobs see was made before `since`, in nanoseconds since 1970; false where its file system can't
    /// tell.
    fn is_tree_older_than(&self, since: i64) -> bool {
        let made = fs::metadata(self.tree()).and_then(|found| found.created()).ok();
        let made = made.and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        made.is_some_and(|made| made.as_nanos() < since.max(0).unsigned_abs().into())
    }

    /// The changes to the home since the snapshot of the manifest `former`. Files that can't be read any more count as unchanged:
    /// other nodes would take them for removed.
    pub(super) fn changes(&self, former: Option<&Manifest>, in_use: Option<InUse>) -> Result<ChangedHome> {
        let (state, since) = (self.sync_state()?, self.time()?);
        let directory = Arc::new(VolumeDirectory::open(&self.tree())?);
        let mut scan = directory.walk()?;
        let versions = former.map_or(Ok(FileVersions::new()), Manifest::file_versions)?;
        let base = former.map_or(Ok(MergeTree::new()), |former| tree_of(former, &versions))?;
        let mut tree = scan.tree(if former.is_some() { state.since } else { 0 });
        let files = former_files(&base, &versions);
        let unreadable = scan.keep_skipped(&mut tree, &base, &files)?;
        if in_use.is_some() {
            scan.keep_missing(&mut tree, &base, &files, since)?;
        }
        let skipped = scan.skipped.len() - unreadable.len();
        let unchanged = ChangedHome { skipped, unreadable, ..ChangedHome::default() };
        let mut paths = base.keys().chain(tree.keys());
        if former.is_some() && !paths.any(|path| is_changed(base.get(path), tree.get(path))) {
            match in_use {
                Some(_) => self.note_unchanged(Some(since))?,
                // What was done to directories since, such as by who prepared them, is no change, and keeps it from no eviction.
                None if scan.skipped.is_empty() => {
                    self.write_sync_state(&SyncState { since, unsaved_since: None, ..state })?;
                }
                None => self.note_unchanged(None)?,
            }
            return Ok(unchanged);
        }
        // Only what was emptied is saved as empty: not a directory that was lost and made anew, and not while a job may be about to
        // write it anew.
        let is_emptied = in_use.is_none() && former.is_some() && self.is_tree_older_than(state.since);
        if scan.files.is_empty() && !is_emptied {
            self.note_unchanged(in_use.map(|_| since))?;
            return Ok(unchanged);
        }
        // A user that begins beside others would have to take away what those read: the end of their use asks.
        let state = match state.begun_in {
            Some(_) if in_use.is_none() => self.flush(state)?,
            _ => state,
        };
        if in_use.is_none() && state.begun_in.is_some() {
            let text =
                "the disk failed to write some of what was pulled: try again, and that is pulled again";
            return Err(Error::new(Kind::Disk, text));
        }
        let (former, writing_at) = ((&base, files), in_use.map(|_| since));
        let mut unwritten = state.unwritten.clone();
        if in_use.is_none() && scan.skipped.is_empty() {
            unwritten.retain(scan.files.values());
        }
        let quiet = scan.into_quiet_tree(&directory, &tree, former, writing_at, &mut unwritten);
        if unwritten != state.unwritten {
            // First: the kernel tells it no second time.
            self.write_sync_state(&SyncState { unwritten, ..self.sync_state()? })?;
        }
        let mut quiet = quiet?;
        let left_out = std::mem::take(&mut quiet.left_out);
        if quiet.unit.seal.files.is_empty() && quiet.former.is_empty() && !is_emptied {
            let left_out = LeftOutFiles { unwritten: left_out.unwritten, ..LeftOutFiles::default() };
            return Ok(ChangedHome { left_out, ..unchanged });
        }
        // What is left out is a change to the next save, too.
        let since = left_out.since.map_or(since, |first| first.min(since));
        let bytes_per_second = in_use.and_then(|in_use| in_use.bytes_per_second);
        let origin = Some(SealedOrigin::after(self.source(), quiet, bytes_per_second));
        Ok(ChangedHome { origin, since, left_out, ..unchanged })
    }
}
