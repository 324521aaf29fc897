//! Tokens of Google for a user who signed in (OAuth), and tokens of Google and of Entra ID for another identity, which they take for
//! one of their own (workload identity federation).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::azure::AzureCredential;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Method, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::{Url, form_urlencoded};

use super::key_expiry::jwt_expiry_remark;
use super::{KeyProvider, MAX_TOKEN_RESPONSE_BYTES, ResolvedKey, as_refusal};
use crate::auth::{AuthKey, load};
use crate::backoff::{self, Backoff};
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient};
use crate::source::{ExternalAccount, Secret, SubjectToken};
use crate::task::blocking;

/// Gives tokens to users who signed in (<https://developers.google.com/identity/protocols/oauth2>).
const USER_TOKEN_URL: &str = "https://oauth2.googleapis.com/token";
/// The scope of a token. The storage decides by the account's rights, as it does for Google's own tools.
const CLOUD_SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// The scope of a token of Entra ID: all storage accounts, as far as the application's rights go.
const AZURE_STORAGE_SCOPE: &str = "https://storage.azure.com/.default";
/// The type of the token that an application proves its identity with (RFC 7523).
const JWT_ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// The longest that a token is taken to be valid, in seconds: whatever a service claims, it is renewed daily.
const MAX_TOKEN_LIFETIME_SECONDS: u64 = 86_400;

/// How often a token service that is away is asked again, and how long is waited before that: whoever needs the token knows better
/// when to try anew.
const RETRIES: u32 = 2;
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Provides tokens of a user who signed in.
pub(in crate::auth) struct UserTokens {
    pub client_id: String,
    pub client_secret: Secret,
    pub refresh_token: Secret,
    pub client: HttpClient,
}

#[async_trait]
impl KeyProvider for UserTokens {
    async fn key(&self) -> Result<ResolvedKey> {
        let form = [
            ("grant_type", "refresh_token"),
            ("client_id", &self.client_id),
            ("client_secret", self.client_secret.expose()),
            ("refresh_token", self.refresh_token.expose()),
        ];
        let token: OauthToken =
            ask(&self.client, form_request(USER_TOKEN_URL, &form)?).await.map_err(|e| {
                e.context("Google gives the user no token")
                    .advise("sign in again: gcloud auth application-default login")
            })?;
        token.resolved()
    }
}

/// Provides tokens of Google's for another identity.
pub(in crate::auth) struct FederatedTokens {
    pub account: ExternalAccount,
    pub client: HttpClient,
}

#[async_trait]
impl KeyProvider for FederatedTokens {
    async fn key(&self) -> Result<ResolvedKey> {
        let ExternalAccount { audience, token_type, token_url, impersonation, subject, field } =
            &self.account;
        let subject = SubjectTokenText::load(subject, field.as_deref(), &self.client).await?;
        let form = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("audience", audience),
            ("scope", CLOUD_SCOPE),
            ("subject_token_type", token_type),
            ("subject_token", subject.token.expose()),
        ];
        let token: OauthToken = ask(&self.client, form_request(token_url, &form)?).await.map_err(|e| {
            let failed = e.context(format!("{} gives no token for {audience}", host(token_url)));
            advise_refused(failed, || subject.advice("the provider"))
        })?;
        let resolved = token.resolved()?;
        match impersonation {
            Some(url) => self.impersonate(url, &resolved.key).await,
            None => Ok(resolved),
        }
    }
}

impl FederatedTokens {
    /// Gets a token of the service account in exchange for the machine's.
    async fn impersonate(&self, url: &str, key: &AuthKey) -> Result<ResolvedKey> {
        let mut request = Request::new(Method::POST, token_url(url)?);
        if let Some(value) = key.authorization()? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *request.body_mut() = Some(json!({ "scope": [CLOUD_SCOPE] }).to_string().into());
        let account = url.rsplit('/').next().unwrap_or_default().split(':').next().unwrap_or_default();
        let token: ImpersonatedToken = ask(&self.client, request).await.map_err(|e| {
            let failed = e.context(format!("{} gives no token for {account}", host(url)));
            let advice = "grant the federated identity roles/iam.workloadIdentityUser on it";
            advise_refused(failed, || advice.to_owned())
        })?;
        bearer(token.access_token, Some(token.expire_time.into()))
    }
}

/// Provides tokens of Entra ID for another identity, which an application or a managed identity trusts.
/// <https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow>
pub(in crate::auth) struct EntraTokens {
    pub tenant_id: String,
    pub client_id: String,
    pub subject: SubjectToken,
    /// The service's URL, without a slash at its end.
    pub authority: String,
    pub client: HttpClient,
}

#[async_trait]
impl KeyProvider for EntraTokens {
    async fn key(&self) -> Result<ResolvedKey> {
        let Self { tenant_id, client_id, authority, .. } = self;
        let subject = SubjectTokenText::load(&self.subject, None, &self.client).await?;
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", client_id),
            ("client_assertion_type", JWT_ASSERTION_TYPE),
            ("client_assertion", subject.token.expose()),
            ("scope", AZURE_STORAGE_SCOPE),
        ];
        let request = form_request(&format!("{authority}/{tenant_id}/oauth2/v2.0/token"), &form)?;
        let token: OauthToken = ask(&self.client, request).await.map_err(|e| {
            let failed =
                e.context(format!("{} gives no token for {client_id} of {tenant_id}", host(authority)));
            advise_refused(failed, || subject.advice("the application"))
        })?;
        let credential = AzureCredential::BearerToken(token.access_token.expose().to_owned());
        Ok(ResolvedKey { key: AuthKey::Azure(Arc::new(credential)), ..token.resolved()? })
    }
}

