//! How `object_store` gets at the network when it asks for credentials: through the origins' own client, so that time
//! limits, `Retry-After` and the reading of answers are the same as everywhere.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{BackoffConfig, RetryConfig};

use crate::client::{self, Client, innermost};
use crate::error::{Error, Kind};

/// The origins' client, as `object_store` wants it.
#[derive(Clone, Debug)]
pub(super) struct Service(pub Client);

/// Short: the ladder knows better when to try again, and where.
pub(super) fn retry() -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(1),
        base: 2.,
    };
    RetryConfig { backoff, max_retries: 2, retry_timeout: Duration::from_secs(10) }
}

impl HttpConnector for Service {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let request = plain(request).await.map_err(wrap)?;
        let mut response = self.0.send(request).await.map_err(wrap)?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let body = reqwest::Body::from(response).map_err(|e| wrap(client::transport(e)));
        let mut answer = HttpResponse::new(HttpResponseBody::new(body));
        (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
        Ok(answer)
    }
}

/// A request as the origins' client takes it.
pub(crate) async fn plain(request: HttpRequest) -> crate::error::Result<reqwest::Request> {
    let (parts, body) = request.into_parts();
    let invalid = || Error::new(Kind::Invalid, "the service's URL can't be asked for");
    let url = parts.uri.to_string().parse().map_err(|_| invalid())?;
    let mut request = reqwest::Request::new(parts.method, url);
    *request.headers_mut() = parts.headers;
    if !body.is_empty() {
        let body = body.collect().await.map_err(|_| invalid())?;
        *request.body_mut() = Some(body.to_bytes().into());
    }
    Ok(request)
}

/// `object_store` tries again what it takes for interrupted. Not so after a silence: that took long enough already.
fn wrap(error: Error) -> HttpError {
    let again = error.kind() == Kind::Unavailable;
    HttpError::new(if again { HttpErrorKind::Interrupted } else { HttpErrorKind::Unknown }, error)
}

/// The client's error again, out of the layers that `object_store` put around it.
pub(crate) fn failure(error: object_store::Error) -> Error {
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

/// The engine's error, as `object_store` passes it on to [`failure`].
pub(super) fn wrapped(error: Error) -> object_store::Error {
    object_store::Error::Generic { store: "credentials", source: Box::new(error) }
}

/// The error for credentials that can't be got. What a token service has to say of it is not said of the object.
pub(super) fn no_credentials(error: object_store::Error) -> Error {
    let error = failure(error);
    let kind = match error.kind() {
        passing @ (Kind::Unavailable | Kind::Timeout) => passing,
        _ => Kind::Refused,
    };
    Error::new(kind, format!("its credentials can't be got: {error}"))
}
