//! The configuration file of the agent (TOML). It names secrets and never contains them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bdnfs::auth::load::complete_access;
use bdnfs::source::tenant;
use bdnfs_agent::AgentConfig;
use bdnfs_agent::api::socket;
use bdnfs_agent::api::{MirrorRequest, MountBackend};
use bdnfs_agent::telemetry::traces::OtlpEndpoint;
use bytesize::ByteSize;
use serde::Deserialize;

use super::cluster::ClusterSection;
use super::config_error;
use super::publications::{DockerSection, PublicationSection, SourceSection};
use super::volumes::{ProjectSection, VolumeSection};
use crate::access::{AccessArgs, MirrorAccessArgs, key_name};
use crate::cache::CacheArgs;
use crate::secrets::SecretsArgs;
use crate::source::Source;
use crate::{mirror, text};

/// The configuration file. All of it is optional.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigFile {
    /// Cache directory.
    cache_dir: Option<PathBuf>,
    /// Size limit of the cache.
    cache_size: Option<ByteSize>,
    /// Space to keep free on the disk of the cache.
    reserve: Option<ByteSize>,
    /// Memory limit for fetches in flight.
    memory: Option<ByteSize>,
    /// The default tenant of mounts.
    tenant: Option<String>,
    /// Settings of single tenants.
    tenants: BTreeMap<String, TenantSection>,
    /// Path of the control socket.
    socket: Option<PathBuf>,
    /// Secret stores: directories and TOML files.
    secrets: Vec<PathBuf>,
    /// The backend of staged mounts whose requests name none.
    via: Option<MountBackend>,
    /// The time that mounts wait for the next agent (`hold`).
    #[serde(deserialize_with = "text::deserialize_duration")]
    hold: Option<Duration>,
    /// The interval at which all cached data is verified (`scrub_interval`).
    #[serde(deserialize_with = "text::deserialize_duration")]
    scrub_interval: Option<Duration>,
    /// Socket of an fd store that runs as a service.
    fdstore: Option<PathBuf>,
    /// The default mirror of mounts.
    mirror: Option<MirrorSection>,
    /// The cluster of this node.
    cluster: Option<ClusterSection>,
    /// Publications for containers.
    publications: PublicationSection,
    /// Sources that have a name.
    sources: BTreeMap<String, SourceSection>,
    /// The places and the limits of jobs' volumes.
    volumes: VolumeSection,
    /// Training caches that several nodes share.
    projects: ProjectSection,
    /// Volumes of Docker and podman.
    docker: Option<DockerSection>,
    /// Metrics and traces.
    telemetry: TelemetrySection,
}

/// The default time that mounts wait for the next agent: enough to restart a service, also after a look at what went wrong.
const DEFAULT_HANDOVER_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The settings of a tenant.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TenantSection {
    /// Limit for its blobs in the cache.
    quota: Option<ByteSize>,
}

/// A mirror, with the keys of the options `--mirror` and `--mirror-*`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MirrorSection {
    url: String,
    endpoint: Option<String>,
    region: Option<String>,
    /// A file with the mirror's credentials.
    credentials: Option<PathBuf>,
    /// The name of the secret with them, in the stores of `secrets`.
    secret: Option<String>,
    /// Whether requests to the mirror have no credentials at all.
    #[serde(default)]
    anonymous: bool,
    #[serde(default)]
    allow_http: bool,
}

/// The settings for metrics and traces.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TelemetrySection {
    /// Address for metrics and health over TCP, on the loopback interface.
    listen: Option<SocketAddr>,
    /// URL of the OTLP collector for traces.
    otlp: Option<String>,
}

