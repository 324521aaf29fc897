//! Unsaved directories: checkpoints that stay on the node when their job has ended, since they could not be saved.

use std::fs;

use rustix::fs::FlockOperation;

use super::process::has_saver;
use super::record::{self, SaverRecord};
use crate::api::saving::{CheckpointState, UnsavedDirectory};
use crate::volumes::{self, JobVolume};

/// The directory of checkpoints in the `volume` of a job of `tenant` that has ended; `None` where there is nothing in it, or
/// somebody still holds the volume. Touches the local disk.
pub fn unsaved_directory(tenant: String, volume: &JobVolume) -> Option<UnsavedDirectory> {
    // A saver that begins must not find the volume locked.
    if has_saver(volume.path()) {
        return None;
    }
    let directory = volume.checkpoints();
    fs::read_dir(&directory).ok()?.next()?.ok()?;
    volumes::try_lock(volume.path(), FlockOperation::NonBlockingLockExclusive).ok()?;
    let SaverRecord { project, report, .. } = record::read(volume.path()).unwrap_or_default();
    let unsaved = report.checkpoints.iter().filter(|one| one.state != CheckpointState::Saved);
    let bytes = unsaved.map(|one| one.bytes).sum();
    Some(UnsavedDirectory { tenant, project, id: volume.id().to_owned(), directory, bytes, why: report.why })
}

#[cfg(test)]
mod tests {
    use super::super::SAVER_LOCK_FILE;
    use super::*;

    #[test]
    fn unsaved_directory_of_a_volume_whose_saver_lives_is_none() {
        let home = tempfile::tempdir().unwrap();
        let volume = volumes::tests::volumes(home.path()).of_job("default", "a1");
        let listed = || unsaved_directory("default".to_owned(), &volume).map(|one| one.id);
        drop(volume.create(&[volume.checkpoints()]).unwrap());
        assert_eq!(listed(), None, "there is nothing in it");
        fs::write(volume.checkpoints().join("model"), "a").unwrap();
        assert_eq!(listed().as_deref(), Some("a1"));
        let path = volume.path().join(SAVER_LOCK_FILE);
        fs::write(&path, "").unwrap();
        let lock = volumes::lock(&path, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(listed(), None);
        drop(lock);
        assert_eq!(listed().as_deref(), Some("a1"));
    }
}
