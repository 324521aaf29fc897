//! Relief: asking those who keep blobs in use for convenience to let them go.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Somebody who keeps blobs open because they may be wanted again.
pub trait CachePressureListener: Send + Sync + Debug {
    /// Lets go what isn't in use at this moment.
    fn release_idle(&self);
}

/// Who can be asked when a cache that is full finds nothing to evict.
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
