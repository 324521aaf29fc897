//! Credentials: gathered here and nowhere else, from the environment, a file and flags. Those that are named travel to the
//! daemon as names, which it looks up itself; those of the environment in the body of one request. No secret is ever an
//! argument.

mod auth;
mod azure;
mod environment;
mod google;
mod hub;
mod s3;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bdnfs::secrets::place;
use bdnfs::source::{Access, Auth, AzureAccess, GcsAccess, HubAccess, S3Access, SecretStore, Uri};

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
    pub fn gather_as(&self, uri: &Uri, auth: Option<Auth>) -> Result<Access> {
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
    fn named(&self) -> Result<Option<Auth>> {
        match &self.secret {
            Some(name) => Ok(Some(Auth::Secret { auth_secret_name: name.clone() })),
            None => self.auth.method(self.region.as_deref()),
        }
    }

    /// Puts together what `uri` may need: what a flag says goes before what belongs to the credentials, and that before the
    /// environment.
    fn collect(
        &self,
        uri: &Uri,
        auth: Option<Auth>,
        env: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Access> {
        let get = |name: &str| env(name).and_then(|value| value.into_string().ok());
        let text = Environment(&get);
        let http =
            text.first(&[ALLOW_HTTP]).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1");
        let secret = auth.as_ref().and_then(Auth::secret);
        let access = Access {
            allow_http: self.allow_http || http,
            authorities: self.ca_file.as_deref().map(read).transpose()?,
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
        Ok(place(uri, access)?)
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
            Some(Auth::AwsAssumeRole { aws_assume_role_region: region, .. }) => (true, Some(region.clone())),
            Some(Auth::AwsOidc { aws_oidc_region: region, .. }) => (false, Some(region.clone())),
            _ => (!self.is_apart(&access), None),
        };
        let base = if keyed { found.clone() } else { S3Access::default() };
        let (region, endpoint) = (self.region.clone().or(region), self.endpoint.clone());
        access.aws = machine;
        if let Some(given) = access.s3_mut(uri) {
            *given = S3Access { region, endpoint, anonymous: self.anonymous, ..base };
        }
        let mut access = place(uri, access)?;
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
            if !matches!(access.auth, Some(Auth::GcpOidc { .. })) {
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bdnfs::source::Secret;

    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().expect("a URI")
    }

    fn collect(args: &Args, text: &str, env: impl Fn(&str) -> Option<String>) -> Access {
        try_collect(args, text, env).expect("valid")
    }

    fn try_collect(args: &Args, text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Access> {
        args.collect(&uri(text), args.named()?, |name| env(name).map(OsString::from))
    }

    fn s3(args: &Args) -> S3Access {
        collect(args, "s3://b", env).s3.expect("set")
    }

    fn env(name: &str) -> Option<String> {
        let value = match name {
            "AWS_ACCESS_KEY_ID" => "env-id",
            "AWS_SECRET_ACCESS_KEY" => "env-secret",
            "AWS_SESSION_TOKEN" => "env-token",
            "AWS_REGION" => "",
            "AWS_DEFAULT_REGION" => "env-region",
            "AWS_ENDPOINT" => "http://least",
            "AWS_ENDPOINT_URL" => "http://env",
            ALLOW_HTTP => "true",
            _ => return None,
        };
        Some(value.to_owned())
    }

    #[test]
    fn the_environment_is_read_by_precedence() {
        let access = collect(&Args::default(), "s3://b", env);
        let s3 = access.s3.expect("set");
        assert_eq!(s3.access_key_id.as_deref(), Some("env-id"));
        assert_eq!(s3.session_token.as_ref().map(Secret::expose), Some("env-token"));
        assert_eq!(s3.region.as_deref(), Some("env-region"));
        assert_eq!(s3.endpoint.as_deref(), Some("http://env"));
        assert!(access.allow_http);
        assert_eq!(collect(&Args::default(), "/x", |_| None), Access::default());
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("file");
        write!(file, "{text}").expect("written");
        file
    }

    const KEY: &str =
        r#"{"aws_access_key_id": "id", "aws_secret_access_key": "secret", "aws_region": "file-region"}"#;

    #[test]
    fn a_file_goes_before_the_environment_and_a_flag_before_both() {
        let file = file(KEY);
        let mut args = Args { credentials: Some(file.path().to_owned()), ..Args::default() };
        let access = collect(&args, "s3://b", env);
        assert_eq!(access.credentials.as_deref(), Some(file.path()), "who opens the source reads it");
        let s3 = access.s3.expect("set");
        assert_eq!((s3.access_key_id, s3.session_token), (None, None), "the environment's are another key's");
        assert_eq!((s3.region.as_deref(), s3.endpoint.as_deref()), (Some("file-region"), Some("http://env")));
        args.endpoint = Some("http://flag".to_owned());
        args.region = Some("flag-region".to_owned());
        let s3 = collect(&args, "s3://b", env).s3.expect("set");
        assert_eq!(
            (s3.region.as_deref(), s3.endpoint.as_deref()),
            (Some("flag-region"), Some("http://flag"))
        );
        // A key for these has no region.
        let bare = r#"{"access_key_id": "id", "secret_access_key": "secret"}"#;
        std::fs::write(file.path(), bare).expect("written");
        let args = Args { credentials: Some(file.path().to_owned()), ..Args::default() };
        for uri in ["r2://a.b", "cw://b"] {
            assert_eq!(collect(&args, uri, env).credentials.as_deref(), Some(file.path()));
        }
        let error = try_collect(&args, "s3://b", env).expect_err("a key without a region");
        assert!(error.to_string().contains("\"aws_access_key_id\""), "{error}");
    }

    #[test]
    fn a_secret_travels_by_its_name() {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::write(dir.path().join("kept"), KEY).expect("written");
        let secrets = |name: &str| Args {
            secret: Some(name.to_owned()),
            secrets: secrets::Args::of(dir.path()),
            ..Args::default()
        };
        let access = collect(&secrets("kept"), "s3://b", env);
        assert_eq!(access.auth, Some(Auth::Secret { auth_secret_name: "kept".into() }));
        let sent = serde_json::to_string(&access).expect("JSON");
        assert!(!sent.contains("secret\":\"secret") && !sent.contains("env-secret"), "{sent}");
        assert_eq!(access.s3.and_then(|s3| s3.region).as_deref(), Some("file-region"));
        // Only that of the environment has no other way, and goes alone.
        let more = |name: &str| match name {
            "BDNFS_SECRET_GIVEN" => Some(KEY.to_owned()),
            "BDNFS_SECRET_OTHER" => Some("hush".to_owned()),
            _ => None,
        };
        let sent = serde_json::to_string(&collect(&secrets("given"), "s3://b", more)).expect("JSON");
        assert!(sent.contains("file-region") && !sent.contains("hush"), "{sent}");
        let error = try_collect(&secrets("none"), "s3://b", env).expect_err("none");
        let said = format!(
            "there is no secret \"none\": not in the environment (BDNFS_SECRET_NONE), not in the directory {}",
            dir.path().display()
        );
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn roles_are_taken_on_with_what_there_is() {
        let uri = |name: &str| if name == "GCP_OIDC" { "gs://b" } else { "s3://b" };
        let more = |name: &str| match name {
            "AWS_WEB_IDENTITY_TOKEN_FILE" | "GOOGLE_WEB_IDENTITY_TOKEN_FILE" => Some("/token".to_owned()),
            _ => env(name),
        };
        let access = |method: &str, more: &[&str]| {
            let line = ["bdnfs", "ls", uri(method), "--auth", method];
            let line = line.iter().chain(more).copied().collect::<Vec<_>>();
            #[derive(clap::Parser)]
            struct Line {
                _ls: String,
                source: String,
                #[command(flatten)]
                args: Args,
            }
            use clap::Parser;
            let line = Line::try_parse_from(line).map_err(|e| e.to_string()).expect("a line");
            (line.args, line.source)
        };
        let (args, source) = access("aws_oidc", &["--role", "arn"]);
        let oidc = collect(&args, &source, more);
        let expected = Auth::AwsOidc { aws_oidc_role_arn: "arn".into(), aws_oidc_region: "us-east-1".into() };
        assert_eq!(oidc.auth, Some(expected));
        let machine = oidc.aws.expect("a machine");
        assert_eq!((machine.role, machine.token_file), (None, Some("/token".into())));
        assert_eq!(oidc.s3.expect("set").access_key_id, None);
        let (args, source) = access("AWS_ASSUME_ROLE", &["--role", "arn", "--region", "eu"]);
        let assumed = collect(&args, &source, more).s3.expect("set");
        assert_eq!(
            (assumed.access_key_id.as_deref(), assumed.region.as_deref()),
            (Some("env-id"), Some("eu"))
        );
        let (args, source) =
            access("GCP_OIDC", &["--service-account", "a@b", "--workload-provider", "projects/1/p"]);
        let gcs = collect(&args, &source, more).gcs.expect("set");
        assert_eq!(gcs.token_file, Some("/token".into()));
        let (args, source) = access("GCP_OIDC", &["--service-account", "a@b"]);
        let error = try_collect(&args, &source, more).expect_err("no provider");
        assert_eq!(error.to_string(), "--auth GCP_OIDC needs --service-account and --workload-provider");
    }

    #[test]
    fn anonymous_sends_nothing_and_keeps_the_place() {
        let s3 = s3(&Args { anonymous: true, ..Args::default() });
        assert!(s3.anonymous && s3.access_key_id.is_none() && s3.secret_access_key.is_none());
        assert_eq!(s3.endpoint.as_deref(), Some("http://env"));
    }

    #[test]
    fn a_bad_file_is_named() {
        let args = Args { credentials: Some("/missing".into()), ..Args::default() };
        let error = try_collect(&args, "s3://b", env).expect_err("missing");
        assert!(error.to_string().contains("/missing"), "{error:#}");
    }

    #[test]
    fn a_source_of_the_hub_brings_the_hubs_token_and_no_other_does() {
        let env = |name: &str| (name == "HF_TOKEN").then(|| "hf_x".to_owned());
        let token = collect(&Args::default(), "hf://owner/name", env).hub.and_then(|hub| hub.token);
        assert_eq!(token.as_ref().map(Secret::expose), Some("hf_x"));
        assert_eq!(collect(&Args::default(), "s3://b", env).hub, None);
    }

    #[test]
    fn another_service_gets_its_own_key_or_else_that_of_all_s3_tools() {
        let r2 = collect(&Args::default(), "r2://a.b", env).r2.expect("set");
        assert_eq!((r2.access_key_id.as_deref(), r2.endpoint, r2.region), (Some("env-id"), None, None));
        let own = |name: &str| match name {
            "CW_ACCESS_KEY_ID" => Some("cw-id".to_owned()),
            "CW_REGION" => Some("US-WEST-01A".to_owned()),
            _ => env(name),
        };
        let cw = collect(&Args::default(), "cw://b", own).cw.expect("set");
        assert_eq!((cw.access_key_id.as_deref(), cw.secret_access_key), (Some("cw-id"), None));
        assert_eq!((cw.region.as_deref(), cw.endpoint), (Some("US-WEST-01A"), None));
    }

    #[test]
    fn googles_credentials_are_a_key_or_a_path() {
        let gcs = |name: &'static str, value: &str| {
            let env = |asked: &str| (asked == name).then(|| value.to_owned());
            collect(&Args::default(), "gs://b", env).gcs.expect("set")
        };
        let key = gcs("GOOGLE_SERVICE_ACCOUNT_KEY", "hush");
        assert_eq!(key.service_account, Some(Secret::new("hush")));
        let path = gcs("GOOGLE_APPLICATION_CREDENTIALS", "/key.json");
        assert_eq!((path.service_account, path.application_credentials), (None, Some("/key.json".into())));
        let emulator = gcs("STORAGE_EMULATOR_HOST", "localhost:9023");
        assert_eq!((emulator.endpoint.as_deref(), emulator.anonymous), (Some("http://localhost:9023"), true));
    }

    #[test]
    fn azures_credentials_come_from_a_file_or_the_environment() {
        let file = file(r#"{"sas_token": "sv=1&sig=hush"}"#);
        let args = Args { credentials: Some(file.path().to_owned()), ..Args::default() };
        let env = |name: &str| (name == "AZURE_STORAGE_KEY").then(|| "other".to_owned());
        let azure = collect(&Args::default(), "azure://a/c", env).azure.expect("set");
        assert_eq!(azure.account_key, Some(Secret::new("other")));
        let azure = collect(&args, "azure://a/c", env).azure.expect("set");
        assert_eq!((azure.account_key, azure.sas), (None, None));
        std::fs::write(file.path(), r#"{"more": "hush"}"#).expect("written");
        let error = format!("{:#}", try_collect(&args, "azure://a/c", env).expect_err("no credentials"));
        assert!(error.contains("sas_token") && !error.contains("hush"), "{error}");
    }

    #[test]
    fn a_mirror_is_let_in_as_its_source_where_they_are_alike() {
        let args = Args { secret: Some("s".into()), anonymous: true, ..Args::default() };
        let (none, own) = (None, Some("own".to_owned()));
        let of = |secret, source: Option<&str>| {
            let uri = uri("s3://m");
            let mirror = Own { uri: &uri, endpoint: &none, region: &none, credentials: &None, secret };
            args.of_mirror(&mirror, source.map(self::uri).as_ref()).secret
        };
        assert_eq!(of(&none, Some("s3://b")).as_deref(), Some("s"));
        assert_eq!(of(&none, None).as_deref(), Some("s"));
        assert_eq!(of(&none, Some("hf://o/r")), None);
        assert_eq!(of(&own, Some("s3://b")).as_deref(), Some("own"));
    }
}
