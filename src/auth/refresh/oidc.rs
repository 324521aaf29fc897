//! Tokens of Google: for a user who signed in (OAuth), and for another identity, which Google takes for one of its own (workload
//! identity federation).

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Request};
use serde::Deserialize;
use serde_json::json;

use super::subject_token::SubjectTokenText;
use super::token_request::{OauthToken, advise_refused, ask, bearer, form_request, host, token_url};
use super::{KeyProvider, ResolvedKey};
use crate::auth::AuthKey;
use crate::error::Result;
use crate::http_client::HttpClient;
use crate::source::{ExternalAccount, Secret};

/// Gives tokens to users who signed in (<https://developers.google.com/identity/protocols/oauth2>).
const USER_TOKEN_URL: &str = "https://oauth2.googleapis.com/token";
/// The scope of a token. The storage decides by the account's rights, as it does for Google's own tools.
const CLOUD_SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

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
            ask(&self.client, || form_request(USER_TOKEN_URL, &form)).await.map_err(|e| {
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
        let token: OauthToken = ask(&self.client, || form_request(token_url, &form)).await.map_err(|e| {
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
        let request = || {
            let mut request = Request::new(Method::POST, token_url(url)?);
            if let Some(value) = key.authorization()? {
                request.headers_mut().insert(AUTHORIZATION, value);
            }
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *request.body_mut() = Some(json!({ "scope": [CLOUD_SCOPE] }).to_string().into());
            Ok(request)
        };
        let account = url.rsplit('/').next().unwrap_or_default().split(':').next().unwrap_or_default();
        let token: ImpersonatedToken = ask(&self.client, request).await.map_err(|e| {
            let failed = e.context(format!("{} gives no token for {account}", host(url)));
            let advice = "grant the federated identity roles/iam.workloadIdentityUser on it";
            advise_refused(failed, || advice.to_owned())
        })?;
        bearer(token.access_token, Some(token.expire_time.into()))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImpersonatedToken {
    access_token: Secret,
    expire_time: DateTime<Utc>,
}
