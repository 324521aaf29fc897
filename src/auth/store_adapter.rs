//! The engine's HTTP client and errors for the `object_store` crate.
//!
//! `object_store` knows how to get tokens from several clouds: it asks for them through [`TokenHttp`], the engine's own
//! HTTP client, so that timeouts, `Retry-After` and the reading of responses are the same as everywhere.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::client::{
    ClientOptions, HttpClient as StoreHttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{BackoffConfig, RetryConfig};

use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient, innermost};

/// The engine's HTTP client, for the requests by which `object_store` gets credentials.
#[derive(Clone, Debug)]
pub(super) struct TokenHttp(pub HttpClient);

/// The retry policy of `object_store` for such a request: brief, for the caller knows better when to try again, and where.
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
    let url = parts.uri.to_string().parse().map_err(|_| invalid_url())?;
    let mut request = reqwest::Request::new(parts.method, url);
    *request.headers_mut() = parts.headers;
    if !body.is_empty() {
        let body = body.collect().await.map_err(|_| invalid_url())?;
        *request.body_mut() = Some(body.to_bytes().into());
    }
    Ok(request)
}

/// The error for a URL that no request can be sent to.
pub(crate) fn invalid_url() -> Error {
    Error::new(Kind::Invalid, "the service's URL is invalid")
}

/// Wraps an error for `object_store`, which retries what is interrupted. A timeout is not: it took long enough already.
pub(super) fn http_error(error: Error) -> HttpError {
    let retried = error.kind() == Kind::Unavailable;
    HttpError::new(if retried { HttpErrorKind::Interrupted } else { HttpErrorKind::Unknown }, error)
}

/// Extracts the engine's error from the layers that `object_store` put around it.
pub(crate) fn engine_error(error: object_store::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut why = innermost(&error);
    while let Some(layer) = cause {
        if let Some(ours) = layer.downcast_ref::<Error>() {
            return ours.share();
        }
        // The parser's own message may quote what it read.
        if let Some(parser) = layer.downcast_ref::<serde_json::Error>() {
            why = format!("it is not the expected JSON (line {}, column {})", parser.line(), parser.column());
        }
        cause = layer.source();
    }
    Error::new(Kind::Unsupported, format!("the service's response is not what was asked for: {why}"))
}

/// Wraps an error so that [`engine_error`] finds it again.
pub(super) fn store_error(error: Error) -> object_store::Error {
    object_store::Error::Generic { store: "credentials", source: Box::new(error) }
}
