//! Peers: the nodes of a cluster serve each other, so that the mirror is read about once, however many they are.
//!
//! Every group of blocks has an order of owners, the same in every node's eyes ([`rank`]). Who lacks a group asks its first
//! owner; that one answers from its cache, or fetches it once from the mirror while all who asked wait on that flight. So a
//! burst of nodes reads the mirror once in all, each of them a share of it, and hands the shares around.
//!
//! ```text
//!  Ladder ── Seat ([client]) ── Link ──> Server ([server]) ── Shelf ──> the other node's cache, or its flight
//!              │ who?            [wire]: what is said
//!             rank <── Members ([members]): who is there
//! ```
//!
//! # What can't happen
//!
//! - **Requests that circle.** There are three kinds ([`wire::Role`]): one asks an owner, who may fetch from the mirror or
//!   ask with the other kinds; those ask a holder, who answers with what it has or not at all, or one that leaves, which
//!   finishes what it fetches, too, but begins nothing. A node that fetches for others never waits for an owner.
//! - **Wrong bytes.** Only blobs whose checks are known beforehand are asked for: those of mirrored snapshots. What is read
//!   straight from an origin has no digest that would tell a lie ([`crate::blob::Key::Origin`]), and so is neither asked of
//!   peers nor given to them. A peer that sends a wrong block is left alone for [`health::BAN`].
//! - **Waiting for the dead.** Who has nothing to send yet says so several times a second, and only as long as bytes keep
//!   arriving from where it gets them. Silence for a second ends a request, and for a while all requests to that peer.

mod answer;
pub mod client;
pub mod gossip;
pub mod health;
pub mod identity;
pub mod link;
pub mod listener;
pub mod members;
pub(crate) mod patience;
mod pool;
pub mod rank;
pub mod server;
mod stream;
pub mod wire;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

/// The version of the protocol between peers. One that differs is not asked, and the mirror stands in.
pub const PROTOCOL: u32 = 1;

/// The shortest and the longest run of blocks that has one owner: what a request costs must not show beside what it
/// brings, and what one owner has to send must be small beside its share of a blob.
const GROUP: (u64, u64) = (4, crate::extent::MAX_EXTENT_BLOCKS);

/// Into how many groups a blob is cut at least, unless they would get too short: so many shares differ little from node
/// to node.
const SHARES: u64 = 256;

/// How many blocks of a blob of `blocks` blocks have one owner. All nodes must agree.
pub fn group(blocks: u64) -> u64 {
    (blocks / SHARES).next_power_of_two().clamp(GROUP.0, GROUP.1)
}

/// A node of the cluster, as it announces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, unique in the cluster; proved by its certificate.
    pub id: String,
    /// Where its peer server listens.
    pub address: SocketAddr,
    /// What fails together with it, and what is near to it: a rack, an availability zone.
    pub zone: String,
    /// How much of the cluster's data it should own, relative to others: the size of its cache in bytes.
    pub capacity: u64,
    /// The version of its protocol.
    pub protocol: u32,
    /// Whether it is about to leave: it owns nothing any more, but still gives what it has.
    pub draining: bool,
    /// The tenants that it hosts, each by its [`token`].
    pub tenants: Vec<u64>,
    /// The snapshots that it has all of, each by its [`token`] within its tenant.
    pub holds: Vec<u64>,
}

impl Member {
    /// Whether it hosts the tenant with this token.
    pub fn hosts(&self, tenant: u64) -> bool {
        self.tenants.contains(&tenant)
    }
}

/// What a name is announced as to the whole cluster: not the name itself, which is nobody else's affair.
pub fn token(parts: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("bdnfs 2026-11 cluster token");
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let bytes = *hasher.finalize().as_bytes();
    bytes.first_chunk().map_or(0, |head| u64::from_le_bytes(*head))
}
