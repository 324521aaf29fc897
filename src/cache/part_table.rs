//! The parts of one tenant that are in use.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::blob::Key;
use crate::error::Result;

use super::partial::PartialBlob;

/// The parts that are in use, each shared by all its users.
#[derive(Debug, Default)]
pub struct PartTable(Mutex<HashMap<Key, Weak<PartialBlob>>>);

impl PartTable {
    /// The part of `key` that is in use, if its file is still there.
    pub fn find(&self, key: &Key) -> Option<Arc<PartialBlob>> {
        let parts = self.0.lock();
        parts.get(key).and_then(Weak::upgrade).filter(|part| part.is_current())
    }

    /// Shares `part` with all its users from now on, and returns it, or the one that is in use already.
    pub fn share(&self, part: Arc<PartialBlob>) -> Arc<PartialBlob> {
        let mut parts = self.0.lock();
        let other = parts.get(part.key()).and_then(Weak::upgrade).filter(|other| other.is_current());
        if let Some(other) = other {
            return other;
        }
        // Rarely, so that the cost for each part is small.
        if parts.len().is_power_of_two() {
            parts.retain(|_, part| part.strong_count() > 0);
        }
        parts.insert(*part.key(), Arc::downgrade(&part));
        part
    }

    /// Forgets the part of `key` after `change`: its file belongs to another part from now on. Under the lock, so that nobody takes
    /// the old part, which says that blocks are here, for the new one.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn forget_after(&self, key: &Key, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut parts = self.0.lock();
        change()?;
        parts.remove(key);
        Ok(())
    }
}
