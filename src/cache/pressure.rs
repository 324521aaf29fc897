//! Cache pressure: tells those who keep idle blobs open that the cache is full, so that they close them.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Keeps idle blobs open, and closes them under pressure.
pub trait CachePressureListener: Send + Sync + Debug {
    /// Lets go what isn't in use at this moment.
    fn release_idle(&self);
}

/// The listeners notified when a full cache finds nothing to evict.
#[derive(Debug, Default)]
pub struct PressureListeners {
    asked: Mutex<Vec<Weak<dyn CachePressureListener>>>,
}

impl PressureListeners {
    /// Has `relief` asked when room is short, for as long as it lives.
    pub fn add(&self, relief: Weak<dyn CachePressureListener>) {
        let mut asked = self.asked.lock();
        asked.retain(|other| other.strong_count() > 0);
        asked.push(relief);
    }

    /// Asks everybody.
    pub fn notify(&self) {
        let asked = self.asked.lock().clone();
        // Without the lock: letting go closes files.
        asked
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|relief: Arc<dyn CachePressureListener>| relief.release_idle());
    }
}
