//! Removal: notifies the readers of a blob that wrong content of it was removed from the cache; and those that rely on unused
//! blobs of their eviction.

use std::collections::HashSet;
use std::fmt::Debug;
use std::fs::File;
use std::sync::Weak;

use parking_lot::Mutex;

use crate::blob::Key;

use super::removal_marks::Removal;

/// A listener that serves blobs of one tenant from the cache, or keeps bytes of them.
pub trait RemovalListener: Send + Sync + Debug {
    /// Called when what the cache had of a blob, or some blocks of it, was damaged and has been removed: nothing
    /// that was read before may be served again. `file` is that of a whole blob, which may still be read by the kernel. May
    /// block on the local disk, and must not wait for the network or the kernel: who has to, does it later, and keeps a clone of
    /// `removal` until it is done. Called again at the next start if this process ends before that.
    fn blob_removed(&self, removal: &Removal, file: Option<&File>);

    /// Whether the kernel reads `file`, which has all of the blob `key` and is damaged, for a mount that can't be given another.
    /// Such a file is not removed, but repaired. Asked before [`blob_removed`](Self::blob_removed); the same rules apply.
    fn needs_file(&self, _key: &Key, _file: &File) -> bool {
        false
    }

    /// Called when the blobs `keys`, which were not in use, were evicted. Their content was right and may still be served.
    /// The same rules apply.
    fn blobs_evicted(&self, _keys: &HashSet<Key>) {}
}

/// The listeners of one tenant.
#[derive(Debug, Default)]
pub struct RemovalListeners {
    listeners: Mutex<Vec<Weak<dyn RemovalListener>>>,
}

impl RemovalListeners {
    /// Tells `listener` of removals, after those that were added before it, for as long as it lives.
    pub fn add(&self, listener: Weak<dyn RemovalListener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|other| other.strong_count() > 0);
        listeners.push(listener);
    }

    /// Tells all listeners of `removal`, and of the removed `file` where that was whole.
    pub fn notify(&self, removal: &Removal, file: Option<&File>) {
        self.for_each(|listener| listener.blob_removed(removal, file));
    }

    /// Whether a listener [needs](RemovalListener::needs_file) `file`, which is damaged. Asks all.
    pub fn need_file(&self, key: &Key, file: &File) -> bool {
        let mut needed = false;
        self.for_each(|listener| needed |= listener.needs_file(key, file));
        needed
    }

    /// Tells all listeners that `keys` were evicted.
    pub fn notify_evicted(&self, keys: &HashSet<Key>) {
        if !keys.is_empty() {
            self.for_each(|listener| listener.blobs_evicted(keys));
        }
    }

    fn for_each(&self, mut tell: impl FnMut(&dyn RemovalListener)) {
        let listeners = self.listeners.lock().clone();
        // Called without the lock: listeners close and open files.
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| tell(&*listener));
    }
}
