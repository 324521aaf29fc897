//! Credentials of Google's and Azure's by name, with the token services that they are shown to.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use serde_json::json;
use tempfile::TempDir;

use super::failed;
use super::test_server::OriginServer;
use crate::auth::KeyCache;
use crate::error::{Kind, Result};
use crate::http_client::HttpClient;
use crate::origin::object_storage::BucketOrigin;
use crate::source::{Access, AuthMethod, AwsAmbient, AwsProfile, AzureAccess, GcsAccess, SecretStore, Uri};
use crate::tier::conformance::pinned;
use crate::tier::{Tier, Urgency};

/// Access to a server by a secret that lies in a directory.
struct Named {
    server: Arc<OriginServer>,
    directory: TempDir,
}

impl Named {
    async fn new() -> Self {
        let server = OriginServer::start().await;
        server.put("b/model/x", "weights");
        Self { server, directory: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn access(&self, secret: &str) -> Access {
        std::fs::write(self.path("s"), secret).expect("written");
        let url = Some(self.server.url.clone());
        Access {
            auth: Some(AuthMethod::Secret { auth_secret_name: "s".into() }),
            secrets: vec![SecretStore::Directory(self.directory.path().to_owned())],
            gcs: Some(GcsAccess { endpoint: url.clone(), ..GcsAccess::default() }),
            azure: Some(AzureAccess { authority: url.clone(), endpoint: url, ..AzureAccess::default() }),
            ..Access::default()
        }
    }
}

async fn open(uri: &str, access: &Access) -> Result<BucketOrigin> {
    BucketOrigin::open(&uri.parse::<Uri>().expect(uri), access).await
}

fn refused() -> Response {
    (StatusCode::UNAUTHORIZED, "{\"error\": {\"code\": 401, \"status\": \"UNAUTHENTICATED\"}}")
        .into_response()
}

fn bearer(request: &axum::extract::Request) -> Option<&str> {
    request.headers().get("authorization")?.to_str().ok()?.strip_prefix("Bearer ")
}

/// Answers as Google's token services do: with `sts`, and for that with the token of a number that grows. Only the last
/// token opens the storage.
fn google(server: &OriginServer, issued: Arc<AtomicUsize>, good: Arc<AtomicUsize>) {
    server.rule(move |request| match request.uri().path() {
        "/v1/token" => Some(json!({ "access_token": "sts", "expires_in": 3600 }).to_string().into_response()),
        "/v1/projects/-/serviceAccounts/a@b:generateAccessToken" if bearer(request) == Some("sts") => {
            let number = issued.fetch_add(1, Ordering::Relaxed) + 1;
            let token = json!({ "accessToken": format!("t{number}"), "expireTime": "2096-01-02T03:04:05Z" });
            Some(token.to_string().into_response())
        }
        path if path.starts_with("/storage/") => {
            let right = format!("t{}", good.load(Ordering::Relaxed));
            (bearer(request) != Some(&right)).then(refused)
        }
        _ => Some(refused()),
    });
}

fn external(server: &OriginServer, file: &Path) -> String {
    let impersonation = format!("{}/v1/projects/-/serviceAccounts/a@b:generateAccessToken", server.url);
    json!({
        "type": "external_account", "audience": "//iam.googleapis.com/projects/1/p", "token_url": format!("{}/v1/token", server.url),
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "service_account_impersonation_url": impersonation,
        "credential_source": { "file": file, "format": { "type": "json", "subject_token_field_name": "id" } },
    })
    .to_string()
}

#[tokio::test]
async fn federated_token_that_is_refused_is_replaced_once_for_all_requests() {
    let named = Named::new().await;
    let (issued, good) = (Arc::<AtomicUsize>::default(), Arc::new(AtomicUsize::new(1)));
    google(&named.server, issued.clone(), good.clone());
    std::fs::write(named.path("token"), r#"{"id": "hush"}"#).expect("written");
    let access = named.access(&external(&named.server, &named.path("token")));
    let origin = open("gs://b/model", &access).await.expect("open");
    let blob = pinned(&origin, "x").await.expect("listed");
    assert_eq!(issued.load(Ordering::Relaxed), 1);
    // A token that was just got is not the reason for a refusal.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    good.store(2, Ordering::Relaxed);
    let read = || async { origin.fetch(&blob, 0..7, Urgency::Read).await.map(|body| body.is_some()) };
    for got in join_all((0..10).map(|_| read())).await {
        assert!(got.expect("with another token"));
    }
    assert_eq!(issued.load(Ordering::Relaxed), 2, "one for all");
    good.store(9, Ordering::Relaxed);
    let error = read().await.expect_err("refused");
    let said = "gs://b/model/x: the server returned 401 Unauthorized, UNAUTHENTICATED; check the secret \"s\", valid until \
                2096-01-02T03:04:05Z";
    assert_eq!((error.kind(), error.to_string()), (Kind::Refused, said.into()));
}

#[tokio::test]
async fn gcp_oidc_impersonates_a_service_account_without_a_secret() {
    let named = Named::new().await;
    google(&named.server, Arc::default(), Arc::new(AtomicUsize::new(1)));
    std::fs::write(named.path("token"), "hush\n").expect("written");
    let mut access = named.access("");
    access.auth = Some(AuthMethod::GcpOidc {
        gcp_oidc_service_account: "a@b".into(),
        gcp_oidc_workload_id_provider: "projects/1/locations/global/workloadIdentityPools/p/providers/x"
            .into(),
    });
    let gcs = access.gcs.as_mut().expect("set");
    (gcs.sts, gcs.iam) = (Some(named.server.url.clone()), Some(named.server.url.clone()));
    let nowhere = open("gs://b/model", &access).await.expect_err("no token");
    let said = "gs://b/model: GCP_OIDC needs this machine's own identity token, and no file of one is named \
                (GOOGLE_WEB_IDENTITY_TOKEN_FILE, or GOOGLE_APPLICATION_CREDENTIALS of the type external_account)";
    assert_eq!(nowhere.to_string(), said);
    access.gcs.as_mut().expect("set").token_file = Some(named.path("token"));
    pinned(&open("gs://b/model", &access).await.expect("open"), "x").await.expect("listed");

    named.server.rule(|_| {
        let body = r#"{"error": "invalid_grant", "error_description": "hush"}"#;
        Some((StatusCode::BAD_REQUEST, body).into_response())
    });
    let error = open("gs://b/model", &access).await.expect_err("refused");
    let said = format!(
        "gs://b/model: 127.0.0.1 gives no token for //iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/\
         p/providers/x: the server returned 400 Bad Request, invalid_grant; check the identity token in {}",
        named.path("token").display()
    );
    assert_eq!((error.kind(), error.to_string()), (Kind::Refused, said));
}

#[tokio::test]
async fn azure_credentials_of_each_kind_authorize_requests() {
    let named = Named::new().await;
    named.server.rule(|request| {
        if request.uri().path() == "/tenant/oauth2/v2.0/token" {
            return Some(json!({ "access_token": "entra", "expires_in": 3600 }).to_string().into_response());
        }
        let signed = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let key = signed.is_some_and(|value| value.starts_with("SharedKey account:"));
        let signature = request.uri().query().is_some_and(|query| query.contains("sig=hu%2Fsh"));
        (!key && !signature && bearer(request) != Some("entra")).then(refused)
    });
    for secret in [
        "aHVzaA==",
        r#"{"account_key": "aHVzaA=="}"#,
        "?sv=2023-11-03&se=2096-01-02&sig=hu%2Fsh",
        r#"{"tenant_id": "tenant", "client_id": "c", "client_secret": "hush"}"#,
    ] {
        let origin = open("azure://account/b/model", &named.access(secret)).await.expect(secret);
        let blob = pinned(&origin, "x").await.expect(secret);
        assert!(origin.fetch(&blob, 0..7, Urgency::Read).await.expect(secret).is_some());
    }
    let expired = "sv=1&se=2001-01-02&sig=other";
    let error = failed(&open("azure://account/b/model", &named.access(expired)).await.expect("open")).await;
    let listing = format!("azure://account/b/model: cannot list {}/b: ", named.server.url);
    let said = "the server returned 401 Unauthorized, UNAUTHENTICATED; the secret \"s\" expired at 2001-01-02T00:00:00Z; renew it";
    assert_eq!(error.to_string(), listing + said);
}

#[tokio::test]
async fn azure_federated_token_in_a_file_is_exchanged_for_one_of_entra_id() {
    let named = Named::new().await;
    named.server.rule(|request| match request.uri().path() {
        "/tenant/oauth2/v2.0/token" => {
            Some(json!({ "access_token": "entra", "expires_in": 3600 }).to_string().into_response())
        }
        _ => (bearer(request) != Some("entra")).then(refused),
    });
    std::fs::write(named.path("token"), "hush\n").expect("written");
    let mut access = Access { auth: None, ..named.access("") };
    let azure = access.azure.as_mut().expect("set");
    azure.federated_token_file = Some(named.path("token"));
    (azure.tenant_id, azure.client_id) = (Some("tenant".into()), Some("client".into()));
    pinned(&open("azure://account/b/model", &access).await.expect("open"), "x").await.expect("listed");

    named.server.rule(|_| {
        let body = r#"{"error": "invalid_client", "error_description": "hush", "error_codes": [700213, 1]}"#;
        Some((StatusCode::UNAUTHORIZED, body).into_response())
    });
    let error = open("azure://account/b/model", &access).await.expect_err("refused");
    let said = format!(
        "azure://account/b/model: 127.0.0.1 gives no token for client of tenant: the server returned 401 Unauthorized, \
         invalid_client (AADSTS700213); check the identity token in {}",
        named.path("token").display()
    );
    assert_eq!((error.kind(), error.to_string()), (Kind::Refused, said));
}

#[tokio::test]
async fn base_key_of_a_role_that_was_replaced_in_its_file_is_read_again() {
    let server = OriginServer::start().await;
    server.rule(|request| {
        let signed = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        if !signed.is_some_and(|value| value.contains("Credential=key2/")) {
            let body = "<ErrorResponse><Error><Code>ExpiredToken</Code></Error></ErrorResponse>";
            return Some((StatusCode::FORBIDDEN, body).into_response());
        }
        let key = "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>role</AccessKeyId>\
                   <SecretAccessKey>hush</SecretAccessKey><SessionToken>hush</SessionToken>\
                   <Expiration>2096-01-02T03:04:05Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>";
        Some(key.into_response())
    });
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: String| {
        std::fs::write(directory.path().join(name), text).expect("written");
        Some(directory.path().join(name))
    };
    let base = |id| {
        format!("[base]\naws_access_key_id = {id}\naws_secret_access_key = hush\naws_session_token = t\n")
    };
    let profile = AwsProfile {
        name: None,
        credentials: write("credentials", base("key1")),
        config: write("config", "[default]\nrole_arn = arn:r\nsource_profile = base\n".into()),
    };
    let (sts, profile) = (Some(server.url.clone()), Some(profile));
    let access =
        Access { aws: Some(AwsAmbient { sts, profile, ..AwsAmbient::default() }), ..Access::default() };
    let client = HttpClient::new(reqwest::redirect::Policy::none(), None).expect("a client");
    let keys = KeyCache::lazy(&"s3://b".parse().expect("a URI"), &access, &client);
    let error = keys.get().await.expect_err("an expired key");
    assert!(error.to_string().contains("cannot assume the role arn:r"), "{error}");
    write("credentials", base("key2"));
    keys.get().await.expect("the key that is there now");
}

#[tokio::test]
async fn sts_answer_that_is_malformed_is_refused_without_showing_it() {
    let named = Named::new().await;
    std::fs::write(named.path("token"), "hush\n").expect("written");
    let (sts, token_file) = (Some(named.server.url.clone()), Some(named.path("token")));
    let auth = AuthMethod::AwsOidc { aws_oidc_role_arn: "arn:r".into(), aws_oidc_region: "us-east-1".into() };
    let aws = Some(AwsAmbient { sts, token_file, ..AwsAmbient::default() });
    let access = Access { auth: Some(auth), aws, ..Access::default() };
    let answer = |more: &str| {
        format!(
            "<AssumeRoleWithWebIdentityResponse>{more}<AssumeRoleWithWebIdentityResult><Credentials>\
             <AccessKeyId>id</AccessKeyId><SecretAccessKey>hush</SecretAccessKey><SessionToken>hush</SessionToken>\
             <Expiration>2096-01-02T03:04:05Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\
             </AssumeRoleWithWebIdentityResponse>"
        )
    };
    let (whole, deep) = (answer(""), format!("{}{}", "<a>".repeat(100), "</a>".repeat(100)));
    named.server.rule(move |_| Some(whole.clone().into_response()));
    open("s3://b/model", &access).await.expect("a key");
    for text in ["<html>hush</html>".into(), answer(&deep), answer("<a>hush")] {
        named.server.rule(move |_| Some(text.clone().into_response()));
        let error = open("s3://b/model", &access).await.expect_err("no key");
        let said = format!(
            "s3://b/model: cannot assume the role arn:r at {}: the response is not one of AWS STS; check the \
             endpoint; check the web identity token in {}",
            named.server.url,
            named.path("token").display()
        );
        assert_eq!((error.kind(), error.to_string()), (Kind::Refused, said));
    }
}

#[tokio::test]
async fn token_answer_of_another_form_is_refused_without_showing_it() {
    let named = Named::new().await;
    let application = named.access(r#"{"tenant_id": "tenant", "client_id": "c", "client_secret": "secret"}"#);
    std::fs::write(named.path("token"), "token").expect("written");
    let pod = Some((format!("{}/pod", named.server.url), named.path("token")));
    let aws = Some(AwsAmbient { pod, ..AwsAmbient::default() });
    let machine = Access { aws, ..Access::default() };
    for answer in [
        r#""hush""#,
        r#"{"access_token": {"hush": 1}, "expires_in": 1}"#,
        r#"{"access_token": "x", "expires_in": "hush"}"#,
        r#"{"AccessKeyId": "x", "SecretAccessKey": "x", "Token": "x", "Expiration": "hush"}"#,
    ] {
        named.server.rule(move |_| Some(answer.into_response()));
        for (uri, access) in [("azure://account/b/model", &application), ("s3://b/model", &machine)] {
            let error = open(uri, access).await.expect_err("no key");
            let said = "cannot get the credentials: the service's response is not what was asked for: it is not the \
                        expected JSON (line 1, column ";
            let text = format!("{error} {error:?}");
            assert!(text.contains(said) && !text.contains("hush"), "{text}");
        }
    }
}
