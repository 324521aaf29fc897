//! Requests to one bucket: signed anew for each attempt, and retried after a passing failure.

use std::ops::Range;
use std::sync::Arc;

use object_store::client::{HttpRequest, HttpRequestBody};
use reqwest::header::HeaderMap;
use reqwest::{Method, Response, StatusCode};
use tokio::time::timeout;

use super::object_api::{ObjectApi, ObjectEntry, ObjectPage};
use super::object_version::VersionTag;
use crate::auth::store_adapter::{engine_request, invalid_url};
use crate::auth::{IssuedKey, KeyCache};
use crate::error::{Kind, Result};
use crate::http_client::{self, HttpClient, MAX_RESPONSE_TIMEOUT, retry, retry_listing};
use crate::origin::range_request::{is_part, set_range};

/// The largest page that is read, in bytes: 1,000 keys (the most that a page has) at 1 KiB, encoded, and the rest.
const MAX_PAGE_BYTES: usize = 16 << 20;

/// The range that is asked for to see whether a service has ranges: no file is ever read in such parts.
const PROBED_RANGE: Range<u64> = 1..2;

/// The client of one bucket.
#[derive(Debug)]
pub(super) struct BucketClient {
    pub http: HttpClient,
    pub keys: KeyCache,
    pub api: Box<dyn ObjectApi>,
    /// Whether the service is at an endpoint of its own, and so perhaps one that ignores Range.
    pub has_own_endpoint: bool,
}

impl BucketClient {
    /// Gets a page of the keys that begin with `prefix`: the first, or the one that `next` names.
    pub(super) async fn page(&self, prefix: &str, next: Option<&str>) -> Result<ObjectPage> {
        let url = || self.api.page_url(prefix, next);
        let page = retry_listing(|| async {
            self.http.wait_to_list().await;
            let answer = self.send(Method::GET, &url, &HeaderMap::new()).await?;
            self.api.page(&http_client::read(answer, MAX_PAGE_BYTES).await?)
        });
        page.await.map_err(|e| {
            let url = url();
            e.context(format!("cannot list {}", url.split('?').next().unwrap_or_default()))
        })
    }

    /// Gets the object of `key`. A timeout is not retried: it took long enough already.
    pub(super) async fn object(&self, key: &str, tag: &VersionTag, headers: &HeaderMap) -> Result<Response> {
        let url = || self.api.object_url(key, tag);
        retry(&[Kind::Unavailable], || self.send(Method::GET, &url, headers)).await
    }

    /// Looks up the object whose key is exactly `key` in a listing: among the keys that begin with it, it is the first.
    pub(super) async fn find(&self, key: &str) -> Result<Option<ObjectEntry>> {
        let page = self.page(key, None).await?;
        Ok(page.objects.into_iter().find(|object| object.key == key.as_bytes()))
    }

    /// Asks for the version of an object of which the listing tells none: for its headers, and where they don't tell either
    /// (s3s-fs), for its first byte.
    pub(super) async fn tag(&self, key: &str, size: u64) -> Result<Option<VersionTag>> {
        let unknown = VersionTag::ETag(String::new());
        let url = || self.api.object_url(key, &unknown);
        let mut first_byte = HeaderMap::new();
        set_range(&mut first_byte, &(0..1));
        let requests = [(Method::HEAD, HeaderMap::new()), (Method::GET, first_byte)];
        for (method, headers) in requests.into_iter().take(if size == 0 { 1 } else { 2 }) {
            let answer = retry_listing(|| self.send(method.clone(), &url, &headers)).await?;
            if let Some(tag) = self.api.version_tag(answer.headers()) {
                return Ok(Some(tag));
            }
        }
        Ok(None)
    }

    /// Whether the service ignores Range: it sends all of an object of `size` bytes, more than two, as it was listed. `None` where
    /// the response shows neither, as that of a service which sends no version with the content. False for one that is silent.
    pub(super) async fn ignores_range(&self, key: &str, tag: &VersionTag, size: u64) -> Option<bool> {
        let mut headers = HeaderMap::new();
        set_range(&mut headers, &PROBED_RANGE);
        let answer = match timeout(MAX_RESPONSE_TIMEOUT, self.object(key, tag, &headers)).await {
            Ok(answer) => answer.ok()?,
            Err(_) => return Some(false),
        };
        if answer.status() == StatusCode::PARTIAL_CONTENT || is_part(&answer) {
            return Some(false);
        }
        let whole = answer.status() == StatusCode::OK
            && answer.content_length().is_none_or(|len| len == size)
            && self.api.is_stored_encoding(answer.headers())
            && self.api.version_tag(answer.headers()).as_ref() == Some(tag);
        whole.then_some(true)
    }

    /// Sends a request to what `url` tells, and once more if the bucket is in another region than it was asked for in.
    async fn send(
        &self,
        method: Method,
        url: &(dyn Fn() -> String + Sync),
        headers: &HeaderMap,
    ) -> Result<Response> {
        let method = &method;
        let send = |issued: Arc<IssuedKey>| async move {
            let region = self.api.region();
            let answer = self.attempt(method, &url(), headers, &issued).await?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            let answer = match http_client::refusal(answer).await {
                (_, Some(named)) if region.is_some_and(|used| used != named) => {
                    self.api.use_region(&named);
                    http_client::accept(self.attempt(method, &url(), headers, &issued).await?).await
                }
                (error, _) => Err(error),
            };
            answer.map_err(|e| issued.explain_refusal(e))
        };
        self.keys.send_with_key(send).await
    }

    /// Sends a request once.
    async fn attempt(
        &self,
        method: &Method,
        url: &str,
        headers: &HeaderMap,
        issued: &IssuedKey,
    ) -> Result<Response> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method.clone();
        *request.uri_mut() = url.parse().map_err(|_| invalid_url())?;
        *request.headers_mut() = headers.clone();
        self.api.authorize(&mut request, &issued.key)?;
        self.http.execute(engine_request(request).await?).await
    }
}
