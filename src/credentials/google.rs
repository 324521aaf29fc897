//! Tokens for Google Cloud Storage: of a service account's key, a user, another identity (workload identity federation),
//! or the machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Method, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::{Url, form_urlencoded};

use super::connector::{Service, no_credentials, retry};
use super::issue::{Found, Got, How, Source, told};
use super::{Key, machine, shown};
use crate::client::{self, Client};
use crate::error::{Error, Kind, Result};
use crate::secrets;
use crate::source::{Access, Credentials, External, Gcp, GcsAccess, Secret, Subject, endpoint};
use crate::task::blocking;

/// Google's STS (<https://cloud.google.com/iam/docs/reference/sts/rest/v1/TopLevel/token>).
const STS: &str = "https://sts.googleapis.com";
/// What issues tokens of service accounts (<https://cloud.google.com/iam/docs/reference/credentials/rest>).
const IAM: &str = "https://iamcredentials.googleapis.com";
/// What gives tokens to users who signed in (<https://developers.google.com/identity/protocols/oauth2>).
const USERS: &str = "https://oauth2.googleapis.com/token";
/// What a token is to open. The storage decides by the account's rights, as it does for Google's own tools.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// What a machine's own token is, where nobody says otherwise.
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";
/// The largest answer that is read, in bytes.
const LARGEST: usize = 1 << 20;

/// What is named.
pub(super) async fn open(gcp: &Gcp, access: &Access, client: &Client) -> Result<Arc<dyn Source>> {
    Ok(match gcp {
        Gcp::Key(key) => {
            let wrong = "the key of the service account is not what Google gives out: JSON with \"client_email\", \
                         \"private_key\" and \"private_key_id\"";
            let builder = GoogleCloudStorageBuilder::new().with_service_account_key(key.expose());
            kept(builder, client, wrong).await?
        }
        Gcp::User { client_id, client_secret, refresh_token } => Arc::new(User {
            client_id: client_id.clone(),
            client_secret: client_secret.clone(),
            refresh_token: refresh_token.clone(),
            client: client.clone(),
        }),
        Gcp::External(external) => federated(external.clone(), access, client)?,
        Gcp::Workload { service_account, provider } => {
            federated(workload(service_account, provider, access).await?, access, client)?
        }
    })
}

/// What was given, else what the machine has.
pub(super) async fn ambient(access: &Access, client: &Client) -> Result<Arc<dyn Source>> {
    let given = access.gcs.clone().unwrap_or_default();
    if given.anonymous {
        return Ok(Arc::new(Found(Got::found(Key::Nobody, None))));
    }
    if let Some(key) = given.service_account {
        return open(&Gcp::Key(key), access, client).await;
    }
    if let Some(file) = given.application_credentials {
        return open(&read(file).await?, access, client).await;
    }
    machine::probe(client, machine::METADATA).await.map_err(|why| {
        let text = format!(
            "there are no credentials for it: no service account and no application default credentials are given, and \
             this machine has no metadata service ({why}); give the key of a service account, or ask for anonymous access"
        );
        Error::new(Kind::Refused, text)
    })?;
    // A file that it would look for has been looked for.
    let builder = GoogleCloudStorageBuilder::new();
    kept(builder, client, "this machine's Google credentials can't be used").await
}

/// Application default credentials.
async fn read(file: PathBuf) -> Result<Gcp> {
    let outer = format!("the application default credentials in {} can't be used", file.display());
    let read = blocking(move || Credentials::parse("gs", &secrets::read(&file)?)).await;
    match read.map_err(|e| e.within(outer))? {
        Credentials::Gcp(gcp) => Ok(gcp),
        _ => Err(super::foreign()),
    }
}

/// What `object_store` gets by itself. What is at fault is never quoted: it may be the key.
async fn kept(builder: GoogleCloudStorageBuilder, client: &Client, wrong: &str) -> Result<Arc<dyn Source>> {
    let builder = builder.with_bucket_name("none").with_retry(retry());
    let builder = builder.with_http_connector(Service(client.clone()));
    // It reads files.
    match blocking(|| Ok(builder.build())).await? {
        Ok(store) => Ok(Arc::new(Kept(store.credentials().clone()))),
        Err(_) => Err(Error::new(Kind::Invalid, wrong)),
    }
}

