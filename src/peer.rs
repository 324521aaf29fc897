//! Peers: the nodes of a cluster serve each other, so that the mirror is read about once, however many they are.
//!
//! Every group of blocks has owners, the same ones as seen by every node ([`rendezvous`]). A node that lacks a group asks its
//! first owner, which answers from its cache, or fetches the group once from the mirror while all who asked wait on that
//! flight. So a burst of nodes reads the mirror once in all, each of them a share of it, and the nodes exchange their shares.
//!
//! ```text
//!  Ladder ── PeerTier ([client]) ── PeerClient ──HTTP──> PeerServer ([server]) ── BlockProvider ──> cache or flight of the owner
//!               │ which peer?          [wire]: requests, responses, frames
//!               ├── [rendezvous]: who owns a group of blocks
//!               ├── [membership]: which nodes are alive (by gossip)
//!               └── [backoff]: which of them are left alone for a while
//! ```
//!
//! # Guarantees
//!
//! - **No request circles.** There are three kinds ([`wire::Role`]). One asks an owner, which may fetch from the mirror or ask
//!   with the other kinds. Those ask a holder, which answers with what it has or not at all, or a draining node, which also
//!   finishes its fetches, but starts none. A node that fetches for others never waits for an owner.
//! - **No wrong byte.** Only blobs whose checks are known beforehand are asked for: those of mirrored snapshots. Blobs read
//!   straight from an origin ([`crate::blob::Key::Origin`]) have no digest to verify them by, and are neither asked of peers
//!   nor given to them. A peer that sends a wrong block is banned for [`backoff::CORRUPTION_BAN`].
//! - **No waiting for the dead.** A peer that has nothing to send yet sends heartbeats, as long as bytes keep arriving where it
//!   gets them. A second of silence ends a request, and for a while all requests to that peer.

pub mod backoff;
pub mod client;
pub mod identity;
pub mod membership;
pub mod rendezvous;
pub mod server;
pub mod wire;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

/// The version of the protocol between peers. A peer of another version is not asked; the mirror is read instead.
pub const PROTOCOL: u32 = 1;

/// The fewest and the most blocks of a group: the cost of a request must be small beside its bytes, and a group must be small
/// beside its owner's share of a blob.
const GROUP_BLOCKS: (u64, u64) = (4, crate::extent::MAX_EXTENT_BLOCKS);

/// The least number of groups of a blob, unless they would get too short: with so many, the shares of nodes differ little.
const MIN_GROUPS: u64 = 256;

/// The number of blocks of each group of a blob of `blocks` blocks. All nodes must agree.
pub fn group_blocks(blocks: u64) -> u64 {
    (blocks / MIN_GROUPS).next_power_of_two().clamp(GROUP_BLOCKS.0, GROUP_BLOCKS.1)
}

/// A node of the cluster, as it announces itself by gossip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The name, unique in the cluster; proved by its certificate.
    pub id: String,
    /// The address of its peer server.
    pub address: SocketAddr,
    /// The failure domain: a rack, an availability zone. Nodes of one zone are near to each other, and may fail together.
    pub zone: String,
    /// The size of its cache, in bytes: its share of the groups is in proportion to it.
    pub capacity: u64,
    /// The version of its protocol, see [`PROTOCOL`].
    pub protocol: u32,
    /// Whether the member is about to leave: it owns nothing any more, but still serves what it has.
    pub draining: bool,
    /// The tenants that it hosts, each by its [`token`].
    pub tenants: Vec<u64>,
    /// The snapshots that it has all of, each by its [`token`] within its tenant.
    pub holds: Vec<u64>,
}

impl Member {
    /// Whether the member hosts the tenant with this token.
    pub fn hosts(&self, tenant: u64) -> bool {
        self.tenants.contains(&tenant)
    }
}

/// A token that stands for a name in gossip: a hash, so that a member learns no names of others' tenants.
pub fn token(parts: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("bdnfs 2026-11 cluster token");
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let bytes = *hasher.finalize().as_bytes();
    bytes.first_chunk().map_or(0, |head| u64::from_le_bytes(*head))
}
