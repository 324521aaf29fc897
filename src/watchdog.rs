//! The watchdog: work that blocks its thread for longer than it should is noticed by another one.
//!
//! A disk that hangs blocks the thread that reads from it, and no signal ends that. Such work is watched: where it is late,
//! something else is done in its place, while its thread waits on.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::timeout::TICK;

/// After how many ticks work is late: two seconds. A block takes milliseconds; what has been waiting for longer on a disk that is
/// only busy comes from elsewhere in less.
const WATCHDOG_TICKS: u64 = 20;

/// When work is late, after its beginning.
pub const WATCHDOG_TIMEOUT: Duration = Duration::from_millis(TICK.as_millis() as u64 * WATCHDOG_TICKS);

type OnLate = Box<dyn FnOnce() + Send>;

/// The work that is watched.
#[derive(Default)]
pub struct Watchdog {
    watched: Mutex<WatchedOperations>,
}

#[derive(Default)]
struct WatchedOperations {
    now: u64,
    next: u64,
    /// In the order in which it began: in which tick, and what is done when it is late.
    work: BTreeMap<u64, (u64, OnLate)>,
    is_ticking: bool,
}

/// A piece of work that is watched until this is dropped.
#[must_use]
#[derive(Debug)]
pub struct WatchdogGuard {
    /// `None` once it has ended.
    watch: Option<Arc<Watchdog>>,
    number: u64,
}

impl std::fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watchdog of {}", self.watched.lock().work.len())
    }
}

impl Watchdog {
    /// Watches work that begins now: `on_late` is called by a task of `runtime` when it takes two seconds, and must neither block
    /// nor panic.
    pub fn begin(
        self: &Arc<Self>,
        runtime: &Handle,
        on_late: impl FnOnce() + Send + 'static,
    ) -> WatchdogGuard {
        let mut watched = self.watched.lock();
        let (number, began) = (watched.next, watched.now);
        watched.next += 1;
        watched.work.insert(number, (began, Box::new(on_late)));
        let must_tick = !mem::replace(&mut watched.is_ticking, true);
        drop(watched);
        if must_tick {
            runtime.spawn(self.clone().tick());
        }
        WatchdogGuard { watch: Some(self.clone()), number }
    }

    /// Counts ticks for as long as anything is watched.
    async fn tick(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TICK).await;
            let Some(late) = self.advance() else { return };
            late.into_iter().for_each(|on_late| on_late());
        }
    }

    /// Counts one tick, and takes out what is late now; `None` when nothing is watched any more.
    fn advance(&self) -> Option<Vec<OnLate>> {
        let mut watched = self.watched.lock();
        watched.now += 1;
        if watched.work.is_empty() {
            watched.is_ticking = false;
            return None;
        }
        let now = watched.now;
        let first_in_time = watched.work.iter().find(|(_, (began, _))| began + WATCHDOG_TICKS >= now);
        let first_in_time = first_in_time.map_or(u64::MAX, |(number, _)| *number);
        let in_time = watched.work.split_off(&first_in_time);
        let late = mem::replace(&mut watched.work, in_time);
        Some(late.into_values().map(|(_, on_late)| on_late).collect())
    }
}

impl WatchdogGuard {
    /// Ends the watch. False where the work was late: what was to be done then is done, or about to be.
    pub fn end(mut self) -> bool {
        self.take()
    }

    fn take(&mut self) -> bool {
        let Some(watch) = self.watch.take() else { return false };
        watch.watched.lock().work.remove(&self.number).is_some()
    }
}

impl Drop for WatchdogGuard {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn late_work_after_two_seconds_is_told() {
        let (watch, runtime) = (Arc::new(Watchdog::default()), Handle::current());
        let (told, mut late) = mpsc::unbounded_channel();
        let begin = |name: &'static str| {
            let told = told.clone();
            watch.begin(&runtime, move || told.send(name).expect("it is waited for"))
        };
        let began = Instant::now();
        let (outer, inner, done) = (begin("outer"), begin("inner"), begin("done"));
        assert!(done.end());
        tokio::time::sleep(TICK * 5).await;
        let later = begin("later");
        assert_eq!([late.recv().await, late.recv().await], [Some("outer"), Some("inner")]);
        assert!((Duration::from_secs(2)..Duration::from_millis(2200)).contains(&began.elapsed()));
        assert!(!inner.end() && !outer.end() && later.end());
        // A watch that has ended is begun again.
        let again = begin("again");
        assert_eq!(late.recv().await, Some("again"));
        drop(again);
    }

    #[tokio::test(start_paused = true)]
    async fn work_without_a_processor_is_not_late() {
        let (watch, runtime) = (Arc::new(Watchdog::default()), Handle::current());
        let watched = watch.begin(&runtime, || panic!("it is not late"));
        tokio::time::sleep(TICK / 2).await;
        tokio::time::advance(Duration::from_secs(60)).await;
        tokio::time::sleep(TICK * 3).await;
        assert!(watched.end());
    }
}
