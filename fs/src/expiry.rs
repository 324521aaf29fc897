//! Idle expiry: lets go of what has been idle for long, by a task that sleeps while the mount is not used.

use std::sync::Weak;
use std::time::Instant;

use tokio::sync::watch;

use crate::open_table::BACKING_IDLE_TIMEOUT;
use crate::ops::Filesystem;

/// After how many rounds without a request the task goes to sleep: by then all has been idle for longer than
/// [`BACKING_IDLE_TIMEOUT`], and has expired.
const QUIET_ROUNDS: u32 = 3;

/// Expires what is idle, as long as there are requests; ends with the mount.
pub(crate) async fn idle_expiry(filesystem: Weak<Filesystem>, mut wake_signal: watch::Receiver<()>) {
    while wake_signal.changed().await.is_ok() {
        let mut quiet = 0;
        while quiet < QUIET_ROUNDS {
            tokio::time::sleep(BACKING_IDLE_TIMEOUT / 2).await;
            let Some(filesystem) = filesystem.upgrade() else { return };
            quiet = if filesystem.activity.take() { 0 } else { quiet + 1 };
            let expire = move || {
                filesystem.files.expire(Instant::now());
                filesystem.snapshot.manifest().release_pages();
            };
            if tokio::task::spawn_blocking(expire).await.is_err() {
                return;
            }
        }
    }
}
