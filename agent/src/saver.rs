//! `bdnfs save`: the saver of one job, a process of its own.
//!
//! ```text
//!   checkpoints/ ── walk, each second ──> settled? ──> seal ──> publish: a snapshot in the mirror ──> index
//!                              └─> a large file that nobody writes ──> its content, ahead of the snapshot
//! ```
//!
//! The agent starts it beside the job's supervisor. It reads one [`SaveOrder`] from its standard input, with the
//! credentials of the mirror, which stay in its memory, and needs the agent for nothing more: it goes on when that dies,
//! and ends when the job has and all that settled is saved. Its record is in the volume of the job ([`SaverRecord`]): one
//! that is killed is started again and resumes there. It works with a low priority, on the processors and on the disk.

mod directory_scan;
mod order;
mod outcomes;
mod process;
mod record;
mod restarts;
mod round;
mod save_context;
mod survivors;
mod unit_state;
mod unsaved_directory;
mod upload_ahead;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::source::SecretJsonError;
use bdnfs::volume::{Scan, VolumeDirectory, ignore_lease_signal};
use rustix::fs::FlockOperation;
use tokio::task::LocalSet;

use crate::api::saving::SaveReport;
use crate::context::Context;
use crate::runtime;
use crate::volumes::JobVolume;

use record::SavedState;
use save_context::is_remainder;

pub use order::SaveOrder;
pub use process::{has_saver, start};
pub use record::{SaverEnd, SaverRecord, read, request_end, requested_end};
pub use restarts::SaverRestarts;
pub use unsaved_directory::unsaved_directory;

/// The interval at which those who watch a saver read its record.
pub const RECORD_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The file in a volume that its saver holds locked as long as it lives.
const SAVER_LOCK_FILE: &str = "saver.lock";

/// Whether all that is in the directory `checkpoints` of a volume is saved as it is now, is to be dropped, or was being deleted.
/// Touches the local disk.
///
/// # Errors
/// [`Kind::Disk`]; [`Kind::Invalid`] where there is too much to look at.
fn is_all_saved(volume: &Path, checkpoints: &Path) -> Result<bool> {
    let is_there =
        checkpoints.try_exists().with_context(|| format!("cannot look at {}", checkpoints.display()))?;
    if requested_end(volume) == Some(SaverEnd::Discard) || !is_there {
        return Ok(true);
    }
    let (seals, _) = VolumeDirectory::open(checkpoints)?.walk().and_then(Scan::into_seals)?;
    let saved = read(volume).unwrap_or_default().saved;
    Ok(seals.iter().all(|(name, seal)| {
        let is_saved =
            |saved: &SavedState| seal.is_recorded_as(&saved.fingerprint) || is_remainder(volume, seal, saved);
        seal.files.is_empty() || saved.get(name).is_some_and(is_saved)
    }))
}

/// Returns the error of a saver without a mirror.
pub fn no_mirror() -> Error {
    let text = "checkpoints are saved in a mirror, and the agent of this node has none; add [mirror] to its configuration";
    Error::new(Kind::Unsupported, text)
}

/// Makes sure that no earlier job of this id left files in the checkpoint directory of `volume`, and removes the record of earlier
/// saves. Empty directories may be there: mounts below have made them. Touches the local disk.
///
/// # Errors
/// [`Kind::Busy`] where there is something; [`Kind::Disk`], [`Kind::NoSpace`].
pub fn begin_checkpoints(volume: &JobVolume) -> Result<()> {
    let directory = volume.checkpoints();
    let holds_some = match VolumeDirectory::open(&directory)?.walk() {
        Ok(scan) => !(scan.files.is_empty() && scan.links.is_empty() && scan.skipped.is_empty()),
        Err(error) if error.kind() == Kind::Invalid => true,
        Err(error) => return Err(error),
    };
    if holds_some {
        let text = format!(
            "{} holds checkpoints of an earlier job of this id that are not saved; save them with `bdnfs checkpoint push` and \
             remove them; a job may choose another --id instead",
            directory.display()
        );
        return Err(Error::new(Kind::Busy, text));
    }
    record::begin(volume.path())
}

/// The report of a saver that has finished, with what came to the directory `checkpoints` afterwards. Touches the local disk.
pub fn confirm_saved(volume: &Path, checkpoints: &Path, report: SaveReport) -> SaveReport {
    if report.has_unsaved() {
        return report;
    }
    // Before all of it is removed: the record says what was saved, and not what there is.
    let why = match is_all_saved(volume, checkpoints) {
        Ok(true) => return report,
        Ok(false) => "checkpoints changed after they were saved".to_owned(),
        Err(error) => error.to_string(),
    };
    SaveReport { given_up: true, why: Some(why), ..report }
}

/// Carries out the order on its standard input, and says `ready` when it has begun.
///
/// # Errors
/// [`Kind::Busy`] where the job has a saver already; [`Kind::Disk`]; those of opening the mirror.
pub fn run() -> Result<()> {
    // Fails only where it already leads a session, which is what is wanted.
    let _ = rustix::process::setsid();
    runtime::set_process_name(c"bdnfs-save")?;
    ignore_lease_signal();
    runtime::lower_session_priority();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("cannot read the saver's order")?;
    let order = serde_json::from_str(&line).map_err(SecretJsonError::from);
    let order: SaveOrder = order.context("the saver's order is invalid")?;
    drop(line);
    let path = order.volume.join(SAVER_LOCK_FILE);
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.with_context(|| format!("cannot create {}", path.display()))?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|e| Error::with(Kind::Busy, "this job has a saver already", std::io::Error::from(e)))?;
    let _volume = crate::volumes::lock(&order.volume, FlockOperation::NonBlockingLockShared)
        .context("cannot lock the volume")?;
    // The caller may be gone.
    let _ = writeln!(std::io::stdout(), "ready");
    // Uploads go on, on this thread, while the directory is looked at.
    let uploads = LocalSet::new();
    let save = uploads.run_until(round::save(order));
    runtime::block_on(async { Ok::<_, std::io::Error>(save.await) }).context("cannot start a runtime")?
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::record::SavedState;
    use super::*;

    #[test]
    fn is_all_saved_after_a_later_write_is_false() {
        let volume = tempfile::tempdir().unwrap();
        let checkpoints = volume.path().join("checkpoints");
        let is_all_saved = || is_all_saved(volume.path(), &checkpoints).unwrap();
        assert!(is_all_saved(), "there is nothing");
        fs::create_dir_all(checkpoints.join("a")).unwrap();
        assert!(is_all_saved(), "there is no file");
        fs::write(checkpoints.join("a/model"), "a").unwrap();
        assert!(!is_all_saved(), "nothing was saved");
        let (seals, _) =
            VolumeDirectory::open(&checkpoints).unwrap().walk().and_then(Scan::into_seals).unwrap();
        let saved = seals.iter().map(|(name, seal)| {
            (name.clone(), SavedState { fingerprint: seal.fingerprint(), complete: true })
        });
        SaverRecord { saved: saved.collect(), ..SaverRecord::default() }.write(volume.path()).unwrap();
        assert!(is_all_saved());
        fs::write(checkpoints.join("a/late"), "").unwrap();
        assert!(!is_all_saved(), "a file came to it");
        request_end(volume.path(), SaverEnd::Discard).unwrap();
        assert!(is_all_saved(), "it is to be dropped");
    }
}
