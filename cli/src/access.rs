//! Credentials: gathered here and nowhere else, from the environment, a file and flags. Those that are named travel to the
//! daemon as names, which it looks up itself; those of the environment in the body of one request. No secret is ever an
//! argument.

mod auth;
mod azure;
mod environment;
mod google;
mod hub;
mod s3;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bdnfs::auth::load::complete_access;
use bdnfs::source::{Access, AuthMethod, AzureAccess, GcsAccess, HubAccess, S3Access, SecretStore, Uri};

use self::environment::Environment;
use crate::secrets;

/// The variables that hold credentials: a daemon is started without them, since its mounts bring their own.
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
    hub::TOKENS[0],
    hub::TOKENS[1],
    azure::KEYS[0],
    azure::KEYS[1],
    azure::SAS,
    azure::PASSWORD,
];

const ALLOW_HTTP: &str = "AWS_ALLOW_HTTP";

/// A file of credentials or certificates has some thousand bytes; a larger one is another file.
const LARGEST_FILE: u64 = 1 << 20;

/// How a source may be read.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// URL of the service, where it is another than the scheme's own
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Region of the bucket
    #[arg(long)]
    region: Option<String>,
    /// Name of the secret with the credentials; without it and its like below, the environment's are used
    #[arg(long, value_name = "NAME")]
    secret: Option<String>,
    #[command(flatten)]
    secrets: secrets::Args,
    /// File with the credentials, in the form of the source's scheme
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    credentials: Option<PathBuf>,
    #[command(flatten)]
    auth: auth::Args,
    /// Send no credentials: public buckets and repositories
    #[arg(long, conflicts_with_all = ["credentials", "secret", "auth"])]
    anonymous: bool,
    /// Allow plain http:// to other machines
    #[arg(long)]
    allow_http: bool,
    /// File with certificates (PEM) of authorities to trust beside this machine's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Pay for the requests: buckets whose owner doesn't (s3, gs)
    #[arg(long)]
    requester_pays: bool,
    /// How an S3 service is told the bucket
    #[arg(long, value_enum, value_name = "STYLE")]
    bucket_style: Option<BucketStyle>,
    /// What to do with keys that can't be paths
    #[arg(long, value_enum, default_value_t)]
    bad_names: BadNames,
}

/// What a certificate begins with (PEM).
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// Where a bucket's name stands in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BucketStyle {
    /// https://service/bucket
    Path,
    /// https://bucket.service
    VirtualHost,
}

/// What becomes of keys that can't be paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum BadNames {
    /// Fail, and tell them
    #[default]
    Refuse,
    /// Percent-encode what is at fault, and every % with it
    Escape,
}

impl Args {
    /// Puts together what `uri` may need, from the flags and the environment of this process.
    pub fn gather(&self, uri: &Uri) -> Result<Access> {
        self.collect(uri, self.named()?, |name| std::env::var_os(name))
    }

    /// The same, authorised as a configuration says.
    pub fn gather_as(&self, uri: &Uri, auth: Option<AuthMethod>) -> Result<Access> {
        self.collect(uri, auth, |name| std::env::var_os(name))
    }

    /// Where secrets are looked for, behind the environment.
    pub fn stores(&self) -> Result<Vec<SecretStore>> {
        self.secrets.stores(|name| std::env::var_os(name))
    }

    /// Where the secret `name` is looked for.
    pub fn holding(&self, name: &str) -> Result<Vec<SecretStore>> {
        self.secrets.holding(name, |name| std::env::var_os(name))
    }

    /// The same, with plain `http://` permitted or not.
    pub fn allowing_http(self, allow_http: bool) -> Self {
        Self { allow_http, ..self }
    }

    /// The same for a mirror, which may lie elsewhere. What is not said of it is as for `source`, where they are of one
    /// kind. Whoever reads a source as nobody writes its mirror as somebody.
    pub fn of_mirror(&self, mirror: &Own<'_>, source: Option<&Uri>) -> Self {
        let alike = source.is_none_or(|source| source.scheme() == mirror.uri.scheme());
        let own = mirror.credentials.is_some() || mirror.secret.is_some() || !alike;
        Self {
            endpoint: mirror.endpoint.clone().or(self.endpoint.clone()),
            region: mirror.region.clone().or(self.region.clone()),
            secret: if own { mirror.secret.clone() } else { self.secret.clone() },
            credentials: if own { mirror.credentials.clone() } else { self.credentials.clone() },
            auth: if own { auth::Args::default() } else { self.auth.clone() },
            anonymous: false,
            requester_pays: false,
            ..self.clone()
        }
    }

    /// How the flags say that a source is authorised.
    fn named(&self) -> Result<Option<AuthMethod>> {
        match &self.secret {
            Some(name) => Ok(Some(AuthMethod::Secret { auth_secret_name: name.clone() })),
            None => self.auth.method(self.region.as_deref()),
        }
    }

