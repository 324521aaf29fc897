//! Leases: promises that a blob is not evicted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::blob::Key;

/// Who holds what. A blob under a lease stays.
#[derive(Debug, Default)]
pub struct Leases {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    single: HashMap<Key, usize>,
    /// Leases of whole snapshots, each a sorted list of [`short`] names: 8 bytes a blob instead of a hundred, so that
    /// a snapshot of a million blobs can be held. Two blobs with one short name merely keep each other.
    sets: Vec<Arc<[u64]>>,
}

/// The first 8 bytes of a key's digest.
fn short(key: &Key) -> u64 {
    let (Key::Content(digest) | Key::Origin(digest)) = key;
    digest.0.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl Leases {
    /// Leases one blob.
    pub fn lease(self: &Arc<Self>, key: Key) -> Lease {
        *self.lock().single.entry(key).or_default() += 1;
        Lease { leases: self.clone(), key }
    }

    /// Leases many blobs at once.
    pub fn lease_all(self: &Arc<Self>, keys: impl Iterator<Item = Key>) -> LeaseSet {
        let mut names: Vec<u64> = keys.map(|key| short(&key)).collect();
        names.sort_unstable();
        names.dedup();
        let names: Arc<[u64]> = names.into();
        self.lock().sets.push(names.clone());
        LeaseSet { leases: self.clone(), names }
    }

    /// Runs `remove` if nobody holds `key`, and nobody gets to hold it before `remove` is done.
    pub fn unless_held<T>(&self, key: &Key, remove: impl FnOnce() -> T) -> Option<T> {
        let held = self.lock();
        let name = short(key);
        let leased =
            held.single.contains_key(key) || held.sets.iter().any(|s| s.binary_search(&name).is_ok());
        (!leased).then(remove)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        // A panic elsewhere leaves counts that are at worst too high: nothing is evicted wrongly.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds one blob until it is dropped.
#[derive(Debug)]
pub struct Lease {
    leases: Arc<Leases>,
    key: Key,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut held = self.leases.lock();
        if let Some(count) = held.single.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                held.single.remove(&self.key);
            }
        }
    }
}

/// Holds many blobs until it is dropped.
#[derive(Debug)]
pub struct LeaseSet {
    leases: Arc<Leases>,
    names: Arc<[u64]>,
}

impl Drop for LeaseSet {
    fn drop(&mut self) {
        let mut held = self.leases.lock();
        if let Some(at) = held.sets.iter().position(|s| Arc::ptr_eq(s, &self.names)) {
            held.sets.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    #[test]
    fn a_blob_is_free_when_its_last_lease_ends() {
        let leases = Arc::new(Leases::default());
        let (one, two) = (Key::Content(Digest::of(b"1")), Key::Content(Digest::of(b"2")));
        let first = leases.lease(one);
        let second = leases.lease(one);
        let set = leases.lease_all([one, two].into_iter());
        assert!(leases.unless_held(&two, || ()).is_none());
        drop(set);
        assert!(leases.unless_held(&two, || ()).is_some());
        drop(first);
        assert!(leases.unless_held(&one, || ()).is_none());
        drop(second);
        assert!(leases.unless_held(&one, || ()).is_some());
    }
}
