//! Adapters between this module and the `object_store` crate, in both directions.
//!
//! `object_store` knows how to get tokens from several clouds: it asks for them through [`TokenHttp`], the engine's own
//! HTTP client, so that timeouts, `Retry-After` and the reading of responses are the same as everywhere. And a mirror's
//! requests are made by `object_store`: it gets its keys from [`StoreKeys`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::aws::AwsCredential;
use object_store::azure::AzureCredential;
use object_store::client::{
    ClientOptions, HttpClient as StoreHttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::gcp::GcpCredential;
use object_store::{BackoffConfig, CredentialProvider, RetryConfig};

use super::{AuthKey, KeyCache, wrong_service};
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient, innermost};

/// The engine's HTTP client, for the requests by which `object_store` gets credentials.
#[derive(Clone, Debug)]
pub(super) struct TokenHttp(pub HttpClient);

/// How `object_store` retries such a request: briefly, for the caller knows better when to try again, and where.
pub(super) fn token_retry() -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(1),
        base: 2.,
    };
    RetryConfig { backoff, max_retries: 2, retry_timeout: Duration::from_secs(10) }
}

impl HttpConnector for TokenHttp {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<StoreHttpClient> {
        Ok(StoreHttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for TokenHttp {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let request = engine_request(request).await.map_err(http_error)?;
        let mut response = self.0.send(request).await.map_err(http_error)?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let body = reqwest::Body::from(response).map_err(|e| http_error(http_client::transport_error(e)));
        let mut answer = HttpResponse::new(HttpResponseBody::new(body));
        (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
        Ok(answer)
    }
}

/// Converts a request of `object_store`'s to one of the engine's client.
pub(crate) async fn engine_request(request: HttpRequest) -> Result<reqwest::Request> {
    let (parts, body) = request.into_parts();
    let invalid = || Error::new(Kind::Invalid, "the service's URL is invalid");
    let url = parts.uri.to_string().parse().map_err(|_| invalid())?;
    let mut request = reqwest::Request::new(parts.method, url);
    *request.headers_mut() = parts.headers;
    if !body.is_empty() {
        let body = body.collect().await.map_err(|_| invalid())?;
        *request.body_mut() = Some(body.to_bytes().into());
    }
    Ok(request)
}

/// Wraps an error for `object_store`, which retries what is interrupted. A timeout is not: it took long enough already.
pub(super) fn http_error(error: Error) -> HttpError {
    let retried = error.kind() == Kind::Unavailable;
    HttpError::new(if retried { HttpErrorKind::Interrupted } else { HttpErrorKind::Unknown }, error)
}

/// Extracts the engine's error from the layers that `object_store` put around it.
pub(crate) fn engine_error(error: object_store::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(layer) = cause {
        if let Some(ours) = layer.downcast_ref::<Error>() {
            return ours.share();
        }
        cause = layer.source();
    }
    let text = format!("the service's answer is not what was asked for: {}", innermost(&error));
    Error::new(Kind::Unsupported, text)
}

/// Wraps an error so that [`engine_error`] finds it again.
fn store_error(error: Error) -> object_store::Error {
    object_store::Error::Generic { store: "credentials", source: Box::new(error) }
}

/// Provides the keys of a [`KeyCache`] to an `object_store` whose credentials are a `C`.
pub(crate) struct StoreKeys<C> {
    keys: Arc<KeyCache>,
    convert: fn(&AuthKey) -> Option<Arc<C>>,
}

impl<C> fmt::Debug for StoreKeys<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreKeys")
    }
}

impl StoreKeys<AwsCredential> {
    /// The keys of AWS, and of services that speak S3.
    pub(crate) fn aws(keys: &Arc<KeyCache>) -> Arc<Self> {
        let convert = |key: &AuthKey| match key {
            AuthKey::Aws(key) => Some(key.clone()),
            _ => None,
        };
        Arc::new(Self { keys: keys.clone(), convert })
    }
}

impl StoreKeys<AzureCredential> {
    /// The keys of Azure.
    pub(crate) fn azure(keys: &Arc<KeyCache>) -> Arc<Self> {
        let convert = |key: &AuthKey| match key {
            AuthKey::Azure(key) => Some(key.clone()),
            _ => None,
        };
        Arc::new(Self { keys: keys.clone(), convert })
    }
}

impl StoreKeys<GcpCredential> {
    /// The tokens of Google.
    pub(crate) fn google(keys: &Arc<KeyCache>) -> Arc<Self> {
        let convert = |key: &AuthKey| match key {
            AuthKey::Bearer(token) => Some(Arc::new(GcpCredential { bearer: token.expose().to_owned() })),
            // `object_store` wants a token for writes even where none is needed; `StoreHttp` removes the empty one.
            AuthKey::Anonymous => Some(Arc::new(GcpCredential { bearer: String::new() })),
            _ => None,
        };
        Arc::new(Self { keys: keys.clone(), convert })
    }
}

#[async_trait]
impl<C: fmt::Debug + Send + Sync + 'static> CredentialProvider for StoreKeys<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        let issued = self.keys.get().await.map_err(store_error)?;
        (self.convert)(&issued.key).ok_or_else(|| store_error(wrong_service()))
    }
}
