//! Tokens of Google: for a user who signed in (OAuth), and for an identity of this machine that Google takes for one of
//! its own (workload identity federation).

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Method, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::{Url, form_urlencoded};

use super::key_expiry::jwt_expiry_remark;
use super::{KeyProvider, MAX_TOKEN_RESPONSE_BYTES, ResolvedKey, as_refusal};
use crate::auth::{AuthKey, load};
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient};
use crate::source::{ExternalAccount, Secret, SubjectToken};
use crate::task::blocking;

/// Gives tokens to users who signed in (<https://developers.google.com/identity/protocols/oauth2>).
const USER_TOKEN_URL: &str = "https://oauth2.googleapis.com/token";
/// The scope of a token. The storage decides by the account's rights, as it does for Google's own tools.
const CLOUD_SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// The longest that a token is taken to be valid, in seconds: whatever a service claims, it is renewed daily.
const MAX_TOKEN_LIFETIME_SECONDS: u64 = 86_400;

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

/// Provides tokens of Google's for an identity of this machine.
pub(in crate::auth) struct FederatedTokens {
    pub account: ExternalAccount,
    pub client: HttpClient,
}

#[async_trait]
impl KeyProvider for FederatedTokens {
    async fn key(&self) -> Result<ResolvedKey> {
        let ExternalAccount { audience, token_type, token_url, impersonation, .. } = &self.account;
        let (subject, place) = self.subject_token().await?;
        let form = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("audience", audience),
            ("scope", CLOUD_SCOPE),
            ("subject_token_type", token_type),
            ("subject_token", subject.expose()),
        ];
        let token: OauthToken = ask(&self.client, form_request(token_url, &form)?).await.map_err(|e| {
            e.context(format!("{} gives no token for {audience}", host(token_url)))
                .advise(format!("check the identity token in {place}{}", jwt_expiry_remark(&subject)))
        })?;
        let resolved = token.resolved()?;
        match impersonation {
            Some(url) => self.impersonate(url, &resolved.key).await,
            None => Ok(resolved),
        }
    }
}

impl FederatedTokens {
    /// The machine's own token, and where it was read.
    async fn subject_token(&self) -> Result<(Secret, String)> {
        let (text, place) = match &self.account.subject {
            SubjectToken::File(path) => {
                let file = path.clone();
                (blocking(move || load::secret_file(&file)).await?, path.display().to_string())
            }
            SubjectToken::Url { url, headers } => (self.subject_token_at(url, headers).await?, host(url)),
        };
        let Some(field) = &self.account.field else { return Ok((Secret::new(text.expose().trim()), place)) };
        let value: Option<Value> = serde_json::from_str(text.expose()).ok();
        match value.as_ref().and_then(|value| value.get(field)).and_then(Value::as_str) {
            Some(token) => Ok((Secret::new(token), place)),
            None => {
                let text = format!("the identity token in {place} is not JSON with a string under {field:?}");
                Err(Error::new(Kind::Refused, text))
            }
        }
    }

    async fn subject_token_at(&self, url: &str, headers: &[(String, Secret)]) -> Result<Secret> {
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
        let response = self.client.send(request).await;
        let response = response.map_err(|e| e.context(format!("the identity token at {}", host(url))))?;
        let text = http_client::read(response, MAX_TOKEN_RESPONSE_BYTES).await?;
        Ok(Secret::new(String::from_utf8_lossy(&text)))
    }

    /// Gets a token of the service account in exchange for the machine's.
    async fn impersonate(&self, url: &str, key: &AuthKey) -> Result<ResolvedKey> {
        let mut request = Request::new(Method::POST, token_url(url)?);
        if let Some(value) = key.authorization()? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *request.body_mut() = Some(json!({ "scope": [CLOUD_SCOPE] }).to_string().into());
        let account = url.rsplit('/').next().unwrap_or_default().split(':').next().unwrap_or_default();
        let token: ImpersonatedToken = ask(&self.client, request)
            .await
            .map_err(|e| e.context(format!("{} gives no token for {account}", host(url))))?;
        bearer(token.access_token, Some(token.expire_time.into()))
    }
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

/// Sends a request to a token service and reads its response.
async fn ask<T: DeserializeOwned>(client: &HttpClient, request: Request) -> Result<T> {
    let response = client.send(request).await.map_err(as_refusal)?;
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
