//! Staging of several mounts at once.

use std::sync::Arc;
use std::time::Duration;

use bdnfs::stage::Progress;

use crate::api::{ApiResult, Failure, StageState};
use crate::mounts::{ManagedMount, MountManager};

/// The interval at which the progress of all mounts is summed up.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Stages all `mounts`, and waits until all is local, verified and leased. `report` receives the total progress.
pub async fn stage_all(
    manager: &Arc<MountManager>,
    mounts: &[Arc<ManagedMount>],
    report: impl Fn(Progress),
) -> ApiResult<()> {
    for mount in mounts {
        manager.stage(mount.id(), false).await?;
    }
    loop {
        let (mut sum, mut running) = (Progress::default(), None);
        for mount in mounts {
            let Some(staging) = mount.staging(Duration::ZERO).await else { continue };
            let progress = staging.progress;
            sum.files += progress.files;
            sum.files_done += progress.files_done;
            sum.bytes += progress.bytes;
            sum.bytes_done += progress.bytes_done;
            sum.bytes_found += progress.bytes_found;
            match staging.state {
                StageState::Done => {}
                StageState::Running => running = Some(mount),
                StageState::Failed(failure) => {
                    let source = mount.snapshot().manifest().source();
                    let message = format!("cannot stage {source}: {failure}");
                    return Err(Failure { message, ..failure });
                }
            }
        }
        report(sum);
        match running {
            None => return Ok(()),
            Some(mount) => drop(mount.staging(PROGRESS_INTERVAL).await),
        }
    }
}
