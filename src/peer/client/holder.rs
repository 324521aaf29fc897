//! Holders: what a node says that it has all of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::Peers;
use crate::digest::Digest;
use crate::peer::token;

/// How many snapshots a node says that it has, the newest: what is said is said to all. The owners have all others, too.
const HOLDS: usize = 64;

/// Announces that this node has all of a snapshot, from when it is told so until it is dropped.
#[derive(Debug)]
pub struct Holder {
    peers: Arc<Peers>,
    held: u64,
    announced: AtomicBool,
}

/// What the snapshot `snapshot` of `tenant` is announced as.
pub fn held(tenant: &str, snapshot: &Digest) -> u64 {
    token(&[tenant.as_bytes(), &snapshot.0])
}

impl Peers {
    /// What announces that this node has all of the snapshot `snapshot` of `tenant`.
    pub fn holder(self: &Arc<Self>, tenant: &str, snapshot: &Digest) -> Holder {
        Holder { peers: self.clone(), held: held(tenant, snapshot), announced: AtomicBool::new(false) }
    }

    fn hold(&self, change: impl FnOnce(&mut Vec<u64>)) {
        let mut holds = self.holds.lock();
        change(&mut holds);
        let newest = holds.iter().rev().take(HOLDS).copied();
        self.members.announce(newest.collect());
    }
}

impl Holder {
    /// Announces it.
    pub fn announce(&self) {
        if !self.announced.swap(true, Relaxed) {
            self.peers.hold(|holds| holds.push(self.held));
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if self.announced.load(Relaxed) {
            self.peers.hold(|holds| {
                if let Some(at) = holds.iter().position(|held| *held == self.held) {
                    holds.remove(at);
                }
            });
        }
    }
}
