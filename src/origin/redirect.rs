//! The policy for redirects: none from TLS to plain http, and none into a network that only this machine sees.
//!
//! A server that redirects chooses what this machine asks next, and what comes is mounted. From a public server that must not be
//! a service of this machine, of its network, or the one at 169.254.169.254 that hands out a cloud's credentials. So a redirect
//! leads to addresses of at least the scope that the source's own host has ([`AddressScope`]), or to hosts that the user has
//! named. Names are held against that when they are resolved: the address that is checked is the one that is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::{Action, Attempt, Policy};
use url::{Host, Url};

use crate::error::Result;
use crate::http_client::{HttpClient, UnfollowedRedirect};
use crate::source::{Access, loopback};

/// The number of redirects that are followed, one after the other.
const REDIRECT_LIMIT: usize = 10;
/// Networks that are nobody's on the internet, each with its mask: of carrier-grade NAT (RFC 6598), of benchmarks (RFC 2544), and
/// of protocols (RFC 6890), in which a cloud has its metadata.
const SPECIAL_NETWORKS: [(u32, u32); 3] =
    [(0x6440_0000, 0xffc0_0000), (0xc612_0000, 0xfffe_0000), (0xc000_0000, 0xffff_ff00)];
/// The address at which machines of Azure reach what hosts them.
const AZURE_HOST: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
/// The prefixes of NAT64 (RFC 6052), of that within a network (RFC 8215), and of 6to4 (RFC 3056).
const NAT64: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
const LOCAL_NAT64: [u16; 3] = [0x64, 0xff9b, 1];
const SIX_TO_FOUR: u16 = 0x2002;

/// The scope from which an address can be reached; a later one is wider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressScope {
    LinkLocal,
    Loopback,
    Private,
    Global,
}

/// Decides where redirects of one source may lead.
#[derive(Debug)]
pub(super) struct RedirectGuard {
    allow_http: bool,
    /// The source's own host.
    host: String,
    /// Hosts that the user has named.
    named: Vec<String>,
    /// The scope of the source's own host, once it is known.
    scope: Mutex<Option<AddressScope>>,
}

impl RedirectGuard {
    /// The guard of a source of the server at `url`.
    pub(super) fn new(url: &Url, access: &Access) -> Arc<Self> {
        let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
        let named = access.redirect_hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        let scope = Mutex::new(literal_address(url).map(AddressScope::of));
        Arc::new(Self { allow_http: access.allow_http, host, named, scope })
    }

    /// A client that follows redirects as far as they may lead.
    ///
    /// # Errors
    /// Those of [`HttpClient::new`].
    pub(super) fn following_client(self: &Arc<Self>, authorities: Option<&str>) -> Result<HttpClient> {
        let guard = Arc::clone(self);
        self.client(Policy::custom(move |attempt| guard.decide(attempt)), authorities)
    }

    /// A client that follows no redirects.
    ///
    /// # Errors
    /// Those of [`HttpClient::new`].
    pub(super) fn plain_client(self: &Arc<Self>, authorities: Option<&str>) -> Result<HttpClient> {
        self.client(Policy::none(), authorities)
    }

    fn client(self: &Arc<Self>, redirects: Policy, authorities: Option<&str>) -> Result<HttpClient> {
        HttpClient::with_resolver(redirects, Some(Arc::new(GuardedResolver(Arc::clone(self)))), authorities)
    }

    fn decide(&self, attempt: Attempt<'_>) -> Action {
        let previous = attempt.previous();
        if previous.len() > REDIRECT_LIMIT {
            return attempt.error("there are more than 10 redirects");
        }
        match previous.iter().try_for_each(|from| self.check(from, attempt.url())) {
            Ok(()) => attempt.follow(),
            Err(why) => attempt.error(why),
        }
    }

