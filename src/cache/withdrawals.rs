//! Withdrawals under way: of several verifications that find one blob damaged, one withdraws it.

use std::collections::HashSet;

use parking_lot::{Condvar, Mutex};

use crate::blob::Key;

/// The blobs of one tenant that are being withdrawn.
#[derive(Debug, Default)]
pub(super) struct Withdrawals {
    keys: Mutex<HashSet<Key>>,
    ended: Condvar,
}

/// A withdrawal, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Withdrawal<'a> {
    all: &'a Withdrawals,
    key: Key,
}

impl Withdrawals {
    /// Begins to withdraw `key`, once nobody else does: the next to find it damaged finds it repaired. Those of other blobs go on.
    pub(super) fn begin(&self, key: &Key) -> Withdrawal<'_> {
        let mut keys = self.keys.lock();
        while !keys.insert(*key) {
            self.ended.wait(&mut keys);
        }
        Withdrawal { all: self, key: *key }
    }
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        self.all.keys.lock().remove(&self.key);
        self.all.ended.notify_all();
    }
}
