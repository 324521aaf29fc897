//! Requests to token services, and their responses (OAuth).

use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::{Url, form_urlencoded};

use super::{MAX_TOKEN_RESPONSE_BYTES, ResolvedKey, as_refusal};
use crate::auth::AuthKey;
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient};
use crate::source::Secret;

/// The longest that a token is taken to be valid, in seconds: whatever a service claims, it is renewed daily.
const MAX_TOKEN_LIFETIME_SECONDS: u64 = 86_400;

/// A token as OAuth has it (RFC 6749, section 5.1).
#[derive(Deserialize)]
pub(super) struct OauthToken {
    pub access_token: Secret,
    expires_in: Option<u64>,
}

impl OauthToken {
    /// The token as a key.
    pub fn resolved(self) -> Result<ResolvedKey> {
        let expires_at = self
            .expires_in
            .map(|seconds| SystemTime::now() + Duration::from_secs(seconds.min(MAX_TOKEN_LIFETIME_SECONDS)));
        bearer(self.access_token, expires_at)
    }
}

/// `token` as a key, if a header may contain it.
pub(super) fn bearer(token: Secret, expires_at: Option<SystemTime>) -> Result<ResolvedKey> {
    let key = AuthKey::Bearer(token);
    key.authorization()?;
    Ok(ResolvedKey::issued(key, expires_at))
}

pub(super) fn form_request(url: &str, form: &[(&str, &str)]) -> Result<Request> {
    let mut request = Request::new(Method::POST, token_url(url)?);
    let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
    request.headers_mut().insert(CONTENT_TYPE, kind);
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
    *request.body_mut() = Some(body.into());
    Ok(request)
}

/// Adds advice to a refusal. A service that is away has another cause.
pub(super) fn advise_refused(error: Error, advice: impl FnOnce() -> String) -> Error {
    if error.kind() == Kind::Refused { error.advise(advice()) } else { error }
}

/// Sends a request to a token service, made anew for each try, and reads its response. One that is away for a moment is asked
/// again.
pub(super) async fn ask<T: DeserializeOwned>(
    client: &HttpClient,
    request: impl Fn() -> Result<Request> + Sync,
) -> Result<T> {
    let send = || async { client.send(request()?).await };
    let response = http_client::retry(&[Kind::Unavailable], send).await.map_err(as_refusal)?;
    let text = http_client::read(response, MAX_TOKEN_RESPONSE_BYTES).await?;
    // The parser's own message may quote what it read.
    serde_json::from_slice(&text)
        .map_err(|_| Error::new(Kind::Unsupported, "the response is not one of a token service"))
}

pub(super) fn token_url(url: &str) -> Result<Url> {
    Url::parse(url).map_err(|_| Error::new(Kind::Invalid, "the URL of the token service is invalid"))
}

/// The host of a URL, the rest of which may be secret.
pub(super) fn host(url: &str) -> String {
    Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
}