/// The token that is exchanged, as it is now.
struct SubjectTokenText {
    token: Secret,
    /// Where it was read; `None`: it came with a request.
    place: Option<String>,
}

impl SubjectTokenText {
    /// Loads the token, which is under the key `field` where it comes as JSON.
    async fn load(subject: &SubjectToken, field: Option<&str>, client: &HttpClient) -> Result<Self> {
        let (text, place) = match subject {
            SubjectToken::Given(token) => return Ok(Self { token: token.clone(), place: None }),
            SubjectToken::File(path) => {
                let file = path.clone();
                (blocking(move || load::secret_file(&file)).await?, path.display().to_string())
            }
            SubjectToken::Url { url, headers } => (token_at(url, headers, client).await?, host(url)),
        };
        let json: Option<Value> = field.and_then(|_| serde_json::from_str(text.expose()).ok());
        let token = match field {
            None => Some(text.expose().trim()),
            Some(field) => json.as_ref().and_then(|value| value.get(field)).and_then(Value::as_str),
        };
        let Some(token) = token.map(Secret::new) else {
            let field = field.unwrap_or_default();
            let text = format!("the identity token in {place} is not JSON with a string under {field:?}");
            return Err(Error::new(Kind::Refused, text));
        };
        Ok(Self { token, place: Some(place) })
    }

    /// What to do where it is refused. `trusting` is who has to trust a token that was given.
    fn advice(&self, trusting: &str) -> String {
        let expiry = jwt_expiry_remark(&self.token);
        match &self.place {
            Some(place) => format!("check the identity token in {place}{expiry}"),
            None => format!("check the trust of {trusting} in the token's service account{expiry}"),
        }
    }
}

async fn token_at(url: &str, headers: &[(String, Secret)], client: &HttpClient) -> Result<Secret> {
    let mut request = Request::new(Method::GET, token_url(url)?);
    let invalid = |text: String| Error::new(Kind::Invalid, text);
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid(format!("{name:?} is not the name of an HTTP header")))?;
        let mut value = HeaderValue::from_str(value.expose()).map_err(|_| {
            invalid(format!("the header {name} contains characters that no HTTP header may contain"))
        })?;
        value.set_sensitive(true);
        request.headers_mut().insert(name, value);
    }
    let response = client.send(request).await;
    let response = response.map_err(|e| e.context(format!("the identity token at {}", host(url))))?;
    let text = http_client::read(response, MAX_TOKEN_RESPONSE_BYTES).await?;
    Ok(Secret::new(String::from_utf8_lossy(&text)))
}

/// A token as OAuth has it (RFC 6749, section 5.1).
#[derive(Deserialize)]
struct OauthToken {
    access_token: Secret,
    expires_in: Option<u64>,
}

impl OauthToken {
    fn resolved(self) -> Result<ResolvedKey> {
        let expires_at = self
            .expires_in
            .map(|seconds| SystemTime::now() + Duration::from_secs(seconds.min(MAX_TOKEN_LIFETIME_SECONDS)));
        bearer(self.access_token, expires_at)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImpersonatedToken {
    access_token: Secret,
    expire_time: DateTime<Utc>,
}

/// `token` as a key, if a header may contain it.
fn bearer(token: Secret, expires_at: Option<SystemTime>) -> Result<ResolvedKey> {
    let key = AuthKey::Bearer(token);
    key.authorization()?;
    Ok(ResolvedKey::issued(key, expires_at))
}

fn form_request(url: &str, form: &[(&str, &str)]) -> Result<Request> {
    let mut request = Request::new(Method::POST, token_url(url)?);
    let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
    request.headers_mut().insert(CONTENT_TYPE, kind);
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
    *request.body_mut() = Some(body.into());
    Ok(request)
}

/// What to do about a refusal. A service that is away has another cause.
fn advise_refused(error: Error, advice: impl FnOnce() -> String) -> Error {
    if error.kind() == Kind::Refused { error.advise(advice()) } else { error }
}

/// Sends a request to a token service and reads its response. One that is away for a moment is asked again.
async fn ask<T: DeserializeOwned>(client: &HttpClient, mut request: Request) -> Result<T> {
    let mut backoff = Backoff::new(FIRST_RETRY_DELAY, MAX_RETRY_DELAY, backoff::entropy());
    let mut retries = 0..RETRIES;
    let response = loop {
        let again = request.try_clone();
        match (client.send(request).await, again) {
            (Err(e), Some(again)) if e.kind() == Kind::Unavailable && retries.next().is_some() => {
                tokio::time::sleep(backoff.wait()).await;
                request = again;
            }
            (response, _) => break response.map_err(as_refusal)?,
        }
    };
    let text = http_client::read(response, MAX_TOKEN_RESPONSE_BYTES).await?;
    // The parser's own message may quote what it read.
    serde_json::from_slice(&text)
        .map_err(|_| Error::new(Kind::Unsupported, "the response is not one of a token service"))
}

fn token_url(url: &str) -> Result<Url> {
    Url::parse(url).map_err(|_| Error::new(Kind::Invalid, "the URL of the token service is invalid"))
}

/// The host of a URL, the rest of which may be secret.
fn host(url: &str) -> String {
    Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
}
