//! Requests to one bucket: signed anew for each attempt, and tried again after a passing failure.

use std::sync::Arc;

use object_store::client::{HttpRequest, HttpRequestBody};
use reqwest::Response;
use reqwest::header::HeaderMap;

use super::cloud::{Cloud, Object, Page};
use super::version::Tag;
use crate::client::{self, Client, again, patiently};
use crate::credentials::{Issued, Keys, connector};
use crate::error::{Error, Kind, Result};

/// The largest page that is read, in bytes: 1,000 keys (the most that a page has) at 1 KiB, encoded, and the rest.
const LARGEST: usize = 16 << 20;

/// A way into one bucket.
#[derive(Debug)]
pub(super) struct Door {
    pub client: Client,
    pub keys: Keys,
    pub cloud: Box<dyn Cloud>,
}

impl Door {
    /// Asks for a page, so patiently that a long listing outlives what passes.
    pub(super) async fn page(&self, prefix: &str, next: Option<&str>) -> Result<Page> {
        let url = self.cloud.page_url(prefix, next);
        patiently(|| async {
            self.client.calm().await;
            let answer = self.send(&url, &HeaderMap::new()).await?;
            self.cloud.page(&client::read(answer, LARGEST).await?)
        })
        .await
    }

    /// Asks for the object of `key`. A silence took long enough already: it is not tried again.
    pub(super) async fn object(&self, key: &str, tag: &Tag, headers: &HeaderMap) -> Result<Response> {
        let url = self.cloud.object_url(key, tag);
        again(&[Kind::Unavailable], || self.send(&url, headers)).await
    }

    /// The object whose key is exactly `key`, as it is listed now: among the keys that begin with it, it is the first.
    pub(super) async fn find(&self, key: &str) -> Result<Option<Object>> {
        let page = self.page(key, None).await?;
        Ok(page.objects.into_iter().find(|object| object.key == key.as_bytes()))
    }

    async fn send(&self, url: &str, headers: &HeaderMap) -> Result<Response> {
        let ask = |issued: Arc<Issued>| async move {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            let invalid = |_| Error::new(Kind::Invalid, "the service's URL can't be asked for");
            *request.uri_mut() = url.parse().map_err(invalid)?;
            *request.headers_mut() = headers.clone();
            self.cloud.sign(&mut request, &issued.key)?;
            self.client.send(connector::plain(request).await?).await.map_err(|e| issued.blame(e))
        };
        self.keys.with(ask).await
    }
}
