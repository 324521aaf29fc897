//! The agent's configuration: a TOML file. No secret stands in it, only where secrets are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bdnfs::source::tenant;
use bdnfs_agent::AgentConfig;
use bdnfs_agent::api::MirrorRequest;
use bdnfs_agent::api::socket;
use bdnfs_agent::telemetry::traces::Collector;
use bytesize::ByteSize;
use serde::Deserialize;

use super::cluster::Cluster;
use crate::access::Own;
use crate::source::Source;
use crate::{access, cache, mirror, secrets, text};

/// What stands in the file. All of it may be left out.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Directory of the cache.
    cache_dir: Option<PathBuf>,
    /// The most that the cache may hold.
    cache_size: Option<ByteSize>,
    /// What stays free on the cache's disk.
    reserve: Option<ByteSize>,
    /// The most memory that fetches under way may hold.
    memory: Option<ByteSize>,
    /// Whose the mounts are that name no tenant.
    tenant: Option<String>,
    /// What is said of single tenants.
    tenants: BTreeMap<String, Tenant>,
    /// Where other commands find the agent, whatever its cache.
    socket: Option<PathBuf>,
    /// Where secrets are looked for by their names: directories, and TOML files.
    secrets: Vec<PathBuf>,
    /// How long mounts wait for the next agent.
    hold: Option<String>,
    /// The mirror of mounts that name none.
    mirror: Option<Mirror>,
    /// The other nodes that serve it, and are served by it.
    cluster: Option<Cluster>,
    /// How it is watched.
    telemetry: Telemetry,
}

/// Long enough to start a service anew, also after a look at what went wrong; after it nothing should wait any more.
const HOLD: Duration = Duration::from_secs(5 * 60);

/// What is said of one tenant.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Tenant {
    /// The most that its blobs may occupy.
    quota: Option<ByteSize>,
}

/// A mirror, as the options `--mirror` and `--mirror-*` name it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mirror {
    url: String,
    endpoint: Option<String>,
    region: Option<String>,
    /// A file with the mirror's AWS credentials.
    credentials: Option<PathBuf>,
    /// The name of the secret with them, in the places that `secrets` names.
    secret: Option<String>,
    #[serde(default)]
    allow_http: bool,
}

/// How the agent is watched.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Telemetry {
    /// Where metrics and health are served over TCP, too: an address of this machine's own.
    listen: Option<SocketAddr>,
    /// The collector that takes traces over OTLP.
    otlp: Option<String>,
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("configuration {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            anyhow::anyhow!("line {line}: {}", e.message())
        })
    }

    /// The collector that takes its traces, if it names one.
    pub fn collector(&self) -> Result<Option<Collector>> {
        self.telemetry.otlp.as_deref().map(Collector::at).transpose().context("telemetry.otlp")
    }

    /// The socket of the agent that has this configuration. What `cache` and `socket` say goes before what stands here.
    pub fn reached(self, cache: &cache::Args, socket: Option<&Path>) -> Result<PathBuf> {
        let named = socket.map(Path::to_owned).or(self.socket);
        let cache = cache.or(&cache::Args::new(self.cache_dir, self.cache_size));
        if cache.names_directory() && named.is_none() {
            return Ok(socket::of_cache(&cache.make()?.dir));
        }
        named.or_else(socket::well_known).context("there is no directory for sockets; name one with --socket")
    }

    /// What the daemon is told. What `cache` and `socket` say goes before what stands here.
    pub fn setup(self, cache: &cache::Args, socket: Option<&Path>) -> Result<AgentConfig> {
        let own = cache::Args::new(self.cache_dir, self.cache_size);
        let mut cache = cache.or(&own).make()?;
        cache.reserve = self.reserve.map(|size| size.as_u64());
        cache.memory = self.memory.map(|size| size.as_u64());
        for name in self.tenant.iter().chain(self.tenants.keys()) {
            tenant::check(name)?;
        }
        if let Some(tenant) = self.tenant {
            cache.tenant = tenant;
        }
        let named: BTreeSet<_> = self.tenants.keys().chain([&cache.tenant]).cloned().collect();
        let quotas = self.tenants.into_iter();
        cache.quotas = quotas.filter_map(|(name, tenant)| Some((name, tenant.quota?.as_u64()))).collect();
        let socket = socket.map(Path::to_owned).or(self.socket);
        if let Some(path) = socket.as_ref().filter(|path| !path.is_absolute()) {
            bail!("socket {} must be absolute", path.display());
        }
        if let Some(listen) = self.telemetry.listen.filter(|listen| !listen.ip().is_loopback()) {
            bail!(
                "telemetry.listen {listen}: metrics name sources and mountpoints, so they are served on this \
                 machine only; write an address such as 127.0.0.1:9464"
            );
        }
        let stores = secrets::Args::new(self.secrets).stores(|name| std::env::var_os(name))?;
        let mirror = self.mirror.map(|mirror| mirror.request(&cache.tenant)).transpose()?;
        let cluster = self.cluster.map(|cluster| cluster.setup(mirror.as_ref(), named.into_iter().collect()));
        let cluster = cluster.transpose().context("cluster")?;
        let hold = self.hold.map(|text| text::span(&text)).transpose();
        let hold = hold.map_err(|e| anyhow::anyhow!("hold: {e}"))?.unwrap_or(HOLD);
        Ok(AgentConfig {
            hold,
            cache,
            cluster,
            stays: true,
            insists: socket.is_some(),
            socket: socket.or_else(socket::well_known),
            mirror,
            secrets: stores,
            listen: self.telemetry.listen,
        })
    }
}

