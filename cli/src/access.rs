//! Access to sources: credentials and endpoints, from options, files and the environment, which nothing else reads.
//! Credentials in secrets and files travel to the agent by name, and it reads them itself; those of the environment travel in
//! the body of one request. No secret is ever an argument.

mod auth;
mod azure;
mod environment;
mod google;
mod hub;
mod inapplicable;
mod s3;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bdnfs::auth::load::{complete_access, has_secret};
use bdnfs::source::{Access, AuthMethod, AzureAccess, GcsAccess, HubAccess, S3Access, SecretStore, Uri};

use self::auth::AuthArgs;
use self::environment::Environment;
pub use self::inapplicable::{key_name, option_name};
use crate::secrets::SecretsArgs;

/// The environment variables that hold credentials. An agent is started without them: its mounts bring their own.
pub const SECRET_VARIABLES: [&str; 17] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "R2_ACCESS_KEY_ID",
    "R2_SECRET_ACCESS_KEY",
    "R2_SESSION_TOKEN",
    "CW_ACCESS_KEY_ID",
    "CW_SECRET_ACCESS_KEY",
    "CW_SESSION_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    hub::TOKEN_VARIABLES[0],
    hub::TOKEN_VARIABLES[1],
    azure::ACCOUNT_KEY_VARIABLES[0],
    azure::ACCOUNT_KEY_VARIABLES[1],
    azure::SAS_VARIABLE,
    azure::CLIENT_SECRET_VARIABLE,
];

const ALLOW_HTTP: &str = "AWS_ALLOW_HTTP";

/// The largest file of credentials or certificates, in bytes. They have some thousands; a larger one is another file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The options for access to a source.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct AccessArgs {
    /// URL of the service. Default: the public one of the scheme
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Region of the bucket
    #[arg(long)]
    region: Option<String>,
    /// Name of the secret with the credentials. Default: the credentials of the environment
    #[arg(long, value_name = "NAME")]
    secret: Option<String>,
    #[command(flatten)]
    secrets: SecretsArgs,
    /// File with the credentials, in the format of the source's scheme
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    credentials: Option<PathBuf>,
    #[command(flatten)]
    auth: AuthArgs,
    /// Send no credentials, for public buckets and repositories
    #[arg(long, conflicts_with_all = ["credentials", "secret", "auth"])]
    anonymous: bool,
    /// Allow http:// without TLS to other machines
    #[arg(long)]
    allow_http: bool,
    /// Follow redirects to this host though its address is not public; may be repeated
    #[arg(long = "redirect-host", value_name = "HOST")]
    redirect_hosts: Vec<String>,
    /// File with CA certificates (PEM) to trust in addition to the system's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Pay for the requests, for Requester Pays buckets (s3, gs)
    #[arg(long)]
    requester_pays: bool,
    /// Addressing style of the S3 service
    #[arg(long, value_enum, value_name = "STYLE")]
    bucket_style: Option<BucketStyle>,
    /// Treatment of object keys that are not valid paths
    #[arg(long, value_enum, default_value_t)]
    bad_names: BadNames,
    /// Read files of a web server that sends no version of them: old and new may be mixed
    #[arg(long)]
    unpinned: bool,
    /// Let files that match the pattern be executed, where the service does not say which may; repeatable
    #[arg(long = "exec", value_name = "GLOB")]
    executable: Vec<String>,
}

/// Access to a source, as a configuration names it.
#[derive(Debug, Default)]
pub struct NamedAccess {
    /// URL of the service.
    pub endpoint: Option<String>,
    /// Region of the bucket.
    pub region: Option<String>,
    /// Name of the secret with the credentials.
    pub secret: Option<String>,
    /// File with the credentials.
    pub credentials: Option<PathBuf>,
    /// Send no credentials.
    pub anonymous: bool,
    /// Allow http:// without TLS to other machines.
    pub allow_http: bool,
}

/// The first line of a certificate (PEM).
const PEM_HEADER: &str = "-----BEGIN CERTIFICATE-----";

/// The place of the bucket's name in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BucketStyle {
    /// https://service/bucket
    Path,
    /// https://bucket.service
    VirtualHost,
}

/// The treatment of object keys that are not valid paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum BadNames {
    /// Fail and name them
    #[default]
    Refuse,
    /// Percent-encode the characters at fault, and every %
    Escape,
}

impl AccessArgs {
    /// Loads the access to `uri` from the options and the environment of this process.
    pub fn load(&self, uri: &Uri) -> Result<Access> {
        self.load_from(uri, self.auth_method()?, |name| std::env::var_os(name))
    }

    /// Loads the access to `uri`, with the credentials that a configuration names.
    pub fn load_with_auth(&self, uri: &Uri, auth: Option<AuthMethod>) -> Result<Access> {
        self.load_from(uri, auth, |name| std::env::var_os(name))
    }

