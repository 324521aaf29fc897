//! Credentials: gathered here and nowhere else, from the environment, a file and flags. They travel to the daemon in the
//! body of one request; no secret is ever an argument.

mod azure;
mod environment;
mod google;
mod hub;
mod s3;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bdnfs::source::{Access, AzureAccess, GcsAccess, S3Access, Uri};

use self::environment::Environment;

/// The variables that hold credentials: a daemon is started without them, since its mounts bring their own.
pub const SECRET_VARIABLES: [&str; 16] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
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
    /// File with credentials as JSON, as the source's cloud has them; without it the environment's are used
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
    /// Send no credentials: public buckets and repositories
    #[arg(long, conflicts_with = "credentials")]
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
        self.collect(uri, |name| std::env::var(name).ok())
    }

    /// The same for a mirror, which may lie elsewhere. Whoever reads a source as nobody writes its mirror as somebody.
    pub fn of_mirror(
        &self,
        endpoint: &Option<String>,
        region: &Option<String>,
        file: &Option<PathBuf>,
    ) -> Self {
        Self {
            endpoint: endpoint.clone().or(self.endpoint.clone()),
            region: region.clone().or(self.region.clone()),
            credentials: file.clone().or(self.credentials.clone()),
            anonymous: false,
            requester_pays: false,
            ..self.clone()
        }
    }

    /// Puts together what `uri` may need: what a flag says goes before the file, and the file before the environment.
    pub fn collect(&self, uri: &Uri, env: impl Fn(&str) -> Option<String>) -> Result<Access> {
        let env = Environment(&env);
        let http =
            env.first(&[ALLOW_HTTP]).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1");
        let mut access = Access {
            allow_http: self.allow_http || http,
            authorities: self.ca_file.as_deref().map(read).transpose()?,
            requester_pays: self.requester_pays,
            virtual_host: self.bucket_style.map(|style| style == BucketStyle::VirtualHost),
            escape: self.bad_names == BadNames::Escape,
            ..Access::default()
        };
        match uri {
            Uri::S3 { .. } => {
                access.s3 = Some(self.s3(&env, &s3::AWS)?);
                access.aws = Some(s3::machine(&env));
            }
            Uri::R2 { .. } => access.r2 = Some(self.s3(&env, &s3::R2)?),
            Uri::Cw { .. } => access.cw = Some(self.s3(&env, &s3::CW)?),
            Uri::Gs { .. } => access.gcs = Some(self.google(&env)?),
            Uri::Azure { .. } => access.azure = Some(self.azure(&env)?),
            Uri::Hf { .. } => access.hub = Some(hub::access(self.anonymous, env.0)?),
            Uri::File(_) | Uri::Http(_) => {}
        }
        Ok(access)
    }

    fn s3(&self, env: &Environment, names: &s3::Names) -> Result<S3Access> {
        let mut s3 = s3::key(env, names);
        if let Some(path) = &self.credentials {
            let file = S3Access::from_json(&read(path)?).with_context(|| shown(path))?;
            // Key and token belong together: one of the environment's never completes the file's.
            s3 = S3Access {
                region: file.region.or(s3.region),
                endpoint: file.endpoint.or(s3.endpoint),
                ..file
            };
        }
        if self.anonymous {
            s3 =
                S3Access { anonymous: true, region: s3.region, endpoint: s3.endpoint, ..S3Access::default() };
        }
        s3.region = self.region.clone().or(s3.region);
        s3.endpoint = self.endpoint.clone().or(s3.endpoint);
        Ok(s3)
    }

    fn google(&self, env: &Environment) -> Result<GcsAccess> {
        let mut gcs = google::gather(env, self.credentials.as_deref())?;
        if self.anonymous {
            let GcsAccess { endpoint, project, .. } = gcs;
            gcs = GcsAccess { anonymous: true, endpoint, project, ..GcsAccess::default() };
        }
        gcs.endpoint = self.endpoint.clone().or(gcs.endpoint);
        Ok(gcs)
    }

    fn azure(&self, env: &Environment) -> Result<AzureAccess> {
        let mut azure = azure::gather(env, self.credentials.as_deref())?;
        if self.anonymous {
            azure = AzureAccess { anonymous: true, endpoint: azure.endpoint, ..AzureAccess::default() };
        }
        azure.endpoint = self.endpoint.clone().or(azure.endpoint);
        Ok(azure)
    }
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

    fn s3(args: &Args) -> S3Access {
        args.collect(&uri("s3://b"), env).expect("valid").s3.expect("set")
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
        let access = Args::default().collect(&uri("s3://b"), env).expect("valid");
        let s3 = access.s3.expect("set");
        assert_eq!(s3.access_key_id.as_deref(), Some("env-id"));
        assert_eq!(s3.session_token.as_ref().map(Secret::expose), Some("env-token"));
        assert_eq!(s3.region.as_deref(), Some("env-region"));
        assert_eq!(s3.endpoint.as_deref(), Some("http://env"));
        assert!(access.allow_http);
        assert_eq!(Args::default().collect(&uri("/x"), |_| None).expect("valid"), Access::default());
    }

    #[test]
    fn a_file_goes_before_the_environment_and_a_flag_before_both() {
        let mut file = tempfile::NamedTempFile::new().expect("file");
        write!(
            file,
            r#"{{"aws_access_key_id": "id", "aws_secret_access_key": "secret", "aws_region": "file-region"}}"#
        )
        .expect("written");
        let args = Args {
            credentials: Some(file.path().to_owned()),
            endpoint: Some("http://flag".to_owned()),
            region: Some("flag-region".to_owned()),
            ..Args::default()
        };
        let s3 = s3(&args);
        assert_eq!(s3.secret_access_key.as_ref().map(Secret::expose), Some("secret"));
        assert_eq!(s3.session_token, None, "the environment's token belongs to another key");
        assert_eq!(
            (s3.region.as_deref(), s3.endpoint.as_deref()),
            (Some("flag-region"), Some("http://flag"))
        );
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
        assert!(
            format!("{:#}", args.collect(&uri("s3://b"), env).expect_err("missing")).contains("/missing")
        );
    }

    #[test]
    fn a_source_of_the_hub_brings_the_hubs_token_and_no_other_does() {
        let env = |name: &str| (name == "HF_TOKEN").then(|| "hf_x".to_owned());
        let hub = uri("hf://owner/name");
        let token = Args::default().collect(&hub, env).expect("valid").hub.and_then(|hub| hub.token);
        assert_eq!(token.as_ref().map(Secret::expose), Some("hf_x"));
        assert_eq!(Args::default().collect(&uri("s3://b"), env).expect("valid").hub, None);
    }

    #[test]
    fn another_service_gets_its_own_key_or_else_that_of_all_s3_tools() {
        let r2 = Args::default().collect(&uri("r2://a.b"), env).expect("valid").r2.expect("set");
        assert_eq!((r2.access_key_id.as_deref(), r2.endpoint, r2.region), (Some("env-id"), None, None));
        let own = |name: &str| match name {
            "CW_ACCESS_KEY_ID" => Some("cw-id".to_owned()),
            "CW_REGION" => Some("US-WEST-01A".to_owned()),
            _ => env(name),
        };
        let cw = Args::default().collect(&uri("cw://b"), own).expect("valid").cw.expect("set");
        assert_eq!((cw.access_key_id.as_deref(), cw.secret_access_key), (Some("cw-id"), None));
        assert_eq!((cw.region.as_deref(), cw.endpoint), (Some("US-WEST-01A"), None));
    }

    #[test]
    fn googles_credentials_are_a_key_or_a_path() {
        let mut file = tempfile::NamedTempFile::new().expect("file");
        write!(file, r#"{{"type": "service_account", "private_key": "hush"}}"#).expect("written");
        let path = file.path().display().to_string();
        let gcs = |name: &'static str, value: &str| {
            let env = |asked: &str| (asked == name).then(|| value.to_owned());
            Args::default().collect(&uri("gs://b"), env).expect("valid").gcs.expect("set")
        };
        let key = gcs("GOOGLE_APPLICATION_CREDENTIALS", &path);
        assert!(key.service_account.is_some_and(|key| key.expose().contains("hush")));
        file.as_file().set_len(0).expect("emptied");
        let user = gcs("GOOGLE_APPLICATION_CREDENTIALS", &path);
        assert_eq!((user.service_account, user.application_credentials), (None, Some(file.path().into())));
        let emulator = gcs("STORAGE_EMULATOR_HOST", "localhost:9023");
        assert_eq!((emulator.endpoint.as_deref(), emulator.anonymous), (Some("http://localhost:9023"), true));
    }

    #[test]
    fn azures_credentials_are_read_from_a_file_whole() {
        let mut file = tempfile::NamedTempFile::new().expect("file");
        write!(file, r#"{{"sas_token": "sv=1&sig=hush"}}"#).expect("written");
        let args = Args { credentials: Some(file.path().to_owned()), ..Args::default() };
        let env = |name: &str| (name == "AZURE_STORAGE_KEY").then(|| "other".to_owned());
        let azure = args.collect(&uri("azure://a/c"), env).expect("valid").azure.expect("set");
        assert_eq!((azure.account_key, azure.sas), (None, Some(Secret::new("sv=1&sig=hush"))));
        write!(file, "hush").expect("written");
        let error = format!("{:#}", args.collect(&uri("azure://a/c"), env).expect_err("no JSON"));
        assert!(error.contains("sas_token") && !error.contains("hush"), "{error}");
    }
}
