//! The HTTP client of a mirror's `object_store`, with what that does not do by itself.
//!
//! It has the [`KeyCache`] replace a key that is refused, asks for a bucket in the region that its service names, and gives up a
//! server that can't be reached as soon as origins do: the next tier is not to wait for it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use object_store::aws::AwsAuthorizer;
use object_store::client::{
    ClientOptions, HttpClient as StoreHttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpService,
};
use parking_lot::Mutex;
use reqwest::StatusCode;
use reqwest::header::AUTHORIZATION;

use super::store_adapter::{engine_error, http_error};
use super::{AuthKey, KeyCache};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::http_client::{MAX_ERROR_BODY_BYTES, UnreachableRetry, named_region};

/// The header with what `object_store` signed of the content: its SHA-256, or that it did not.
const CONTENT_HASH: &str = "x-amz-content-sha256";

/// Makes the HTTP client of an `object_store`.
#[derive(Debug)]
pub(crate) struct StoreConnector {
    pub keys: Arc<KeyCache>,
    pub client: reqwest::Client,
    /// The region that requests are signed for; `None` for a service that does not speak S3.
    pub region: Option<String>,
}

impl HttpConnector for StoreConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<StoreHttpClient> {
        let client = StoreHttpClient::new(self.client.clone());
        let region =
            self.region.clone().map(|signed| BucketRegion { named: Mutex::new(signed.clone()), signed });
        Ok(StoreHttpClient::new(StoreHttp { client, keys: self.keys.clone(), region }))
    }
}

/// The region of a bucket.
#[derive(Debug)]
struct BucketRegion {
    /// The one that `object_store` signs for.
    signed: String,
    /// The one that the bucket is in, as far as is known.
    named: Mutex<String>,
}

#[derive(Debug)]
struct StoreHttp {
    client: StoreHttpClient,
    keys: Arc<KeyCache>,
    region: Option<BucketRegion>,
}

#[async_trait]
impl HttpService for StoreHttp {
    async fn call(&self, mut request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let authorization = request.headers().get(AUTHORIZATION);
        if authorization.is_some_and(|value| value.as_bytes().trim_ascii() == b"Bearer") {
            request.headers_mut().remove(AUTHORIZATION);
        }
        let mut answer = match &self.region {
            Some(region) => self.call_in_region(request, region).await?,
            None => self.send(request).await?,
        };
        if answer.status() == StatusCode::NOT_IMPLEMENTED {
            // `object_store` would take it for a passing failure, and retry for minutes.
            *answer.status_mut() = StatusCode::BAD_REQUEST;
        }
        if matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
            && let Ok(issued) = self.keys.get().await
        {
            self.keys.mark_refused(&issued);
        }
        Ok(answer)
    }
}

impl StoreHttp {
    /// Sends a request, and again for a moment while nothing but reading is asked of a server that can't be reached.
    async fn send(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        if !request.method().is_safe() {
            return self.client.execute(request).await;
        }
        let mut retry = UnreachableRetry::new();
        loop {
            match self.client.execute(request.clone()).await {
                Err(error) if error.kind() == HttpErrorKind::Connect => {
                    if !retry.wait().await {
                        return Err(HttpError::new(HttpErrorKind::Unknown, error));
                    }
                }
                done => return done,
            }
        }
    }

    /// Sends a request to where its bucket is, and once more if the service names another region than it was signed for.
    async fn call_in_region(
        &self,
        request: HttpRequest,
        region: &BucketRegion,
    ) -> std::result::Result<HttpResponse, HttpError> {
        let used = region.named.lock().clone();
        let answer = self.send(self.signed_for(&used, request.clone(), region).await?).await?;
        let status = answer.status();
        if !status.is_redirection() && status != StatusCode::BAD_REQUEST {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, MAX_ERROR_BODY_BYTES).collect().await;
        let body = body.map_or_else(|_| Bytes::new(), |body| body.to_bytes());
        let text = std::str::from_utf8(&body).unwrap_or_default();
        match named_region(status, &head.headers, text).filter(|named| *named != used) {
            Some(named) => {
                let request = self.signed_for(&named, request, region).await?;
                *region.named.lock() = named;
                self.send(request).await
            }
            None => Ok(HttpResponse::from_parts(head, body.into())),
        }
    }

    /// The request as it would have been made for the region `named`.
    async fn signed_for(
        &self,
        named: &str,
        mut request: HttpRequest,
        region: &BucketRegion,
    ) -> std::result::Result<HttpRequest, HttpError> {
        if named != region.signed {
            self.sign(named, &mut request, region).await.map_err(http_error)?;
        }
        Ok(request)
    }

    async fn sign(&self, named: &str, request: &mut HttpRequest, region: &BucketRegion) -> Result<()> {
        // AWS has a host for each region.
        let host = |region: &str| format!(".{region}.amazonaws.com");
        let url = request.uri().to_string().replacen(&host(&region.signed), &host(named), 1);
        *request.uri_mut() =
            url.parse().map_err(|_| Error::new(Kind::Invalid, "the service's URL is invalid"))?;
        let issued = self.keys.get().await?;
        let AuthKey::Aws(key) = &issued.key else { return Ok(()) };
        let hash = request.headers().get(CONTENT_HASH).and_then(|hash| hash.to_str().ok());
        let hash = hash.and_then(|hash| hash.parse::<Digest>().ok());
        AwsAuthorizer::new(key, "s3", named)
            .with_sign_payload(hash.is_some())
            .try_authorize(request, hash.as_ref().map(|hash| &hash.0[..]))
            .map_err(engine_error)
    }
}
