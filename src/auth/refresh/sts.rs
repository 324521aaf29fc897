//! AWS's token service (STS): assumes a role and gives a key that is valid for an hour at the most.
//! <https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html>

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequest;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use url::form_urlencoded;

use super::key_expiry::jwt_expiry_remark;
use super::{KeyProvider, MAX_TOKEN_RESPONSE_BYTES, ResolvedKey, as_refusal};
use crate::auth::store_adapter::{engine_error, engine_request};
use crate::auth::{AuthKey, load, wrong_service};
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient};
use crate::source::{AwsAmbient, Secret, endpoint};
use crate::task::blocking;
use crate::xml;

/// The seconds that a key is asked for: the most that a role may last that another role assumed.
const KEY_LIFETIME_SECONDS: &str = "3600";
/// The root elements of its responses.
const RESPONSE_ELEMENTS: [&str; 2] = ["AssumeRoleResponse", "AssumeRoleWithWebIdentityResponse"];
/// The session's name where none is given; AWS's logs show it.
const DEFAULT_SESSION_NAME: &str = "bdnfs";

/// Provides keys of a role of AWS, which it assumes each time that a key is needed.
pub(in crate::auth) struct AssumeRole {
    pub arn: String,
    pub region: String,
    pub session: Option<String>,
    pub external_id: Option<String>,
    pub with: AssumeRoleWith,
    /// The service's URL, without a slash at its end.
    pub endpoint: String,
    pub client: HttpClient,
}

/// The credentials with which a role is assumed.
pub(in crate::auth) enum AssumeRoleWith {
    /// The web identity token in a file.
    WebIdentity(PathBuf),
    /// This web identity token.
    GivenToken(Secret),
    /// An AWS key.
    AccessKey(Arc<dyn KeyProvider>),
}

/// The URL of the STS of `region`, or the one that this machine is configured for.
///
/// # Errors
/// [`Kind::Invalid`] for a region or a URL that can't be one.
pub(in crate::auth) fn sts_endpoint(region: &str, ambient: &AwsAmbient, allow_http: bool) -> Result<String> {
    let china = if region.starts_with("cn-") { ".cn" } else { "" };
    if region.is_empty() || !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Err(Error::new(Kind::Invalid, format!("{region:?} is not the name of a region")));
    }
    match &ambient.sts {
        Some(text) => endpoint(text, allow_http).map_err(|e| e.context("AWS STS")),
        None => Ok(format!("https://sts.{region}.amazonaws.com{china}")),
    }
}

#[async_trait]
impl KeyProvider for AssumeRole {
    async fn key(&self) -> Result<ResolvedKey> {
        let failed = |error: Error| {
            as_refusal(error).context(format!("cannot assume the role {} at {}", self.arn, self.endpoint))
        };
        match &self.with {
            AssumeRoleWith::WebIdentity(path) => {
                let file = path.clone();
                let token = blocking(move || load::secret_file(&file)).await?;
                let token = Secret::new(token.expose().trim());
                self.assume_with_token(&token).await.map_err(|e| {
                    let (path, expiry) = (path.display(), jwt_expiry_remark(&token));
                    failed(e).advise(format!("check the web identity token in {path}{expiry}"))
                })
            }
            AssumeRoleWith::GivenToken(token) => self.assume_with_token(token).await.map_err(|e| {
                let expiry = jwt_expiry_remark(token);
                failed(e).advise(format!("check the role's trust in the token's service account{expiry}"))
            }),
            AssumeRoleWith::AccessKey(provider) => {
                let AuthKey::Aws(key) = provider.key().await?.key else { return Err(wrong_service()) };
                let mut request = self.request(self.form("AssumeRole", None))?;
                AwsAuthorizer::new(&key, "sts", &self.region)
                    .try_authorize(&mut request, None)
                    .map_err(engine_error)?;
                self.assume(request).await.map_err(failed)
            }
        }
    }
}

impl AssumeRole {
    fn form(&self, action: &str, token: Option<&Secret>) -> String {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("Action", action).append_pair("Version", "2011-06-15");
        form.append_pair("RoleArn", &self.arn).append_pair("DurationSeconds", KEY_LIFETIME_SECONDS);
        form.append_pair("RoleSessionName", self.session.as_deref().unwrap_or(DEFAULT_SESSION_NAME));
        if let Some(id) = &self.external_id {
            form.append_pair("ExternalId", id);
        }
        if let Some(token) = token {
            form.append_pair("WebIdentityToken", token.expose());
        }
        form.finish()
    }

    fn request(&self, form: String) -> Result<HttpRequest> {
        let mut request = HttpRequest::new(form.into());
        *request.method_mut() = Method::POST;
        let invalid = |_| Error::new(Kind::Invalid, "the URL of AWS STS is invalid");
        *request.uri_mut() = format!("{}/", self.endpoint).parse().map_err(invalid)?;
        let form = HeaderValue::from_static("application/x-www-form-urlencoded; charset=utf-8");
        request.headers_mut().insert(CONTENT_TYPE, form);
        Ok(request)
    }

    async fn assume_with_token(&self, token: &Secret) -> Result<ResolvedKey> {
        self.assume(self.request(self.form("AssumeRoleWithWebIdentity", Some(token)))?).await
    }

    async fn assume(&self, request: HttpRequest) -> Result<ResolvedKey> {
        let response = self.client.send(engine_request(request).await?).await?;
        let text = http_client::read(response, MAX_TOKEN_RESPONSE_BYTES).await?;
        // The parser's message could repeat a part of a key.
        let response: StsResponse = xml::read(&RESPONSE_ELEMENTS, &text).map_err(|_| {
            Error::new(Kind::Unsupported, "the response is not one of AWS STS; check the endpoint")
        })?;
        let credentials = response.result.credentials;
        let key = AuthKey::aws(AwsCredential {
            key_id: credentials.access_key_id,
            secret_key: credentials.secret_access_key,
            token: Some(credentials.session_token),
        })?;
        Ok(ResolvedKey::issued(key, Some(credentials.expiration.into())))
    }
}

#[derive(Deserialize)]
struct StsResponse {
    #[serde(rename = "AssumeRoleResult", alias = "AssumeRoleWithWebIdentityResult")]
    result: AssumeRoleResult,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AssumeRoleResult {
    credentials: TemporaryCredentials,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TemporaryCredentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    expiration: DateTime<Utc>,
}