    /// The secret stores, searched after the environment.
    pub fn stores(&self) -> Result<Vec<SecretStore>> {
        self.secrets.stores(|name| std::env::var_os(name))
    }

    /// The stores that are searched for the secret `name`.
    pub fn stores_for(&self, name: &str) -> Result<Vec<SecretStore>> {
        self.secrets.stores_for(name, |name| std::env::var_os(name))
    }

    /// Replaces the secret stores of these options.
    pub fn with_secrets(self, secrets: SecretsArgs) -> Self {
        Self { secrets, ..self }
    }

    /// The options that a configuration names.
    pub fn named(named: NamedAccess) -> Self {
        let NamedAccess { endpoint, region, secret, credentials, anonymous, allow_http } = named;
        Self { endpoint, region, secret, credentials, anonymous, allow_http, ..Self::default() }
    }

    /// Replaces the permission for plain `http://` in these options.
    pub fn with_allow_http(self, allow_http: bool) -> Self {
        Self { allow_http, ..self }
    }

    /// The options for access to the mirror at `uri`. Those that `own` leaves out are as for `sources` where one of them has its
    /// scheme, or there are none. That a source is read anonymously says nothing of its mirror.
    pub fn for_mirror(&self, own: MirrorAccessArgs, uri: &Uri, sources: &[&Uri]) -> Self {
        let same_scheme = sources.is_empty() || sources.iter().any(|source| source.scheme() == uri.scheme());
        let mut access = Self { anonymous: own.mirror_anonymous, requester_pays: false, ..self.clone() };
        access.endpoint = own.mirror_endpoint.or(access.endpoint.filter(|_| same_scheme));
        access.region = own.mirror_region.or(access.region.filter(|_| same_scheme));
        let own_keys =
            own.mirror_anonymous || own.mirror_credentials.is_some() || own.mirror_secret.is_some();
        if own_keys || !same_scheme {
            access.secret = own.mirror_secret;
            access.credentials = own.mirror_credentials;
            access.auth = AuthArgs::default();
        }
        access
    }

    /// The authorization method that the options name.
    fn auth_method(&self) -> Result<Option<AuthMethod>> {
        match &self.secret {
            Some(name) => Ok(Some(AuthMethod::Secret { auth_secret_name: name.clone() })),
            None => self.auth.method(self.region.as_deref()),
        }
    }

