//! A scan of the directory of a saver: its units, what names them as complete, and what is left out.

use bdnfs::checkpoint::marker::{is_tracker, tracked};
use bdnfs::error::Result;
use bdnfs::volume::{FileTime, Scan, Seals, SkippedEntries, VolumeDirectory};

/// The most that a tracker holds, in bytes.
const MAX_TRACKER_BYTES: u64 = 4096;

/// The result of a scan of the directory.
pub(super) struct DirectoryScan {
    /// The units, by name.
    pub seals: Seals,
    /// The units that trackers name, and when each of those was written.
    pub tracked: Vec<(String, FileTime)>,
    /// The entries that are left out, and why.
    pub skipped: SkippedEntries,
}

impl DirectoryScan {
    /// Scans the directory. Touches the local disk.
    ///
    /// # Errors
    /// Those of the walk, and [`Kind::Invalid`](bdnfs::error::Kind::Invalid) where there are too many units.
    pub fn read(directory: &VolumeDirectory) -> Result<Self> {
        let scan = directory.walk()?;
        let trackers = scan.files.iter().filter(|(path, _)| is_tracker(path));
        let named = trackers.flat_map(|(path, file)| {
            let content = directory.read_small(path, MAX_TRACKER_BYTES).ok().flatten().unwrap_or_default();
            let names = tracked(path, &String::from_utf8_lossy(&content));
            names.into_iter().map(|name| (name, file.mtime))
        });
        let tracked = named.collect();
        let (seals, skipped) = Scan::into_seals(scan)?;
        Ok(Self { seals, tracked, skipped })
    }
}
