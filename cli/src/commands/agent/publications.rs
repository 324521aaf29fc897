//! The sections of the agent's configuration for containers: what may be published, and sources that have a name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bdnfs::source::{AccessOption, Patterns, TreeLayout, Uri};
use bdnfs_agent::api::container_volume::ContainerVolumeKind;
use bdnfs_agent::api::publication::{PublicationRequest, Staging, is_publication_key};
use bdnfs_agent::{DockerConfig, PublicationConfig, SourceConfig, is_device_name};
use serde::Deserialize;

use crate::access::{AccessArgs, NamedAccess, key_name};
use crate::secrets::SecretsArgs;
use crate::source::Source;
use crate::text;

/// The schemes of sources.
const SOURCE_SCHEMES: [&str; 8] = ["hf", "s3", "gs", "r2", "azure", "cw", "https", "file"];

/// The directory of Docker's plugins; the file's name is that of the plugin.
const DEFAULT_DOCKER_SOCKET: &str = "/run/docker/plugins/bdnfs.sock";
/// podman's own default for `volume_plugin_timeout`.
const DEFAULT_PODMAN_TIMEOUT: Duration = Duration::from_secs(5);
/// The least podman timeout: less leaves no time to find a source.
const MIN_PODMAN_TIMEOUT: Duration = Duration::from_secs(2);

/// The `[publications]` section: what may be published, and where.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PublicationSection {
    /// The directories below which targets lie.
    targets: Option<Vec<PathBuf>>,
    /// The directory with the bases.
    bases: Option<PathBuf>,
    /// The sources that any author may name.
    inline_sources: Option<Vec<String>>,
    /// The volumes to write to that any author may ask for.
    #[serde(default)]
    inline_volumes: Vec<ContainerVolumeKind>,
    /// The file that lists the sources as CDI devices.
    cdi_file: Option<PathBuf>,
}

/// The `[docker]` section: the volume plugin for Docker and podman.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DockerSection {
    /// The socket of the plugin.
    socket: Option<PathBuf>,
    /// podman's `volume_plugin_timeout`.
    #[serde(deserialize_with = "text::deserialize_duration")]
    podman_timeout: Option<Duration>,
}

/// A source that has a name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSection {
    source: String,
    mount_location: Option<PathBuf>,
    allow_patterns: Option<Vec<String>>,
    #[serde(default)]
    ignore_patterns: Vec<String>,
    #[serde(default)]
    executable_patterns: Vec<String>,
    tenant: Option<String>,
    uid: Option<u32>,
    gid: Option<u32>,
    #[serde(default)]
    staging: Staging,
    layout: Option<TreeLayout>,
    endpoint: Option<String>,
    region: Option<String>,
    /// The name of the secret with the credentials, in the stores of `secrets`.
    secret: Option<String>,
    /// A file with the credentials.
    credentials: Option<PathBuf>,
    #[serde(default)]
    anonymous: bool,
    #[serde(default)]
    allow_http: bool,
}

impl PublicationSection {
    /// The setup, with `sources`, whose secrets are in `secrets`.
    pub fn setup(
        self,
        sources: BTreeMap<String, SourceSection>,
        secrets: &SecretsArgs,
    ) -> Result<PublicationConfig> {
        let default = PublicationConfig::default();
        let targets = self.targets.unwrap_or(default.targets);
        let mut paths = targets.iter().chain(&self.bases).chain(&self.cdi_file);
        if let Some(path) = paths.find(|path| !path.is_absolute()) {
            bail!("publications: targets, bases and cdi_file must be absolute paths, not {}", path.display());
        }
        let inline_sources = self.inline_sources.unwrap_or(default.inline_sources);
        let inline_sources = inline_sources.into_iter().map(inline_source).collect::<Result<_>>()?;
        let named = |(name, section): (String, SourceSection)| {
            let context = format!("sources.{name}");
            section.setup(name, secrets).context(context)
        };
        let sources = sources.into_iter().map(named).collect::<Result<_>>()?;
        let Self { bases, cdi_file, inline_volumes, .. } = self;
        Ok(PublicationConfig { targets, bases, inline_sources, inline_volumes, sources, cdi_file })
    }
}

