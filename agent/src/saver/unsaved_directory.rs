//! Unsaved directories: checkpoints that stay on the node when their job has ended, since they could not be saved.

use std::fs;

use rustix::fs::FlockOperation;

use super::record;
use crate::api::saving::{CheckpointState, UnsavedDirectory};
use crate::volumes::JobVolume;

/// The directory of checkpoints in the `volume` of a job of `tenant` that has ended; `None` where there is nothing in it, or somebody still
/// holds the volume. Touches the local disk.
pub fn unsaved_directory(tenant: String, volume: &JobVolume) -> Option<UnsavedDirectory> {
    let directory = volume.checkpoints();
    fs::read_dir(&directory).ok()?.next()?.ok()?;
    volume.lock(FlockOperation::NonBlockingLockExclusive).ok()?;
    let report = record::read(volume.path()).unwrap_or_default().report;
    let unsaved = report.checkpoints.iter().filter(|one| one.state != CheckpointState::Saved);
    let bytes = unsaved.map(|one| one.bytes).sum();
    Some(UnsavedDirectory { tenant, id: volume.id().to_owned(), directory, bytes, why: report.why })
}