impl ConfigFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| anyhow::anyhow!(config_error::explain(text, &error)))
    }

    /// The collector for traces, if one is named.
    pub fn collector(&self) -> Result<Option<OtlpEndpoint>> {
        self.telemetry.otlp.as_deref().map(OtlpEndpoint::at).transpose().context("telemetry.otlp")
    }

    /// The control socket of the agent with this configuration. `cache` and `socket` take precedence.
    pub fn find_socket(self, cache: &CacheArgs, socket: Option<&Path>) -> Result<PathBuf> {
        let named = socket.map(Path::to_owned).or(self.socket);
        let cache = cache.or(&CacheArgs::new(self.cache_dir, self.cache_size, self.reserve));
        if cache.has_directory() && named.is_none() {
            return Ok(socket::of_cache(&cache.open()?.dir));
        }
        named.or_else(socket::well_known).context("no directory for the control socket; set --socket")
    }

    /// The setup of the agent. `cache` and `socket` take precedence.
    pub fn setup(self, cache: &CacheArgs, socket: Option<&Path>) -> Result<AgentConfig> {
        if let Some(path) = self.cache_dir.as_ref().filter(|path| !path.is_absolute()) {
            bail!("cache_dir {}: must be an absolute path", path.display());
        }
        if self.cache_size.is_some_and(|size| size.as_u64() == 0) {
            bail!(
                "cache_size: must be more than 0; leave it out, and the cache uses all of the disk but the reserve"
            );
        }
        let own = CacheArgs::new(self.cache_dir, self.cache_size, self.reserve);
        let mut cache = cache.or(&own).open()?;
        cache.memory = self.memory.map(|size| size.as_u64());
        for name in self.tenant.iter().chain(self.tenants.keys()) {
            tenant::check(name)?;
        }
        if let Some(tenant) = self.tenant {
            cache.tenant = tenant;
        }
        let tenants: BTreeSet<_> = self.tenants.keys().chain([&cache.tenant]).cloned().collect();
        let quotas = self.tenants.into_iter();
        cache.quotas = quotas.filter_map(|(name, tenant)| Some((name, tenant.quota?.as_u64()))).collect();
        let socket = socket.map(Path::to_owned).or(self.socket);
        if let Some(path) = socket.as_ref().filter(|path| !path.is_absolute()) {
            bail!("socket {}: must be an absolute path", path.display());
        }
        if let Some(listen) = self.telemetry.listen.filter(|listen| !listen.ip().is_loopback()) {
            bail!(
                "telemetry.listen {listen}: must be a loopback address such as 127.0.0.1:9464, because metrics name sources and mount points"
            );
        }
        if let Some(path) = self.fdstore.as_ref().filter(|path| !path.is_absolute()) {
            bail!("fdstore {}: must be an absolute path", path.display());
        }
        let secrets = SecretsArgs::new(self.secrets);
        let stores = secrets.stores(|name| std::env::var_os(name))?;
        let mirror = self.mirror.map(|mirror| mirror.request(&cache.tenant, secrets.clone())).transpose()?;
        let cluster =
            self.cluster.map(|cluster| cluster.setup(mirror.as_ref(), tenants.into_iter().collect()));
        let cluster = cluster.transpose().context("cluster")?;
        cache.scrub_interval = self.scrub_interval.unwrap_or(cache.scrub_interval);
        let publications = self.publications.setup(self.sources, &secrets)?;
        let volumes = self.volumes.setup(self.projects)?;
        Ok(AgentConfig {
            publications,
            volumes,
            docker: self.docker.map(DockerSection::setup).transpose().context("docker")?,
            fdstore: self.fdstore,
            hold: self.hold.unwrap_or(DEFAULT_HANDOVER_TIMEOUT),
            cache,
            cluster,
            persistent: true,
            socket_required: socket.is_some(),
            socket: socket.or_else(socket::well_known),
            mirror,
            via: self.via.unwrap_or_default(),
            secrets: stores,
            metrics_listen: self.telemetry.listen,
        })
    }
}

