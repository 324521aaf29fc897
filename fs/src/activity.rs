//! Activity: tells the task that expires what is idle that there are requests.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::watch;

/// Wakes the expiry task when there are requests.
#[derive(Debug)]
pub(crate) struct ActivitySignal {
    active: AtomicBool,
    wake: watch::Sender<()>,
}

impl ActivitySignal {
    /// A signal, and what the task waits for; that ends when the signal is dropped.
    pub(crate) fn new() -> (Self, watch::Receiver<()>) {
        let (wake, wake_signal) = watch::channel(());
        (Self { active: AtomicBool::new(false), wake }, wake_signal)
    }

    /// Whether there was a request since the last call.
    pub(crate) fn take(&self) -> bool {
        self.active.swap(false, Relaxed)
    }

    /// Records a request. Costs next to nothing, but for the first one after a while.
    pub(crate) fn record(&self) {
        if !self.active.load(Relaxed) && !self.active.swap(true, Relaxed) {
            self.wake.send_replace(());
        }
    }
}