/// Tokens that `object_store` gets and keeps.
struct Kept(GcpCredentialProvider);

#[async_trait]
impl Source for Kept {
    async fn key(&self) -> Result<Got> {
        let credential = self.0.get_credential().await.map_err(no_credentials)?;
        let token = Secret::new(&credential.bearer);
        let key = if credential.bearer.is_empty() { Key::Nobody } else { Key::Bearer(token) };
        Ok(Got { key, expiry: None, how: How::Kept })
    }
}

/// A user who signed in.
struct User {
    client_id: String,
    client_secret: Secret,
    refresh_token: Secret,
    client: Client,
}

#[async_trait]
impl Source for User {
    async fn key(&self) -> Result<Got> {
        let form = [
            ("grant_type", "refresh_token"),
            ("client_id", &self.client_id),
            ("client_secret", self.client_secret.expose()),
            ("refresh_token", self.refresh_token.expose()),
        ];
        let token: Token = ask(&self.client, form_request(USERS, &form)?).await.map_err(|e| {
            e.within("Google gives the user no token")
                .advise("sign in again: gcloud auth application-default login")
        })?;
        token.got()
    }
}

/// The configuration that a service account and a provider stand for. Where this machine's own token is, was given, or
/// its application default credentials say.
async fn workload(account: &str, provider: &str, access: &Access) -> Result<External> {
    let given = access.gcs.clone().unwrap_or_default();
    let GcsAccess { token_file, application_credentials, sts, iam, .. } = given;
    let (subject, field, token_type) = match (token_file, application_credentials) {
        (Some(file), _) => (Subject::File(file), None, JWT.to_owned()),
        (None, Some(file)) => match read(file).await? {
            Gcp::External(known) => (known.subject, known.field, known.token_type),
            _ => return Err(no_token()),
        },
        (None, None) => return Err(no_token()),
    };
    let (sts, iam) = (sts.as_deref().unwrap_or(STS), iam.as_deref().unwrap_or(IAM));
    let provider = provider.trim_start_matches("//iam.googleapis.com/").trim_matches('/');
    Ok(External {
        audience: format!("//iam.googleapis.com/{provider}"),
        token_type,
        token_url: format!("{}/v1/token", sts.trim_end_matches('/')),
        impersonation: Some(format!(
            "{}/v1/projects/-/serviceAccounts/{account}:generateAccessToken",
            iam.trim_end_matches('/')
        )),
        subject,
        field,
    })
}

fn no_token() -> Error {
    let text = "GCP_OIDC shows this machine's own identity token, and no file of one is named \
                (GOOGLE_WEB_IDENTITY_TOKEN_FILE, or GOOGLE_APPLICATION_CREDENTIALS of the type external_account)";
    Error::new(Kind::Refused, text)
}

fn federated(external: External, access: &Access, client: &Client) -> Result<Arc<dyn Source>> {
    let checked =
        |text: &str| endpoint(text, access.allow_http).map_err(|e| e.within("Google's token service"));
    checked(&external.token_url)?;
    external.impersonation.as_deref().map(checked).transpose()?;
    Ok(Arc::new(Federated { external, client: client.clone() }))
}

/// An identity of this machine that is taken for one of Google's.
struct Federated {
    external: External,
    client: Client,
}

#[async_trait]
impl Source for Federated {
    async fn key(&self) -> Result<Got> {
        let External { audience, token_type, token_url, impersonation, .. } = &self.external;
        let (subject, place) = self.subject().await?;
        let form = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("audience", audience),
            ("scope", SCOPE),
            ("subject_token_type", token_type),
            ("subject_token", subject.expose()),
        ];
        let token: Token = ask(&self.client, form_request(token_url, &form)?).await.map_err(|e| {
            let end = told(&subject).map_or(String::new(), |end| format!(" (good until {})", shown(end)));
            let outer = format!("{} gives no token for {audience}", host(token_url));
            e.within(outer).advise(format!("check the identity token in {place}{end}"))
        })?;
        let got = token.got()?;
        match impersonation {
            Some(url) => self.impersonate(url, &got.key).await,
            None => Ok(got),
        }
    }
}

