//! Credentials: as people write them, and as token services answer. Nothing that a message says is of a secret.

use std::fs;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bdnfs::auth::load;
use bdnfs::error::{Error, Kind};
use bdnfs::origin;
use bdnfs::source::{Access, AwsAmbient, AzureAccess, Credentials, GcsAccess, S3Access, Secret, SecretStore};

use crate::server::AnswerServer;
use crate::services::{block_on, serve};

/// What stands in the inputs for a secret.
const PLANTED: &str = "hush";

/// A secret, below the scheme that it is for.
pub(crate) fn secret(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (scheme, secret) = text.split_once('\n').unwrap_or_default();
    if scheme.contains(PLANTED) {
        return;
    }
    if let Err(error) = Credentials::parse(scheme, &Secret::new(secret)) {
        check(&error);
    }
}

/// A file of secrets, in TOML.
pub(crate) fn secrets(bytes: &[u8]) {
    static FILE: LazyLock<PathBuf> = LazyLock::new(scratch);
    fs::write(&*FILE, bytes).expect("written");
    match load::find_secret(&[SecretStore::File(FILE.clone())], "name") {
        Ok(secret) => assert!(!format!("{secret:?}").contains(PLANTED)),
        Err(error) => check(&error),
    }
}

/// A message is one line and has no secret in it.
fn check(error: &Error) {
    let text = format!("{error} {error:?}");
    assert!(!text.contains(PLANTED) && !error.to_string().contains('\n'), "{text}");
}

/// The path of a file of this process, which only its owner may read. It has no name, and so is gone with the process.
fn scratch() -> PathBuf {
    let file = tempfile::tempfile().expect("a file");
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.into_raw_fd()));
    fs::write(&path, PLANTED).expect("written");
    path
}

/// A token service on loopback, and what gets its key there.
struct TokenService {
    server: AnswerServer,
    uri: &'static str,
    access: Access,
}

impl TokenService {
    fn start(uri: &'static str, access: impl Fn(String, &Path) -> Access) -> Self {
        let server = AnswerServer::start(serve);
        let access = access(format!("http://{}", server.address), &scratch());
        Self { server, uri, access }
    }

    /// Gets a key. One that is got can be put into a request.
    fn ask(&self, answer: &[u8]) {
        let _turn = self.server.answer_with(answer);
        let opened = block_on(origin::open(&self.uri.parse().expect("a URI"), &self.access));
        if let Err(error) = opened {
            let expected = [Kind::Refused, Kind::Invalid, Kind::Unavailable, Kind::Unsupported];
            assert!(expected.contains(&error.kind()), "{error}");
            check(&error);
        }
    }
}

/// The answer of AWS's token service.
pub(crate) fn aws_token(bytes: &[u8]) {
    static SERVICE: LazyLock<TokenService> = LazyLock::new(|| {
        TokenService::start("s3://bucket", |url, file| {
            let (token_file, role) = (Some(file.to_owned()), Some("arn:aws:iam::1:role/r".to_owned()));
            let aws = AwsAmbient { token_file, role, sts: Some(url.clone()), ..AwsAmbient::default() };
            let (region, endpoint) = (Some("us-east-1".to_owned()), Some(url));
            let s3 = S3Access { region, endpoint, ..S3Access::default() };
            Access { aws: Some(aws), s3: Some(s3), ..Access::default() }
        })
    });
    SERVICE.ask(bytes);
}

/// The answer of Google's token services, to a federated identity.
pub(crate) fn google_token(bytes: &[u8]) {
    static SERVICE: LazyLock<TokenService> = LazyLock::new(|| {
        TokenService::start("gs://bucket", |url, file| {
            let account = format!(
                r#"{{"type": "external_account", "audience": "a", "token_url": "{url}", "subject_token_type": "t",
                "service_account_impersonation_url": "{url}", "credential_source": {{"file": "{}"}}}}"#,
                file.display()
            );
            let credentials = scratch();
            fs::write(&credentials, account).expect("written");
            let gcs = GcsAccess { endpoint: Some(url), ..GcsAccess::default() };
            Access { credentials: Some(credentials), gcs: Some(gcs), ..Access::default() }
        })
    });
    SERVICE.ask(bytes);
}

/// The answer of Entra ID.
pub(crate) fn azure_token(bytes: &[u8]) {
    static SERVICE: LazyLock<TokenService> = LazyLock::new(|| {
        TokenService::start("azure://account/container", |url, _| {
            let azure = AzureAccess {
                tenant_id: Some("t".to_owned()),
                client_id: Some("c".to_owned()),
                client_secret: Some(Secret::new(PLANTED)),
                authority: Some(url.clone()),
                endpoint: Some(url),
                ..AzureAccess::default()
            };
            Access { azure: Some(azure), ..Access::default() }
        })
    });
    SERVICE.ask(bytes);
}
