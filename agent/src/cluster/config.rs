//! The configuration of a node's part in a cluster.

use std::net::SocketAddr;

use bdnfs::peer::identity::CertificateFiles;

use crate::api::MirrorRequest;

/// How a node is part of a cluster.
#[derive(Debug)]
pub struct ClusterConfig {
    /// The cluster's name.
    pub name: String,
    /// The node's; where none is named, that of its certificate.
    pub id: Option<String>,
    /// The address that the peer server listens on.
    pub listen: SocketAddr,
    /// Where the others reach it.
    pub advertise: SocketAddr,
    /// What fails together with it.
    pub zone: String,
    /// How much it should own, in bytes; where that isn't said, as much as its cache holds.
    pub capacity: Option<u64>,
    /// Where others may be.
    pub seeds: Vec<String>,
    /// Its certificate; without one any client is trusted.
    pub files: Option<CertificateFiles>,
    /// What the nodes share: each tenant's part of this mirror.
    pub mirror: MirrorRequest,
    /// The tenants that it hosts, where no certificate names them.
    pub tenants: Vec<String>,
}