impl Federated {
    /// The machine's own token, and where it is.
    async fn subject(&self) -> Result<(Secret, String)> {
        let (text, place) = match &self.external.subject {
            Subject::File(path) => {
                let file = path.clone();
                (blocking(move || secrets::read(&file)).await?, path.display().to_string())
            }
            Subject::Url { url, headers } => {
                let mut request = Request::new(Method::GET, address(url)?);
                for (name, value) in headers {
                    let invalid = |_| Error::new(Kind::Invalid, format!("{name:?} can't be a header"));
                    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid(()))?;
                    let mut value = HeaderValue::from_str(value.expose()).map_err(|_| {
                        Error::new(Kind::Invalid, format!("the value of the header {name} can't be sent"))
                    })?;
                    value.set_sensitive(true);
                    request.headers_mut().insert(name, value);
                }
                let answer = self.client.send(request).await;
                let answer = answer.map_err(|e| e.within(format!("the identity token at {}", host(url))))?;
                let text = client::read(answer, LARGEST).await?;
                (Secret::new(String::from_utf8_lossy(&text)), host(url))
            }
        };
        let Some(field) = &self.external.field else { return Ok((Secret::new(text.expose().trim()), place)) };
        let value: Option<Value> = serde_json::from_str(text.expose()).ok();
        match value.as_ref().and_then(|value| value.get(field)).and_then(Value::as_str) {
            Some(token) => Ok((Secret::new(token), place)),
            None => {
                let text = format!("the identity token in {place} is no JSON with a text under {field:?}");
                Err(Error::new(Kind::Refused, text))
            }
        }
    }

    /// A token of the service account, for which the machine's is shown.
    async fn impersonate(&self, url: &str, key: &Key) -> Result<Got> {
        let mut request = Request::new(Method::POST, address(url)?);
        if let Some(value) = key.authorization()? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *request.body_mut() = Some(json!({ "scope": [SCOPE] }).to_string().into());
        let account = url.rsplit('/').next().unwrap_or_default().split(':').next().unwrap_or_default();
        let issued: Impersonated = ask(&self.client, request)
            .await
            .map_err(|e| e.within(format!("{} gives no token of {account}", host(url))))?;
        let key = Key::Bearer(issued.access_token);
        key.authorization()?;
        Ok(Got { key, expiry: Some(issued.expire_time.into()), how: How::Asked })
    }
}

/// A token as OAuth has it.
#[derive(Deserialize)]
struct Token {
    access_token: Secret,
    expires_in: Option<u64>,
}

impl Token {
    fn got(self) -> Result<Got> {
        let key = Key::Bearer(self.access_token);
        key.authorization()?;
        let expiry =
            self.expires_in.map(|seconds| SystemTime::now() + Duration::from_secs(seconds.min(86_400)));
        Ok(Got { key, expiry, how: How::Asked })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Impersonated {
    access_token: Secret,
    expire_time: DateTime<Utc>,
}

fn form_request(url: &str, form: &[(&str, &str)]) -> Result<Request> {
    let mut request = Request::new(Method::POST, address(url)?);
    let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
    request.headers_mut().insert(CONTENT_TYPE, kind);
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
    *request.body_mut() = Some(body.into());
    Ok(request)
}

/// What a token service answers. What it refuses is a refusal, whatever its status.
async fn ask<T: DeserializeOwned>(client: &Client, request: Request) -> Result<T> {
    let answer = client.send(request).await.map_err(|error| match error.kind() {
        Kind::Unavailable | Kind::Timeout | Kind::Refused => error,
        _ => Error::new(Kind::Refused, error.to_string()),
    })?;
    let text = client::read(answer, LARGEST).await?;
    // The parser's own message may quote what it read.
    serde_json::from_slice(&text)
        .map_err(|_| Error::new(Kind::Unsupported, "the answer is none of a token service"))
}

fn address(url: &str) -> Result<Url> {
    Url::parse(url).map_err(|_| Error::new(Kind::Invalid, "the token service's URL is none"))
}

/// Whose URL it is; the rest of it may be secret.
fn host(url: &str) -> String {
    Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
}
