//! A directory that a job writes while it is saved: scanned, settled, sealed, and read as an origin.
//!
//! ```text
//!   walk ──> Scan ──> settle: which units nobody writes ──> seal: on the disk, for good ──> SealedUnit: an origin
//! ```
//!
//! The directory is a hostile job's: nothing in it is reached through a link or another mount, and what is no regular file is
//! never opened. A walk is made again and again, for a watch of the kernel loses events when there are many.

mod home_tree;
mod kept_entries;
mod moved_files;
mod seal;
mod sealed_origin;
mod settle;
mod skip_reason;
mod unwritten_content;
mod walk;
mod writer_probe;

pub use home_tree::{
    FormerFile, FormerFiles, LeftOutFiles, MergeDurability, QuietTree, apply_merge, former_files,
};
pub use seal::{EncodedPath, Seal, SealOutcome, SealedUnit, Seals, seal_file_name};
pub use sealed_origin::SealedOrigin;
pub use settle::{SEAL_QUIET_PERIOD, SettleTracker, UnitState};
pub use skip_reason::SkipReason;
pub use unwritten_content::UnwrittenContent;
pub use walk::{FileTime, Scan, ScannedFile, SkippedEntries, VolumeDirectory};
pub use writer_probe::{Writers, ignore_lease_signal, probe_writers};