    /// The reason not to follow a redirect, as far as its URL tells: names are checked when they are resolved.
    pub(super) fn check(&self, from: &Url, to: &Url) -> std::result::Result<(), UnfollowedRedirect> {
        let refuse = |why: &str| Err(UnfollowedRedirect(why.to_owned()));
        if !matches!(to.scheme(), "http" | "https") {
            return refuse("it does not lead to a web server");
        }
        // A request over https is never repeated without it.
        if to.scheme() == "http" && (from.scheme() == "https" || !(self.allow_http || loopback(to))) {
            return refuse("it leads to plain http");
        }
        let host = to.host_str().unwrap_or_default();
        literal_address(to).map_or(Ok(()), |address| self.admit(host, vec![address]).map(drop))
    }

    /// The `addresses` of `host` that may be connected to.
    fn admit(
        &self,
        host: &str,
        addresses: Vec<IpAddr>,
    ) -> std::result::Result<Vec<IpAddr>, UnfollowedRedirect> {
        let mut scope = self.scope.lock();
        if host.eq_ignore_ascii_case(&self.host) {
            // The widest: a public name must not open this machine's network by an address of that.
            *scope = addresses.iter().copied().map(AddressScope::of).max().or(*scope);
            return Ok(addresses);
        }
        let own = scope.unwrap_or(AddressScope::Global);
        let named = self.named.iter().any(|named| host.eq_ignore_ascii_case(named));
        let (admitted, refused): (Vec<_>, Vec<_>) =
            addresses.into_iter().partition(|address| named || AddressScope::of(*address) >= own);
        match refused.first() {
            Some(address) if admitted.is_empty() => Err(UnfollowedRedirect(format!(
                "it leads to {host}, {} {address}; if that is meant, allow it with --redirect-host {host}",
                AddressScope::of(*address).description()
            ))),
            _ => Ok(admitted),
        }
    }
}

impl AddressScope {
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::of_v4(v4),
            IpAddr::V6(v6) => Self::of_v6(v6),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        let is_in = |(network, mask)| u32::from(address) & mask == network;
        if address.is_link_local() || address == AZURE_HOST {
            Self::LinkLocal
        } else if address.is_loopback() || address.octets()[0] == 0 {
            Self::Loopback
        } else if address.is_private() || SPECIAL_NETWORKS.into_iter().any(is_in) {
            Self::Private
        } else {
            Self::Global
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        if let Some(v4) = embedded_v4(address) {
            Self::of_v4(v4)
        } else if address.is_unicast_link_local() {
            Self::LinkLocal
        } else if address.is_unique_local() || address.segments().starts_with(&LOCAL_NAT64) {
            Self::Private
        } else {
            Self::Global
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::LinkLocal => "the link-local address",
            Self::Loopback => "this machine's own address",
            Self::Private => "the private address",
            Self::Global => "the address",
        }
    }
}

/// The IPv4 address that packets to `address` go to: one that is mapped (`::` and `::1` are, as 0.0.0.0 and 0.0.0.1), or in the
/// prefix of a translation or a tunnel.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high, low| Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    match address.segments() {
        [SIX_TO_FOUR, high, low, ..] => join(high, low),
        [prefix @ .., high, low] if prefix == NAT64 => join(high, low),
        _ => address.to_ipv4(),
    }
}

/// The address that a URL has instead of a name.
fn literal_address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(v4) => Some(v4.into()),
        Host::Ipv6(v6) => Some(v6.into()),
        Host::Domain(_) => None,
    }
}