impl Mirror {
    fn request(&self, tenant: &str) -> Result<MirrorRequest> {
        let access = access::Args::default().allowing_http(self.allow_http);
        let url: Source = self.url.parse().context("mirror.url")?;
        let own = Own {
            uri: url.uri(),
            endpoint: &self.endpoint,
            region: &self.region,
            credentials: &self.credentials,
            secret: &self.secret,
        };
        let access = access.of_mirror(&own, None);
        mirror::at(&url, tenant, &access).context("mirror")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(text: &str) -> Result<AgentConfig> {
        let dir = tempfile::tempdir()?;
        let cache = cache::Args::new(Some(dir.path().join("cache")), None);
        Config::parse(text)?.setup(&cache, None)
    }

    #[test]
    fn the_example_is_a_configuration_and_says_what_is_so_anyway() {
        let example = include_str!("../../../../docs/agent.toml");
        Config::parse(example).expect("the example");
        // What stands there as a comment is what it would be with it.
        let all = example
            .lines()
            .map(|line| line.strip_prefix('#').unwrap_or(line))
            .filter(|line| !line.starts_with(' '));
        Config::parse(&all.collect::<Vec<_>>().join("\n")).expect("the example without its marks");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, told) in [
            ("\ncache_sise = \"2T\"", "line 2: unknown field `cache_sise`"),
            ("cache_size = \"many\"", "line 1"),
            ("[telemetry]\nlisten = \"0.0.0.0:9464\"", "this machine only"),
            ("socket = \"agent.sock\"", "absolute"),
            ("secrets = [\"/no such place\"]", "/no such place"),
            ("[mirror]\nurl = \"ftp://x\"", "mirror.url"),
            ("tenant = \"a/b\"", "a/b"),
            ("[cluster]\ninsecure = true", "cluster: nodes share what a mirror has"),
            ("hold = \"soon\"", "hold: expected a number"),
        ] {
            let error = crate::text::line(&setup(text).expect_err(text));
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_collector_is_named_by_a_url() {
        let collector = |text: &str| Config::parse(text).and_then(|config| config.collector());
        assert_eq!(collector("").expect("nothing"), None);
        let named = collector("[telemetry]\notlp = \"http://collector:4318\"").expect("a URL");
        assert_eq!(named, Some(Collector::at("http://collector:4318").expect("a URL")));
        let error = crate::text::line(&collector("[telemetry]\notlp = \"collector\"").expect_err("no URL"));
        assert!(error.starts_with("telemetry.otlp: "), "{error}");
    }

    #[test]
    fn what_is_said_arrives() {
        let text = r#"
            cache_size = "2T"
            reserve = "7GiB"
            tenant = "alice"
            socket = "/run/x.sock"
            [tenants.bob]
            quota = "500G"
            [mirror]
            url = "s3://mirror/prefix"
            region = "eu-west-1"
        "#;
        let setup = setup(text).expect("right");
        assert_eq!((setup.cache.size, setup.cache.reserve), (Some(2_000_000_000_000), Some(7 << 30)));
        assert_eq!((setup.cache.tenant.as_str(), setup.cache.quotas["bob"]), ("alice", 500_000_000_000));
        assert_eq!(setup.socket.as_deref(), Some(Path::new("/run/x.sock")));
        let mirror = setup.mirror.expect("named");
        assert_eq!((mirror.url.expose(), mirror.tenant.as_str()), ("s3://mirror/prefix", "alice"));
    }
}
