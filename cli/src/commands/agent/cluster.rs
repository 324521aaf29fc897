//! The agent's `[cluster]`: where this node listens, how it finds the others, and how they know each other.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bdnfs::peer::identity::{self, Files};
use bytesize::ByteSize;
use serde::Deserialize;

use bdnfs_agent::ClusterConfig;
use bdnfs_agent::api::MirrorRequest;

/// The port that peers are served on where none is named.
const PORT: u16 = 7531;
/// Clusters are told apart by their names; where none is named there is but one.
const NAME: &str = "bdnfs";

/// What stands in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// The cluster's name; nodes of others are not listened to.
    name: Option<String>,
    /// The node's name in it.
    id: Option<String>,
    /// Where it listens.
    listen: Option<SocketAddr>,
    /// Where the others reach it.
    advertise: Option<SocketAddr>,
    /// What fails together with it.
    #[serde(default)]
    zone: String,
    /// How much of the data it should own, beside others.
    capacity: Option<ByteSize>,
    /// Where other members may be.
    #[serde(default)]
    seeds: Vec<String>,
    /// Its certificate.
    certificate: Option<PathBuf>,
    /// The certificate's key.
    key: Option<PathBuf>,
    /// The authorities that the cluster's certificates are signed by.
    ca: Option<PathBuf>,
    /// Whether it does without certificates, on this machine alone.
    #[serde(default)]
    insecure: bool,
}

impl Cluster {
    /// What the daemon is told. Others may have what `mirror` has, for those of `tenants` that the node hosts.
    pub fn setup(self, mirror: Option<&MirrorRequest>, tenants: Vec<String>) -> Result<ClusterConfig> {
        let Some(mirror) = mirror.cloned() else {
            bail!("nodes share what a mirror has: name one in [mirror]");
        };
        if let Some(id) = self.id.as_ref().filter(|id| !identity::is_id(id)) {
            bail!("id {id:?} can't be a node's name: expected lower-case letters, digits, '-' and dots");
        }
        if let Some(seed) = self.seeds.iter().find(|seed| !is_seed(seed)) {
            bail!("seed {seed:?} is no host:port");
        }
        let listen = self.listen.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)));
        let advertise = match self.advertise {
            Some(address) => address,
            None => reached(listen, &self.seeds)?,
        };
        let files = match (self.certificate, self.key, self.ca) {
            (Some(certificate), Some(key), Some(authority)) if !self.insecure => {
                Some(Files { certificate, key, authority })
            }
            (None, None, None) if self.insecure => {
                if !listen.ip().is_loopback() || !advertise.ip().is_loopback() {
                    bail!(
                        "insecure = true is for tests on one machine, and {listen} can be reached by others; name \
                         certificate, key and ca"
                    );
                }
                None
            }
            (None, None, None) => {
                bail!("certificate, key and ca are missing; `bdnfs cluster init-ca` and `issue` make them")
            }
            _ if self.insecure => bail!("insecure = true goes with no certificate, key or ca"),
            _ => bail!("certificate, key and ca belong together, and one of them is missing"),
        };
        Ok(ClusterConfig {
            name: self.name.unwrap_or_else(|| NAME.to_owned()),
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

/// Somewhere else: addresses that are kept for documents, and nobody's.
const ELSEWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// The address that others reach: the one that is listened at, or if that is all of them, the one that the way to a seed
/// leaves this machine by. While names can't be looked up yet, the way to anybody.
fn reached(listen: SocketAddr, seeds: &[String]) -> Result<SocketAddr> {
    if !listen.ip().is_unspecified() {
        return Ok(listen);
    }
    let leave = |seed: &str| {
        let seed = seed.to_socket_addrs().ok()?.find(|seed| seed.is_ipv4() == listen.is_ipv4())?;
        // Connecting sends nothing: it only picks an address.
        let socket = UdpSocket::bind((listen.ip(), 0)).ok()?;
        socket.connect(seed).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let ip = seeds.iter().map(String::as_str).chain(ELSEWHERE).find_map(leave).with_context(|| {
        format!(
            "others can't reach {listen}, and no seed tells by which address they can: name it in advertise"
        )
    })?;
    Ok(SocketAddr::new(ip, listen.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bdnfs::source::Secret;

    fn setup(text: &str) -> Result<ClusterConfig> {
        let url = Secret::new("s3://mirror".to_owned());
        let mirror = MirrorRequest { url, tenant: "t".into(), access: Default::default() };
        toml::from_str::<Cluster>(text)?.setup(Some(&mirror), vec!["t".to_owned()])
    }

    const SECURE: &str = "certificate = \"/n.pem\"\nkey = \"/n.key\"\nca = \"/ca.pem\"\n";

    #[test]
    fn what_is_wrong_is_told() {
        for (text, told) in [
            ("advertise = \"10.0.0.1:7531\"", "init-ca"),
            ("advertise = \"10.0.0.1:7531\"\ncertificate = \"/n.pem\"", "one of them is missing"),
            ("advertise = \"10.0.0.1:7531\"\ninsecure = true", "can be reached by others"),
            ("listen = \"127.0.0.1:1\"\nadvertise = \"10.0.0.1:7531\"\ninsecure = true", "by others"),
            ("listen = \"127.0.0.1:1\"\ninsecure = true\nca = \"/ca.pem\"", "goes with no certificate"),
            ("listen = \"127.0.0.1:1\"\nid = \"Big One\"", "can't be a node's name"),
            ("listen = \"127.0.0.1:1\"\nseeds = [\"somewhere\"]", "is no host:port"),
        ] {
            let error = crate::text::line(&setup(text).expect_err(text));
            assert!(error.contains(told), "{text}: {error}");
        }
        let none = toml::from_str::<Cluster>("").expect("TOML").setup(None, Vec::new());
        assert!(none.expect_err("nothing to share").to_string().contains("[mirror]"));
    }

    #[test]
    fn the_address_that_others_reach_is_found() {
        let setup = |text: &str| super::tests::setup(&format!("{SECURE}{text}")).expect("right").advertise;
        assert_eq!(setup("listen = \"10.1.2.3:99\""), "10.1.2.3:99".parse().unwrap());
        assert_eq!(setup("advertise = \"10.1.2.3:98\""), "10.1.2.3:98".parse().unwrap());
        assert_eq!(
            setup("seeds = [\"nowhere.invalid:1\", \"127.0.0.1:5\"]"),
            "127.0.0.1:7531".parse().unwrap()
        );
    }
}
