//! Cache pressure: asks those that keep idle blobs open to close them when the cache is full.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A listener that keeps idle blobs open, and closes them under pressure.
pub trait CachePressureListener: Send + Sync + Debug {
    /// Closes the blobs that are not in use.
    fn release_idle(&self);
}

/// The listeners notified when a full cache finds nothing to evict.
#[derive(Debug, Default)]
pub struct PressureListeners {
    listeners: Mutex<Vec<Weak<dyn CachePressureListener>>>,
}

impl PressureListeners {
    /// Adds `listener`: while it is alive, it is asked to release idle blobs when the cache is full.
    pub fn add(&self, listener: Weak<dyn CachePressureListener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|other| other.strong_count() > 0);
        listeners.push(listener);
    }

    /// Asks all listeners to release what is idle.
    pub fn notify(&self) {
        let listeners = self.listeners.lock().clone();
        // Called without the lock: closing files takes time.
        listeners
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|listener: Arc<dyn CachePressureListener>| listener.release_idle());
    }
}
