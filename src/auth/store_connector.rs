//! The HTTP client of a mirror's `object_store`, with what that does not do by itself.
//!
//! It has the [`KeyCache`] replace a key that is refused, and asks once more with the new one; asks for a bucket in the region that
//! its service names; and gives up a server that can't be reached or stalls as soon as origins do: the next tier is not to wait for
//! it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http_body_util::{BodyExt, Limited};
use object_store::aws::AwsAuthorizer;
use object_store::client::{
    ClientOptions, HttpClient as StoreHttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpService,
};
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, RANGE};
use reqwest::{Method, StatusCode};
use tokio::time::timeout;

use super::store_adapter::{engine_error, http_error, invalid_url};
use super::{AuthKey, KeyCache, azure_signature};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::http_client::{
    MAX_ERROR_BODY_BYTES, MAX_RESPONSE_TIMEOUT, UnreachableRetry, header, named_region, send_hedged, silent,
};

/// The header with what `object_store` signed of the content: its SHA-256, or that it did not.
const CONTENT_HASH_HEADER: &str = "x-amz-content-sha256";

/// The header with the session token of a temporary key, which another key may not have.
const SESSION_TOKEN_HEADER: &str = "x-amz-security-token";

/// The longest response that is read before it is passed on, in bytes. A longer one is not watched.
const MAX_COLLECTED_BYTES: u64 = 64 << 20;

/// The largest body of a request that may take no longer than a response without one, in bytes.
const MAX_SMALL_BODY_BYTES: usize = 1 << 20;

type StoreResult = std::result::Result<HttpResponse, HttpError>;

/// Makes the HTTP client of an `object_store`.
#[derive(Debug)]
pub(crate) struct StoreConnector {
    pub keys: Arc<KeyCache>,
    pub client: reqwest::Client,
    /// The region that requests are signed for; `None` for a service that does not speak S3.
    pub region: Option<String>,
    /// The storage account that requests are signed for; `None` for a service that is not Azure's.
    pub account: Option<String>,
}

impl HttpConnector for StoreConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<StoreHttpClient> {
        let client = StoreHttpClient::new(self.client.clone());
        let region =
            self.region.clone().map(|signed| BucketRegion { named: Mutex::new(signed.clone()), signed });
        let (keys, account) = (self.keys.clone(), self.account.clone());
        Ok(StoreHttpClient::new(StoreHttp { client, keys, region, account }))
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
    account: Option<String>,
}

#[async_trait]
impl HttpService for StoreHttp {
    async fn call(&self, mut request: HttpRequest) -> StoreResult {
        let authorization = request.headers().get(AUTHORIZATION);
        if authorization.is_some_and(|value| value.as_bytes().trim_ascii() == b"Bearer") {
            request.headers_mut().remove(AUTHORIZATION);
        }
        let used = self.keys.get().await.ok();
        let mut answer = self.call_with(request.clone(), None).await?;
        if matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
            && let Some(used) = used
            && let Ok(Some(other)) = self.keys.replace(&used).await
        {
            let signed = self.account.as_ref().is_none_or(|account| {
                !is_batch(&request) && azure_signature::sign_again(account, &mut request, &other.key).is_ok()
            });
            if signed {
                answer = self.call_with(request, Some(&other.key)).await?;
            }
        }
        if answer.status() == StatusCode::NOT_IMPLEMENTED {
            // `object_store` would take it for a passing failure, and retry for minutes.
            *answer.status_mut() = StatusCode::BAD_REQUEST;
        }
        Ok(answer)
    }
}

