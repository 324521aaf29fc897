//! The configuration of a node's part in a cluster.

use std::net::SocketAddr;

use bdnfs::peer::identity::CertificateFiles;

use crate::api::MirrorRequest;

/// A node's part in a cluster.
#[derive(Debug)]
pub struct ClusterConfig {
    /// The cluster's name.
    pub name: String,
    /// The node's name; by default that of its certificate.
    pub id: Option<String>,
    /// The address that the peer server listens on.
    pub listen: SocketAddr,
    /// The address at which other nodes reach it.
    pub advertise: SocketAddr,
    /// The failure domain of the node.
    pub zone: String,
    /// The capacity that weights the node's share of the blocks, in bytes; by default the size of its cache's disk.
    pub capacity: Option<u64>,
    /// Addresses of other members.
    pub seeds: Vec<String>,
    /// The certificate of the node; without one any client is trusted.
    pub files: Option<CertificateFiles>,
    /// The mirror that the nodes share, a part for each tenant.
    pub mirror: MirrorRequest,
    /// The tenants that it hosts, where no certificate names them.
    pub tenants: Vec<String>,
}
