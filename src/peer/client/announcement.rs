//! Announcements: the snapshots that this node has all of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::Peers;
use crate::digest::Digest;
use crate::peer::token;

/// How many snapshots a node announces, the newest: every member gets every announcement. The owners have all others, too.
const MAX_ANNOUNCED: usize = 64;

/// The announcement that this node has all of a snapshot, from [`announce`](Self::announce) until it is dropped.
#[derive(Debug)]
pub struct SnapshotAnnouncement {
    peers: Arc<Peers>,
    token: u64,
    announced: AtomicBool,
}

/// The token that the snapshot `snapshot` of `tenant` is announced as.
pub fn snapshot_token(tenant: &str, snapshot: &Digest) -> u64 {
    token(&[tenant.as_bytes(), &snapshot.0])
}

impl Peers {
    /// The announcement of the snapshot `snapshot` of `tenant`, not made yet.
    pub fn announcement(self: &Arc<Self>, tenant: &str, snapshot: &Digest) -> SnapshotAnnouncement {
        SnapshotAnnouncement {
            peers: self.clone(),
            token: snapshot_token(tenant, snapshot),
            announced: AtomicBool::new(false),
        }
    }

    fn change_announced(&self, change: impl FnOnce(&mut Vec<u64>)) {
        let mut holds = self.holds.lock();
        change(&mut holds);
        let newest = holds.iter().rev().take(MAX_ANNOUNCED).copied();
        self.members.announce(newest.collect());
    }
}

impl SnapshotAnnouncement {
    /// Announces the snapshot, once.
    pub fn announce(&self) {
        if !self.announced.swap(true, Relaxed) {
            self.peers.change_announced(|holds| holds.push(self.token));
        }
    }
}

impl Drop for SnapshotAnnouncement {
    fn drop(&mut self) {
        if self.announced.load(Relaxed) {
            self.peers.change_announced(|holds| {
                if let Some(at) = holds.iter().position(|token| *token == self.token) {
                    holds.remove(at);
                }
            });
        }
    }
}