impl StoreHttp {
    /// Sends a request with `key`, or with the one that `object_store` signed it with.
    async fn call_with(&self, mut request: HttpRequest, key: Option<&AuthKey>) -> StoreResult {
        if let Some(region) = &self.region {
            return self.call_in_region(request, region, key).await;
        }
        if let Some(value) = key.and_then(|token| token.authorization().ok()?) {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        self.send(request).await
    }

    /// Sends a request, and again for a moment while nothing but reading is asked of a server that can't be reached.
    async fn send(&self, request: HttpRequest) -> StoreResult {
        if !request.method().is_safe() {
            if !is_small_change(&request) {
                return self.client.execute(request).await;
            }
            let answer = timeout(MAX_RESPONSE_TIMEOUT, self.client.execute(request)).await;
            return answer.unwrap_or_else(|_| Err(http_error(silent(MAX_RESPONSE_TIMEOUT))));
        }
        let mut retry = UnreachableRetry::new();
        loop {
            match self.read(&request).await {
                Err(error) if error.kind() == HttpErrorKind::Connect => {
                    if !retry.wait().await {
                        return Err(HttpError::new(HttpErrorKind::Unknown, error));
                    }
                }
                done => return done,
            }
        }
    }

    /// Reads an object, a listing, or headers. The reader of a part of an object has limits of its own.
    async fn read(&self, request: &HttpRequest) -> StoreResult {
        if request.headers().contains_key(RANGE) {
            return self.client.execute(request.clone()).await;
        }
        let read = send_hedged(|received| async move {
            let (head, body) = self.client.execute(request.clone()).await?.into_parts();
            let len = header(&head.headers, &CONTENT_LENGTH).and_then(|len| len.parse().ok());
            if len.unwrap_or(0) > MAX_COLLECTED_BYTES {
                return Ok(HttpResponse::from_parts(head, body));
            }
            let (mut pieces, mut whole) = (body.bytes_stream(), BytesMut::new());
            while let Some(piece) = pieces.next().await.transpose()? {
                received.fetch_add(piece.len() as u64, Relaxed);
                whole.extend_from_slice(&piece);
                if whole.len() as u64 > MAX_COLLECTED_BYTES {
                    let error = Error::new(Kind::Unsupported, "the response is too long");
                    return Err(http_error(error));
                }
            }
            Ok(HttpResponse::from_parts(head, whole.freeze().into()))
        });
        read.await.unwrap_or_else(|| Err(http_error(silent(MAX_RESPONSE_TIMEOUT))))
    }

    /// Sends a request to where its bucket is, and once more if the service names another region than it was signed for.
    async fn call_in_region(
        &self,
        request: HttpRequest,
        region: &BucketRegion,
        key: Option<&AuthKey>,
    ) -> StoreResult {
        let used = region.named.lock().clone();
        let answer = self.send(self.signed_for(&used, request.clone(), region, key).await?).await?;
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
                let request = self.signed_for(&named, request, region, key).await?;
                *region.named.lock() = named;
                self.send(request).await
            }
            None => Ok(HttpResponse::from_parts(head, body.into())),
        }
    }

    /// The request as it would have been made for the region `named`, with `key` if there is one.
    async fn signed_for(
        &self,
        named: &str,
        mut request: HttpRequest,
        region: &BucketRegion,
        key: Option<&AuthKey>,
    ) -> std::result::Result<HttpRequest, HttpError> {
        let current = match key {
            None if named == region.signed => return Ok(request),
            None => Some(self.keys.get().await.map_err(http_error)?),
            Some(_) => None,
        };
        if let Some(key) = key.or(current.as_ref().map(|issued| &issued.key)) {
            sign(named, &mut request, region, key).map_err(http_error)?;
        }
        Ok(request)
    }
}

/// Signs `request` with `key` for the region `named`.
fn sign(named: &str, request: &mut HttpRequest, region: &BucketRegion, key: &AuthKey) -> Result<()> {
    // AWS has a host for each region.
    let host = |region: &str| format!(".{region}.amazonaws.com");
    let url = request.uri().to_string().replacen(&host(&region.signed), &host(named), 1);
    *request.uri_mut() = url.parse().map_err(|_| invalid_url())?;
    let AuthKey::Aws(key) = key else { return Ok(()) };
    request.headers_mut().remove(SESSION_TOKEN_HEADER);
    let hash = request.headers().get(CONTENT_HASH_HEADER).and_then(|hash| hash.to_str().ok());
    let hash = hash.and_then(|hash| hash.parse::<Digest>().ok());
    AwsAuthorizer::new(key, "s3", named)
        .with_sign_payload(hash.is_some())
        .try_authorize(request, hash.as_ref().map(|hash| &hash.0[..]))
        .map_err(engine_error)
}

