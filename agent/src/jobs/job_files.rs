//! The files of a job, which go before its record does.

use std::fs;
use std::path::Path;

use bdnfs::error::Result;

use super::job::{Job, MOUNTS_DIRECTORY};

impl Job {
    /// Removes the job's files, then by `remove` its record: files without a record are those of a job that runs.
    pub fn remove(&self, remove: impl FnOnce() -> Result<()>) -> Result<()> {
        self.remove_files();
        remove()
    }

    /// Removes the files of the job, but nothing that is mounted among them.
    pub(super) fn remove_files(&self) {
        let entries = |directory: &Path| {
            // The target of a link is not the job's.
            let is_own = !directory.is_symlink();
            is_own.then(|| fs::read_dir(directory)).into_iter().flatten().flatten().flatten()
        };
        for mountpoint in entries(&self.directory().join(MOUNTS_DIRECTORY)) {
            let _ = fs::remove_dir(mountpoint.path());
        }
        for entry in entries(self.directory()) {
            let path = entry.path();
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let _ = if is_directory { fs::remove_dir(path) } else { fs::remove_file(path) };
        }
        let _ = fs::remove_dir(self.directory());
    }
}