/// A scheme, or the URI of a source in the canonical form, as those of requests are compared with it.
fn inline_source(allowed: String) -> Result<String> {
    if SOURCE_SCHEMES.contains(&allowed.as_str()) {
        return Ok(allowed);
    }
    match allowed.parse::<Uri>() {
        Ok(uri) if allowed.contains("://") => Ok(uri.to_string()),
        _ => bail!(
            "publications.inline_sources: {allowed:?} is neither a scheme ({}) nor the URI of a source",
            SOURCE_SCHEMES.join(", ")
        ),
    }
}

impl DockerSection {
    /// The setup.
    pub fn setup(self) -> Result<DockerConfig> {
        let socket = self.socket.unwrap_or_else(|| PathBuf::from(DEFAULT_DOCKER_SOCKET));
        if !socket.is_absolute() {
            bail!("socket {}: must be an absolute path", socket.display());
        }
        let podman_timeout = self.podman_timeout.unwrap_or(DEFAULT_PODMAN_TIMEOUT);
        if podman_timeout < MIN_PODMAN_TIMEOUT {
            bail!("podman_timeout: must be at least {MIN_PODMAN_TIMEOUT:?}");
        }
        Ok(DockerConfig { socket, podman_timeout })
    }
}

impl SourceSection {
    fn setup(self, name: String, secrets: &SecretsArgs) -> Result<SourceConfig> {
        if !is_publication_key(&name) || !is_device_name(&name) {
            bail!(
                "a name has letters, digits, dots, underscores and dashes, and a letter or digit at its end"
            );
        }
        if name.parse::<u64>().is_ok() {
            bail!("a name cannot be a number, which `bdnfs wait` takes for the id of a job");
        }
        if let Some(path) = self.mount_location.as_ref().filter(|path| !path.is_absolute()) {
            bail!("mount_location: must be absolute, not {}", path.display());
        }
        let source: Source = self.source.parse()?;
        self.layout.map_or(Ok(()), |layout| layout.check(source.uri()))?;
        Patterns::filter(self.allow_patterns.as_deref(), &self.ignore_patterns)?;
        let executable = AccessOption::Executable.refusal(source.uri());
        if let Some(why) = executable.filter(|_| !self.executable_patterns.is_empty()) {
            bail!("executable_patterns: {why}");
        }
        let Self { endpoint, region, secret, credentials, anonymous, allow_http, .. } = self;
        let access = NamedAccess { endpoint, region, secret, credentials, anonymous, allow_http };
        // The secret itself is looked up by the agent, each time anew.
        let access = AccessArgs::named(access).with_secrets(secrets.clone());
        access.check(&[source.uri()], None, key_name)?;
        let mut access = access.load(source.uri())?;
        access.executable = self.executable_patterns;
        let request = PublicationRequest {
            source: source.text().clone(),
            allow: self.allow_patterns,
            ignore: self.ignore_patterns,
            access,
            secrets: BTreeMap::new(),
            mirror: None,
            tenant: self.tenant,
            uid: self.uid,
            gid: self.gid,
            target: None,
            consumer: Some(format!("sources.{name}")),
            staging: self.staging,
            layout: self.layout,
            trusted: true,
            keep: true,
        };
        Ok(SourceConfig { name, request, mount_location: self.mount_location })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_source_is_kept_as_requests_name_it() {
        let kept = |text: &str| inline_source(text.to_owned()).expect(text);
        assert_eq!(kept("hf"), "hf");
        assert_eq!(kept("hf://o/m"), "hf://models/o/m");
        assert_eq!(kept("https://huggingface.co/o/m"), "hf://models/o/m");
        assert_eq!(kept("s3://bucket/prefix/").trim_end_matches('/'), "s3://bucket/prefix");
        for wrong in ["ftp", "./weights", "ftp://x"] {
            inline_source(wrong.to_owned()).expect_err(wrong);
        }
    }
}
