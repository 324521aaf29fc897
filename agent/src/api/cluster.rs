//! Status of a cluster and of its members.

use std::net::SocketAddr;

use bdnfs::peer::client::PeerStats;
use serde::{Deserialize, Serialize};

/// A cluster, as one of its nodes sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Its name.
    pub name: String,
    /// The name of the node that tells.
    pub id: String,
    /// Whether nodes authenticate each other with certificates. If not, any client that can connect reads everything.
    pub secure: bool,
    /// The nodes, that one among them, by their names.
    pub members: Vec<MemberStatus>,
    /// Bytes that this one gave to others since it began.
    pub sent: u64,
    /// Counts of the requests that this node made to its peers since then.
    pub asked: PeerStats,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its name.
    pub id: String,
    /// The address that it serves peers on.
    pub address: SocketAddr,
    /// Its failure domain.
    pub zone: String,
    /// Its share of the data, in bytes.
    pub capacity: u64,
    /// The version of the protocol that it speaks. One that speaks another is not asked.
    pub protocol: u32,
    /// How it is doing.
    pub state: MemberState,
    /// Until when it is suspected or banned, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}

/// How a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It responds.
    Alive,
    /// It is draining.
    Draining,
    /// It did not respond, and is not asked for a while.
    Suspected,
    /// It sent wrong bytes, and is banned for longer.
    Banned,
}
