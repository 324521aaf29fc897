//! S3, and the services that speak its protocol: Cloudflare R2, CoreWeave AI Object Storage.

use chrono::{DateTime, Utc};
use object_store::aws::AwsAuthorizer;
use object_store::client::HttpRequest;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::cloud::{self, Cloud, Object, PAGE, Page, query};
use super::version::Tag;
use crate::credentials::connector::failure;
use crate::credentials::{Key, foreign};
use crate::error::Result;
use crate::source::{Access, Service};
use crate::xml;

/// A bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Its URL.
    url: String,
    region: String,
    requester_pays: bool,
}

impl Bucket {
    /// The bucket called `name`.
    pub(super) fn new(name: &str, service: &Service, access: &Access) -> Result<Self> {
        let (url, region) = (service.bucket(name)?, service.region.clone());
        Ok(Self { url, region, requester_pays: access.requester_pays })
    }
}

impl Cloud for Bucket {
    /// ListObjectsV2.
    fn page_url(&self, prefix: &str, next: Option<&str>) -> String {
        // Signatures want them in order.
        let mut pairs: Vec<_> = next.map(|token| ("continuation-token", token)).into_iter().collect();
        pairs.extend([("encoding-type", "url"), ("list-type", "2"), ("max-keys", PAGE), ("prefix", prefix)]);
        format!("{}?{}", self.url, query(&pairs))
    }

    fn page(&self, text: &[u8]) -> Result<Page> {
        let page: Contents =
            xml::read(&["ListBucketResult"], text).map_err(|why| cloud::no_listing("S3", why))?;
        let encoded = page.encoding_type.as_deref() == Some("url");
        let object = |entry: Entry| Object {
            key: if encoded { decode(&entry.key) } else { entry.key.into_bytes() },
            size: entry.size,
            modified: entry.last_modified,
            tag: entry.etag.as_deref().and_then(Tag::etag),
            directory: false,
        };
        let objects = page.contents.into_iter().map(object).collect();
        Ok(Page { objects, next: page.next_continuation_token })
    }

    fn object_url(&self, key: &str, _: &Tag) -> String {
        format!("{}/{}", self.url, cloud::path(key))
    }

    fn sign(&self, request: &mut HttpRequest, key: &Key) -> Result<()> {
        let key = match key {
            Key::Nobody => return Ok(()),
            Key::Aws(key) => key,
            _ => return Err(foreign()),
        };
        AwsAuthorizer::new(key, "s3", &self.region)
            .with_request_payer(self.requester_pays)
            .try_authorize(request, None)
            .map_err(failure)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", rename = "ListBucketResult")]
struct Contents {
    #[serde(default)]
    contents: Vec<Entry>,
    encoding_type: Option<String>,
    next_continuation_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    key: String,
    size: u64,
    last_modified: DateTime<Utc>,
    #[serde(rename = "ETag")]
    etag: Option<String>,
}

/// A key as `encoding-type=url` writes it: a form's encoding, where a plus sign stands for a space.
fn decode(key: &str) -> Vec<u8> {
    percent_decode_str(&key.replace('+', " ")).collect()
}