    /// Puts together what `uri` may need: what a flag says goes before what belongs to the credentials, and that before the
    /// environment.
    fn collect(
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
        let access = Access {
            allow_http: self.allow_http || http,
            authorities: self.ca_file.as_deref().map(authorities).transpose()?,
            requester_pays: self.requester_pays,
            virtual_host: self.bucket_style.map(|style| style == BucketStyle::VirtualHost),
            escape: self.bad_names == BadNames::Escape,
            secrets: secret.map_or(Ok(Vec::new()), |name| self.secrets.holding(name, &env))?,
            // A daemon has another working directory.
            credentials: self.credentials.as_deref().map(std::path::absolute).transpose()?,
            auth,
            ..Access::default()
        };
        let access = match uri {
            Uri::S3 { .. } | Uri::R2 { .. } | Uri::Cw { .. } => return self.s3(uri, access, &text),
            Uri::Gs { .. } => Access { gcs: Some(self.google(&access, &text)?), ..access },
            Uri::Azure { .. } => Access { azure: Some(self.azure(&access, &text)), ..access },
            Uri::Hf { .. } => {
                let HubAccess { endpoint, token } = hub::access(self.is_apart(&access), text.0)?;
                let endpoint = self.endpoint.clone().or(endpoint);
                Access { hub: Some(HubAccess { endpoint, token }), ..access }
            }
            Uri::File(_) | Uri::Http(_) => access,
        };
        // A secret that isn't there, or has another form, is told here and now.
        Ok(complete_access(uri, access)?)
    }

    /// Whether the environment's credentials don't count.
    fn is_apart(&self, access: &Access) -> bool {
        self.anonymous || access.auth.is_some() || access.credentials.is_some()
    }

    fn s3(&self, uri: &Uri, mut access: Access, env: &Environment) -> Result<Access> {
        let found = s3::key(env, uri);
        let is_aws = matches!(uri, Uri::S3 { .. });
        let machine = is_aws.then(|| s3::machine(env, self.auth.token_file.as_deref())).transpose()?;
        let profile = machine.as_ref().map(s3::profile).unwrap_or_default();
        // A role is taken on with the key that there is.
        let (keyed, region) = match &access.auth {
            Some(AuthMethod::AwsAssumeRole { aws_assume_role_region: region, .. }) => {
                (true, Some(region.clone()))
            }
            Some(AuthMethod::AwsOidc { aws_oidc_region: region, .. }) => (false, Some(region.clone())),
            _ => (!self.is_apart(&access), None),
        };
        let base = if keyed { found.clone() } else { S3Access::default() };
        let (region, endpoint) = (self.region.clone().or(region), self.endpoint.clone());
        access.aws = machine;
        if let Some(given) = access.s3_mut(uri) {
            *given = S3Access { region, endpoint, anonymous: self.anonymous, ..base };
        }
        let mut access = complete_access(uri, access)?;
        if let Some(given) = access.s3_mut(uri) {
            given.region = given.region.take().or(found.region).or(profile.region);
            given.endpoint = given.endpoint.take().or(found.endpoint).or(profile.endpoint);
        }
        Ok(access)
    }

    fn google(&self, access: &Access, env: &Environment) -> Result<GcsAccess> {
        let mut gcs = google::gather(env, self.auth.token_file.as_deref())?;
        if self.is_apart(access) {
            gcs.service_account = None;
            gcs.anonymous = self.anonymous;
            // Where this machine's identity is, is for GCP_OIDC to know.
            if !matches!(access.auth, Some(AuthMethod::GcpOidc { .. })) {
                gcs.application_credentials = None;
            }
        }
        gcs.endpoint = self.endpoint.clone().or(gcs.endpoint);
        Ok(gcs)
    }

    fn azure(&self, access: &Access, env: &Environment) -> AzureAccess {
        let mut azure = azure::gather(env);
        if self.is_apart(access) {
            let AzureAccess { endpoint, authority, .. } = azure;
            azure = AzureAccess { anonymous: self.anonymous, endpoint, authority, ..AzureAccess::default() };
        }
        azure.endpoint = self.endpoint.clone().or(azure.endpoint);
        azure
    }
}

/// What is said of a mirror alone.
pub struct Own<'a> {
    /// Where it is.
    pub uri: &'a Uri,
    /// URL of its service.
    pub endpoint: &'a Option<String>,
    /// Its region.
    pub region: &'a Option<String>,
    /// File with its credentials.
    pub credentials: &'a Option<PathBuf>,
    /// Name of the secret with them.
    pub secret: &'a Option<String>,
}

/// The certificates in a file.
fn authorities(path: &Path) -> Result<String> {
    let text = read(path).context("--ca-file")?;
    if !text.contains(CERTIFICATE) {
        bail!("--ca-file: {} holds no certificate (expected {CERTIFICATE}, once or more)", shown(path));
    }
    Ok(text)
}

/// What `path` holds, which is not long.
fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    let size = File::open(path)
        .and_then(|file| file.take(LARGEST_FILE + 1).read_to_string(&mut text))
        .with_context(|| shown(path))?;
    if size as u64 > LARGEST_FILE {
        bail!("{}: larger than {LARGEST_FILE} bytes, so it is something else", shown(path));
    }
    Ok(text)
}

fn shown(path: &Path) -> String {
    format!("file {}", path.display())
}
