//! Status of a cluster and of its members.

use std::net::SocketAddr;

use bdnfs::peer::client::PeerStats;
use serde::{Deserialize, Serialize};

/// A cluster, as one of its nodes sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The name of the cluster.
    pub name: String,
    /// The name of the node that reports.
    pub id: String,
    /// Whether nodes authenticate each other with certificates. If not, any client that can connect reads everything.
    pub secure: bool,
    /// The members, the reporting node included, by name.
    pub members: Vec<MemberStatus>,
    /// Bytes that the reporting node sent to peers since it started.
    pub sent: u64,
    /// Counts of the requests that this node made to its peers since then.
    pub asked: PeerStats,
}

/// The status of a member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The name of the node.
    pub id: String,
    /// The address of its peer server.
    pub address: SocketAddr,
    /// The failure domain of the node.
    pub zone: String,
    /// The capacity that weights the node's share of the data, in bytes.
    pub capacity: u64,
    /// The version of the protocol that it speaks. One that speaks another is not asked.
    pub protocol: u32,
    /// Whether it responds.
    pub state: MemberState,
    /// Until when it is suspected or banned, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}

/// The state of a member, as the reporting node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// The node responds.
    Alive,
    /// The node is draining.
    Draining,
    /// The node did not respond, and is not asked for a while.
    Suspected,
    /// The node sent wrong bytes, and is banned for longer.
    Banned,
}
