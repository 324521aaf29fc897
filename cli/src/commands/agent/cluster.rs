//! The `[cluster]` section of the agent's configuration: addresses, seeds and certificates of the node.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bdnfs::peer::identity::{self, CertificateFiles};
use bytesize::ByteSize;
use serde::Deserialize;

use bdnfs_agent::ClusterConfig;
use bdnfs_agent::api::MirrorRequest;

/// The default port for peers.
const DEFAULT_PEER_PORT: u16 = 7531;
/// The default name of a cluster.
const DEFAULT_CLUSTER_NAME: &str = "bdnfs";

/// The `[cluster]` section.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSection {
    /// Name of the cluster; nodes of other clusters are ignored.
    name: Option<String>,
    /// Id of the node.
    id: Option<String>,
    /// Address to listen on.
    listen: Option<SocketAddr>,
    /// Address at which other nodes reach it.
    advertise: Option<SocketAddr>,
    /// Failure zone of the node.
    #[serde(default)]
    zone: String,
    /// Share of the data, relative to other nodes.
    capacity: Option<ByteSize>,
    /// Addresses of possible members.
    #[serde(default)]
    seeds: Vec<String>,
    /// File with its certificate.
    certificate: Option<PathBuf>,
    /// File with the key of the certificate.
    key: Option<PathBuf>,
    /// File with the CA certificates of the cluster.
    ca: Option<PathBuf>,
    /// Whether to run without certificates, on the loopback interface only.
    #[serde(default)]
    insecure: bool,
}

impl ClusterSection {
    /// The setup of the cluster. The node serves blobs of `mirror` for `tenants`.
    pub fn setup(self, mirror: Option<&MirrorRequest>, tenants: Vec<String>) -> Result<ClusterConfig> {
        let Some(mirror) = mirror.cloned() else {
            bail!("a cluster needs a mirror, whose data the nodes share; name one in [mirror]");
        };
        if let Some(id) = self.id.as_ref().filter(|id| !identity::is_id(id)) {
            bail!("invalid node id {id:?}: expected lower-case letters, digits, '-' and dots");
        }
        if let Some(seed) = self.seeds.iter().find(|seed| !is_seed(seed)) {
            bail!("invalid seed {seed:?}: expected host:port");
        }
        let listen =
            self.listen.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PEER_PORT)));
        let advertise = match self.advertise {
            Some(address) => address,
            None => find_advertised(listen, &self.seeds)?,
        };
        let files = match (self.certificate, self.key, self.ca) {
            (Some(certificate), Some(key), Some(authority)) if !self.insecure => {
                Some(CertificateFiles { certificate, key, authority })
            }
            (None, None, None) if self.insecure => {
                if !listen.ip().is_loopback() || !advertise.ip().is_loopback() {
                    bail!(
                        "insecure = true needs loopback addresses, and {listen} is not one; set certificate, key and ca"
                    );
                }
                None
            }
            (None, None, None) => {
                bail!(
                    "certificate, key and ca are missing; create them with `bdnfs cluster init-ca` and `issue`"
                )
            }
            _ if self.insecure => bail!("insecure = true cannot be used with certificate, key or ca"),
            _ => bail!("certificate, key and ca must be set together"),
        };
        Ok(ClusterConfig {
            name: self.name.unwrap_or_else(|| DEFAULT_CLUSTER_NAME.to_owned()),
            id: self.id,
            listen,
            advertise,
            zone: self.zone,
            capacity: self.capacity.map(|size| size.as_u64()),
            seeds: self.seeds,
            files,
            mirror,
            tenants,
        })
    }
}

fn is_seed(seed: &str) -> bool {
    seed.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Addresses of the networks reserved for documentation, to find the default route.
const REMOTE_ADDRESSES: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// Finds the address that other nodes reach: that of `listen`, or if it is unspecified, the source address of the route to a
/// seed, or while names cannot be resolved, of the default route.
fn find_advertised(listen: SocketAddr, seeds: &[String]) -> Result<SocketAddr> {
    if !listen.ip().is_unspecified() {
        return Ok(listen);
    }
    let source_address = |seed: &str| {
        let seed = seed.to_socket_addrs().ok()?.find(|seed| seed.is_ipv4() == listen.is_ipv4())?;
        // Connecting a UDP socket sends nothing: it only selects the source address.
        let socket = UdpSocket::bind((listen.ip(), 0)).ok()?;
        socket.connect(seed).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let ip = seeds.iter().map(String::as_str).chain(REMOTE_ADDRESSES).find_map(source_address).with_context(
        || format!("cannot find the address by which other nodes reach {listen}; set advertise"),
    )?;
    Ok(SocketAddr::new(ip, listen.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bdnfs::source::Secret;

    fn setup(text: &str) -> Result<ClusterConfig> {
        let url = Secret::new("s3://mirror".to_owned());
        let mirror = MirrorRequest { url, tenant: "t".into(), access: Default::default() };
        toml::from_str::<ClusterSection>(text)?.setup(Some(&mirror), vec!["t".to_owned()])
    }

    const SECURE: &str = "certificate = \"/n.pem\"\nkey = \"/n.key\"\nca = \"/ca.pem\"\n";

    #[test]
    fn invalid_cluster_section_is_refused() {
        for (text, message) in [
            ("advertise = \"10.0.0.1:7531\"", "init-ca"),
            ("advertise = \"10.0.0.1:7531\"\ncertificate = \"/n.pem\"", "must be set together"),
            ("advertise = \"10.0.0.1:7531\"\ninsecure = true", "needs loopback addresses"),
            (
                "listen = \"127.0.0.1:1\"\nadvertise = \"10.0.0.1:7531\"\ninsecure = true",
                "needs loopback addresses",
            ),
            (
                "listen = \"127.0.0.1:1\"\ninsecure = true\nca = \"/ca.pem\"",
                "cannot be used with certificate",
            ),
            ("listen = \"127.0.0.1:1\"\nid = \"Big One\"", "invalid node id"),
            ("listen = \"127.0.0.1:1\"\nseeds = [\"somewhere\"]", "expected host:port"),
        ] {
            let error = crate::text::line(&setup(text).expect_err(text));
            assert!(error.contains(message), "{text}: {error}");
        }
        let none = toml::from_str::<ClusterSection>("").expect("TOML").setup(None, Vec::new());
        assert!(none.expect_err("nothing to share").to_string().contains("[mirror]"));
    }

    #[test]
    fn advertised_address_follows_listen_and_seeds() {
        let setup = |text: &str| super::tests::setup(&format!("{SECURE}{text}")).expect("right").advertise;
        assert_eq!(setup("listen = \"10.1.2.3:99\""), "10.1.2.3:99".parse().unwrap());
        assert_eq!(setup("advertise = \"10.1.2.3:98\""), "10.1.2.3:98".parse().unwrap());
        assert_eq!(
            setup("seeds = [\"nowhere.invalid:1\", \"127.0.0.1:5\"]"),
            "127.0.0.1:7531".parse().unwrap()
        );
    }
}