    /// Loads the access to `uri`. Options take precedence over what the credentials contain, and both over the environment.
    fn load_from(
        &self,
        uri: &Uri,
        auth: Option<AuthMethod>,
        env: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Access> {
        let get = |name: &str| env(name).and_then(|value| value.into_string().ok());
        let text = Environment(&get);
        let http =
            text.first(&[ALLOW_HTTP]).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1");
        let secret = auth.as_ref().and_then(AuthMethod::secret);
        let secrets = secret.map_or(Ok(Vec::new()), |name| self.secrets.stores_for(name, &env))?;
        let access = Access {
            allow_http: self.allow_http || http,
            redirect_hosts: self.redirect_hosts.clone(),
            authorities: self.ca_file.as_deref().map(authorities).transpose()?,
            requester_pays: self.requester_pays,
            virtual_host: self.bucket_style.map(|style| style == BucketStyle::VirtualHost),
            escape: self.bad_names == BadNames::Escape,
            executable: self.executable.clone(),
            unpinned: self.unpinned,
            secrets,
            // The agent has another working directory.
            credentials: self.credentials.as_deref().map(std::path::absolute).transpose()?,
            auth,
            ..Access::default()
        };
        let access = match uri {
            Uri::S3 { .. } | Uri::R2 { .. } | Uri::Cw { .. } => return self.s3(uri, access, &text),
            Uri::Gs { .. } => Access { gcs: Some(self.google(&access, &text)?), ..access },
            Uri::Azure { .. } => Access { azure: Some(self.azure(&access, &text)), ..access },
            Uri::Hf { .. } => {
                let HubAccess { endpoint, token } = hub::load(self.ignores_environment(&access), text.0)?;
                let endpoint = self.endpoint.clone().or(endpoint);
                Access { hub: Some(HubAccess { endpoint, token }), ..access }
            }
            Uri::File(_) | Uri::Http(_) | Uri::Bt(_) => access,
        };
        if has_foreign_secret(&access)? { Ok(access) } else { Ok(complete_access(uri, access)?) }
    }

    /// Whether the environment's credentials are not used.
    fn ignores_environment(&self, access: &Access) -> bool {
        self.anonymous || access.auth.is_some() || access.credentials.is_some()
    }

    fn s3(&self, uri: &Uri, mut access: Access, env: &Environment) -> Result<Access> {
        let environment = s3::load_key(env, uri);
        let is_aws = matches!(uri, Uri::S3 { .. });
        let machine = is_aws.then(|| s3::load_machine(env, self.auth.token_file.as_deref())).transpose()?;
        let profile = machine.as_ref().map(s3::profile).unwrap_or_default();
        // A role is assumed with the key of the environment.
        let (uses_key, region) = match &access.auth {
            Some(AuthMethod::AwsAssumeRole { aws_assume_role_region: region, .. }) => {
                (true, Some(region.clone()))
            }
            Some(AuthMethod::AwsOidc { aws_oidc_region: region, .. }) => (false, Some(region.clone())),
            _ => (!self.ignores_environment(&access), None),
        };
        let base = if uses_key { environment.clone() } else { S3Access::default() };
        let (region, endpoint) = (self.region.clone().or(region), self.endpoint.clone());
        access.aws = machine;
        if let Some(given) = access.s3_mut(uri) {
            *given = S3Access { region, endpoint, anonymous: self.anonymous, ..base };
        }
        // Its own region and endpoint, which are known to the agent alone, take precedence over those of the environment.
        if has_foreign_secret(&access)? {
            return Ok(access);
        }
        let mut access = complete_access(uri, access)?;
        if let Some(given) = access.s3_mut(uri) {
            given.region = given.region.take().or(environment.region).or(profile.region);
            given.endpoint = given.endpoint.take().or(environment.endpoint).or(profile.endpoint);
        }
        Ok(access)
    }

    fn google(&self, access: &Access, env: &Environment) -> Result<GcsAccess> {
        let mut gcs = google::load(env, self.auth.token_file.as_deref())?;
        if self.ignores_environment(access) {
            gcs.service_account = None;
            gcs.anonymous = self.anonymous;
            // GCP_OIDC needs this machine's identity.
            if !matches!(access.auth, Some(AuthMethod::GcpOidc { .. })) {
                gcs.application_credentials = None;
            }
        }
        gcs.endpoint = self.endpoint.clone().or(gcs.endpoint);
        Ok(gcs)
    }

    fn azure(&self, access: &Access, env: &Environment) -> AzureAccess {
        let mut azure = azure::load(env);
        if self.ignores_environment(access) {
            let AzureAccess { endpoint, authority, .. } = azure;
            azure = AzureAccess { anonymous: self.anonymous, endpoint, authority, ..AzureAccess::default() };
        }
        azure.endpoint = self.endpoint.clone().or(azure.endpoint);
        azure
    }
}

/// The options for access to a mirror, where it is not that to the source.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct MirrorAccessArgs {
    /// URL of the mirror's service. Default: that of the source
    #[arg(long, value_name = "URL", requires = "mirror")]
    pub mirror_endpoint: Option<String>,
    /// Region of the mirror's bucket. Default: that of the source
    #[arg(long, value_name = "REGION", requires = "mirror")]
    pub mirror_region: Option<String>,
    /// File with the mirror's credentials. Default: those of the source
    #[arg(long, value_name = "FILE", requires = "mirror")]
    pub mirror_credentials: Option<PathBuf>,
    /// Name of the secret with the mirror's credentials. Default: those of the source
    #[arg(long, value_name = "NAME", requires = "mirror", conflicts_with = "mirror_credentials")]
    pub mirror_secret: Option<String>,
    /// Send the mirror no credentials, for public buckets
    #[arg(long, requires = "mirror", conflicts_with_all = ["mirror_credentials", "mirror_secret"])]
    pub mirror_anonymous: bool,
}

/// Whether `access` names a secret that is nowhere here. It may be the agent's, which looks for it; without an agent it fails when
/// it is needed. One that is here is read at once: where it is malformed, that fails here, not later in the agent.
fn has_foreign_secret(access: &Access) -> Result<bool> {
    let Some(name) = access.auth.as_ref().and_then(AuthMethod::secret) else { return Ok(false) };
    let found = access.secrets.iter().map(|store| has_secret(store, name));
    Ok(!found.collect::<Result<Vec<_>, _>>()?.contains(&true))
}

/// The CA certificates in a file.
fn authorities(path: &Path) -> Result<String> {
    let text = read(path).context("--ca-file")?;
    if !text.contains(PEM_HEADER) {
        bail!("--ca-file: {} contains no certificate in PEM format ({PEM_HEADER})", path.display());
    }
    Ok(text)
}

/// The content of a small file.
fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    let size = File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", path.display()))?;
    if size as u64 > MAX_FILE_BYTES {
        bail!("{}: file too large: more than {MAX_FILE_BYTES} bytes", path.display());
    }
    Ok(text)
}