/// Whether a request consists of others, which are signed too: only its maker can sign those again.
fn is_batch(request: &HttpRequest) -> bool {
    request.uri().query().is_some_and(|query| query.contains("comp=batch"))
}

/// Whether a request writes or deletes one small object. A copy within the store may take long, as the end of an upload may.
fn is_small_change(request: &HttpRequest) -> bool {
    let copies = request.headers().keys().any(|name| name.as_str().ends_with("-copy-source"));
    // How Azure ends an upload.
    let ends_upload = request.uri().query().is_some_and(|query| query.contains("comp=blocklist"));
    let sends_little = request.body().content_length() <= MAX_SMALL_BODY_BYTES && !copies && !ends_upload;
    matches!(*request.method(), Method::PUT | Method::DELETE) && sends_little
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use object_store::aws::AwsCredential;
    use object_store::azure::AzureCredential;
    use object_store::client::HttpRequestBody;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::auth::IssuedKey;
    use crate::auth::key_cache::KeyIssuer;
    use crate::http_client::mirror_client;
    use crate::source::Secret;

    /// Issues another key each time.
    #[derive(Debug)]
    struct RotatingIssuer {
        issued: AtomicUsize,
        make: fn(String) -> AuthKey,
    }

    fn aws(name: String) -> AuthKey {
        let secret_key = "secret".to_owned();
        AuthKey::Aws(Arc::new(AwsCredential { key_id: name, secret_key, token: None }))
    }

    fn bearer(name: String) -> AuthKey {
        AuthKey::Bearer(Secret::new(name))
    }

    fn azure_sas(name: String) -> AuthKey {
        AuthKey::Azure(Arc::new(AzureCredential::SASToken(vec![("sig".to_owned(), name)])))
    }

    #[async_trait]
    impl KeyIssuer for RotatingIssuer {
        async fn issue(&self, _: bool) -> Result<IssuedKey> {
            let name = format!("key{}", self.issued.fetch_add(1, Relaxed));
            Ok(IssuedKey::of((self.make)(name), None))
        }
    }

    /// A service that accepts the second key only, and where it is.
    async fn service() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\nbody") {
                    connection.read_buf(&mut request).await.expect("read");
                }
                let request = String::from_utf8(request).expect("text");
                let authorizations =
                    request.matches("authorization: ").count() + request.matches("sig=").count();
                let right = authorizations == 1 && request.contains("key1") && !request.contains("old token");
                let status = if right { "200 OK" } else { "403 Forbidden" };
                let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                connection.write_all(answer.as_bytes()).await.expect("written");
            }
        });
        url
    }

    #[tokio::test]
    async fn mirror_request_with_rotated_key_is_signed_and_sent_again() {
        let url = service().await;
        let (region, account) = (Some("us-east-1".to_owned()), Some("account".to_owned()));
        for (make, region, account) in
            [(aws as fn(String) -> AuthKey, region, None), (bearer, None, None), (azure_sas, None, account)]
        {
            let keys = Arc::new(KeyCache::with_issuer(Box::new(RotatingIssuer { issued: 0.into(), make })));
            let client = mirror_client(None, MAX_RESPONSE_TIMEOUT).expect("a client");
            let connector = StoreConnector { keys, client, region, account };
            let store = connector.connect(&ClientOptions::new()).expect("a store");
            let mut request = HttpRequest::new(HttpRequestBody::from(Bytes::from_static(b"body")));
            *request.method_mut() = Method::PUT;
            *request.uri_mut() = url.parse().expect("a URL");
            match &connector.account {
                Some(_) => *request.uri_mut() = format!("{url}/o?sig=key0").parse().expect("a URL"),
                None => {
                    let signed = "signed with key0".parse().expect("a header");
                    request.headers_mut().insert(AUTHORIZATION, signed);
                }
            }
            if connector.region.is_some() {
                request.headers_mut().insert(SESSION_TOKEN_HEADER, "old token".parse().expect("a header"));
            }
            assert_eq!(store.execute(request).await.expect("an answer").status(), StatusCode::OK);
        }
    }
}
