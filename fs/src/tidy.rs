//! Tidying: what has been idle for long is let go, by a task that sleeps while nothing happens.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use tokio::sync::watch;

use crate::opens::IDLE_TIME;
use crate::ops::Filesystem;

/// How many looks in a row must find that nothing was asked before it is left alone: by then all has lain for longer than
/// [`IDLE_TIME`], and was let go.
const QUIET: u32 = 3;

/// Wakes the task up when something happens.
#[derive(Debug)]
pub(crate) struct Stir {
    asked: AtomicBool,
    wake: watch::Sender<()>,
}

impl Stir {
    /// Nothing has happened. With it comes what is told, as long as it lives.
    pub(crate) fn new() -> (Self, watch::Receiver<()>) {
        let (wake, stirred) = watch::channel(());
        (Self { asked: AtomicBool::new(false), wake }, stirred)
    }

    /// Notes that something is asked. Costs next to nothing, but for the first time after a while.
    pub(crate) fn note(&self) {
        if !self.asked.load(Relaxed) && !self.asked.swap(true, Relaxed) {
            self.wake.send_replace(());
        }
    }
}

/// Lets go, now and then, of what has been idle for long, as long as something happens; ends with the mount.
pub(crate) async fn tidy(filesystem: Weak<Filesystem>, mut stirred: watch::Receiver<()>) {
    while stirred.changed().await.is_ok() {
        let mut quiet = 0;
        while quiet < QUIET {
            tokio::time::sleep(IDLE_TIME / 2).await;
            let Some(filesystem) = filesystem.upgrade() else { return };
            quiet = if filesystem.stir.asked.swap(false, Relaxed) { 0 } else { quiet + 1 };
            let expire = move || {
                filesystem.files.expire(Instant::now());
                filesystem.snapshot.manifest().rest();
            };
            if tokio::task::spawn_blocking(expire).await.is_err() {
                return;
            }
        }
    }
}