impl MirrorSection {
    fn request(self, tenant: &str, secrets: SecretsArgs) -> Result<MirrorRequest> {
        let url: Source = self.url.parse().context("mirror.url")?;
        let own = MirrorAccessArgs {
            mirror_endpoint: self.endpoint,
            mirror_region: self.region,
            mirror_credentials: self.credentials,
            mirror_secret: self.secret,
            mirror_anonymous: self.anonymous,
        };
        let access = AccessArgs::default().with_secrets(secrets).with_allow_http(self.allow_http);
        access.check(&[], Some(url.uri()), key_name).context("mirror")?;
        own.check(url.uri(), key_name).context("mirror")?;
        let request = mirror::request(&url, tenant, &access.for_mirror(own, url.uri(), &[]));
        // A missing secret fails here: no other store could have it.
        let complete = |request: MirrorRequest| {
            let access = complete_access(url.uri(), request.access)?;
            Ok(MirrorRequest { access, ..request })
        };
        request.and_then(complete).context("mirror")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(text: &str) -> Result<AgentConfig> {
        let dir = tempfile::tempdir()?;
        let cache = CacheArgs::directory(Some(dir.path().join("cache")));
        ConfigFile::parse(text)?.setup(&cache, None)
    }

    #[test]
    fn example_configuration_is_valid_with_and_without_comments() {
        let example = include_str!("../../../../docs/agent.toml");
        ConfigFile::parse(example).expect("the example");
        // Lines that are commented out show the defaults.
        let all = example
            .lines()
            .map(|line| line.strip_prefix('#').unwrap_or(line))
            .filter(|line| !line.starts_with(' '));
        ConfigFile::parse(&all.collect::<Vec<_>>().join("\n")).expect("the example without comment marks");
    }

    #[test]
    fn invalid_configuration_is_refused_with_line_or_key() {
        for (text, message) in [
            ("\ncache_sise = \"2T\"", "line 2: cache_sise: is not a known key"),
            ("[telemetry]\nlisten = \"0.0.0.0:9464\"", "must be a loopback address"),
            ("socket = \"agent.sock\"", "absolute"),
            ("secrets = [\"/no such place\"]", "/no such place"),
            ("[mirror]\nurl = \"ftp://x\"", "mirror.url"),
            ("tenant = \"a/b\"", "a/b"),
            ("[cluster]\ninsecure = true", "cluster: a cluster needs a mirror"),
            ("\nhold = \"-5s\"", "line 2: hold: "),
            ("fdstore = \"fdstore.sock\"", "fdstore"),
            ("[volumes]\ndir = \"volumes\"", "volumes.dir"),
            ("scrub_interval = \"often\"", "line 1: scrub_interval: "),
            ("[publications]\ntargets = [\"pods\"]", "targets"),
            ("[publications]\ninline_sources = [\"ftp\"]", "ftp"),
            ("[sources.llama]\nsource = \"ftp://x\"", "sources.llama"),
            ("[sources.\"a/b\"]\nsource = \"hf://o/m\"", "a/b"),
            ("[sources.llama]\nsource = \"hf://o/m\"\nmount_location = \"models\"", "mount_location"),
            ("[sources.llama]\nsource = \"hf://o/m\"\nsauce = 1", "sources.llama.sauce: is not a known key"),
            ("cache_dir = \"cache\"", "cache_dir cache: must be an absolute path"),
            ("[mirror]\nurl = \"hf://o/m\"", "mirror: hf://models/o/m cannot hold a mirror"),
            (
                "[mirror]\nurl = \"file:///m\"\nendpoint = \"https://h\"",
                "mirror: endpoint: cannot be used with file://",
            ),
            (
                "[mirror]\nurl = \"file:///m\"\nallow_http = true",
                "mirror: allow_http: cannot be used with file://",
            ),
            (
                "[sources.x]\nsource = \"file:///m\"\nregion = \"r\"",
                "sources.x: region: cannot be used with file://",
            ),
            (
                "[sources.x]\nsource = \"bt://p\"\nexecutable_patterns = [\"*\"]",
                "sources.x: executable_patterns: cannot",
            ),
            ("[docker]\nsocket = \"bdnfs.sock\"", "docker: socket bdnfs.sock: must be an absolute path"),
            ("[docker]\npodman_timeout = \"1s\"", "docker: podman_timeout: "),
            ("[docker]\npodman_timeout = \"soon\"", "line 2: docker.podman_timeout: "),
            ("[volumes]\ngive_up = \"never\"", "line 2: volumes.give_up: "),
            ("[projects]\nshared = true", "projects.shared: needs projects.dir"),
            ("[projects]\ndir = \"/vast/bdnfs\"", "projects.dir /vast/bdnfs: needs shared = true"),
            ("[projects]\ndir = \"vast\"\nshared = true", "projects.dir vast: must be an absolute path"),
        ] {
            let error = crate::text::line(&setup(text).expect_err(text));
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn collector_that_is_no_url_is_refused_by_key() {
        let collector = |text: &str| ConfigFile::parse(text).and_then(|config| config.collector());
        assert_eq!(collector("").expect("nothing"), None);
        let named = collector("[telemetry]\notlp = \"http://collector:4318\"").expect("a URL");
        assert_eq!(named, Some(OtlpEndpoint::at("http://collector:4318").expect("a URL")));
        let error = crate::text::line(&collector("[telemetry]\notlp = \"collector\"").expect_err("no URL"));
        assert!(error.starts_with("telemetry.otlp: "), "{error}");
    }

    #[test]
    fn setup_with_a_size_or_a_directory_that_means_nothing_fails_naming_its_key() {
        for (text, words) in [
            ("cache_size = \"0\"", "cache_size: must be more than 0"),
            ("[volumes]\nupload_rate = \"0\"", "volumes.upload_rate: must be more than 0"),
            ("[volumes]\ndir = \"/absent/../cache/v\"", "volumes.dir: has \"..\" in it"),
            ("[projects]\nshared = true\ndir = \"/absent/../p\"", "projects.dir: has \"..\" in it"),
        ] {
            let error = crate::text::line(&setup(text).expect_err(text));
            assert!(error.starts_with(words), "{error}");
        }
    }

    #[test]
    fn setup_has_the_configured_values() {
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