/// Resolves names to those of their addresses that the guard admits.
struct GuardedResolver(Arc<RedirectGuard>);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = Arc::clone(&self.0);
        async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?.map(|address| address.ip());
            let admitted = guard.admit(name.as_str(), found.collect())?;
            // The port is the URL's.
            Ok(Box::new(admitted.into_iter().map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(source: &str, named: &[&str]) -> Arc<RedirectGuard> {
        let redirect_hosts = named.iter().map(|&host| host.to_owned()).collect();
        let access = Access { allow_http: true, redirect_hosts, ..Access::default() };
        RedirectGuard::new(&url(source), &access)
    }

    fn url(text: &str) -> Url {
        text.parse().expect("a URL")
    }

    fn leads(guard: &RedirectGuard, from: &str, to: &str) -> std::result::Result<(), String> {
        guard.check(&url(from), &url(to)).map_err(|e| e.to_string())
    }

    #[test]
    fn redirect_to_narrower_scope_is_refused_unless_named() {
        let global = ["http://198.51.100.7/x", "http://[2001:db8::1]/x", "http://[2002:c633:6407::1]/x"];
        let private =
            ["http://10.1.2.3/x", "http://172.16.0.1/x", "http://192.168.0.1/x", "http://100.100.100.200/x"];
        let v6 = ["http://[fd00:ec2::254]/x", "http://[::ffff:10.0.0.1]/x", "http://[::10.9.9.9]/x"];
        let others = [
            "http://198.18.0.1/x",
            "http://198.19.255.1/x",
            "http://192.0.0.192/x",
            "http://[64:ff9b:1::a09:909]/x",
            "http://[2002:a09:909::1]/x",
        ];
        let private = [&private[..], &v6, &others].concat();
        let own = ["http://127.0.0.1/x", "http://[::1]/x", "http://0.0.0.0/x", "http://[64:ff9b::7f00:1]/x"];
        let link = [
            "http://169.254.169.254/latest",
            "http://[fe80::1]/x",
            "http://2852039166/x",
            "http://168.63.129.16/x",
        ];
        let scopes = [&link[..], &own[..], &private[..], &global[..]];
        for (number, sources) in scopes.iter().enumerate() {
            for source in *sources {
                let guard = guard(source, &[]);
                for (to_number, targets) in scopes.iter().enumerate() {
                    for to in *targets {
                        let followed = leads(&guard, source, to);
                        let same = url(source).host() == url(to).host();
                        assert_eq!(
                            followed.is_ok(),
                            same || to_number >= number,
                            "{source} {to}: {followed:?}"
                        );
                    }
                }
            }
        }
        let named = guard(global[0], &["10.1.2.3"]);
        leads(&named, global[0], private[0]).expect("named");
        let why = leads(&named, global[0], link[0]).expect_err("not named");
        assert!(why.contains("link-local") && why.contains("--redirect-host 169.254.169.254"), "{why}");
    }

    #[test]
    fn name_resolved_to_narrower_scope_loses_those_addresses() {
        let ips =
            |texts: &[&str]| texts.iter().map(|ip| ip.parse().expect("an address")).collect::<Vec<IpAddr>>();
        let guard = guard("http://models.example/x", &["Storage.example"]);
        let strict =
            guard.admit("cdn.example", ips(&["10.0.0.1"])).expect_err("the source is not resolved yet");
        assert!(strict.to_string().contains("private address 10.0.0.1"), "{strict}");
        // One private address of the source's does not open the private network.
        let all = ips(&["198.51.100.7", "10.0.0.1"]);
        assert_eq!(guard.admit("MODELS.example", all.clone()).expect("the source's own"), all);
        assert_eq!(guard.admit("cdn.example", all.clone()).expect("a public one"), all[..1]);
        guard.admit("cdn.example", ips(&["127.0.0.1", "169.254.169.254"])).expect_err("none is left");
        assert_eq!(guard.admit("storage.example", all[1..].to_vec()).expect("named"), all[1..]);
    }

    #[test]
    fn redirect_from_tls_to_plain_http_is_refused() {
        let guard = guard("https://198.51.100.7/x", &[]);
        for (to, said) in [("http://198.51.100.7/y", "plain http"), ("ftp://198.51.100.7/y", "web server")] {
            let why = leads(&guard, "https://198.51.100.7/x", to).expect_err(to);
            assert!(why.contains(said), "{why}");
        }
        leads(&guard, "https://198.51.100.7/x", "https://203.0.113.1/y").expect("public");
    }
}
