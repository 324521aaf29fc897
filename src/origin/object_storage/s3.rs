//! The API of S3, and of the services that speak it: Cloudflare R2, CoreWeave AI Object Storage.

use chrono::{DateTime, Utc};
use object_store::aws::AwsAuthorizer;
use object_store::client::HttpRequest;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::object_api::{self, KEYS_PER_PAGE, ObjectApi, ObjectEntry, ObjectPage, query};
use super::object_version::VersionTag;
use crate::auth::store_adapter::engine_error;
use crate::auth::{AuthKey, wrong_service};
use crate::error::{Error, Kind, Result};
use crate::source::{Access, BucketService};
use crate::xml;

/// A bucket.
#[derive(Debug)]
pub(super) struct S3Bucket {
    bucket: Mutex<BucketUrl>,
    requester_pays: bool,
}

/// The address of a bucket.
#[derive(Clone, Debug)]
struct BucketUrl {
    /// The URL.
    url: String,
    region: String,
}

impl S3Bucket {
    /// The bucket called `name`.
    pub(super) fn new(name: &str, service: &BucketService, access: &Access) -> Result<Self> {
        let bucket = BucketUrl { url: service.bucket(name)?, region: service.region.clone() };
        Ok(Self { bucket: Mutex::new(bucket), requester_pays: access.requester_pays })
    }

    fn url(&self) -> String {
        self.bucket.lock().url.clone()
    }
}

impl ObjectApi for S3Bucket {
    /// ListObjectsV2.
    fn page_url(&self, prefix: &str, next: Option<&str>) -> String {
        // Signatures want them in order.
        let mut pairs: Vec<_> = next.map(|token| ("continuation-token", token)).into_iter().collect();
        pairs.extend([
            ("encoding-type", "url"),
            ("list-type", "2"),
            ("max-keys", KEYS_PER_PAGE),
            ("prefix", prefix),
        ]);
        format!("{}?{}", self.url(), query(&pairs))
    }

    fn page(&self, text: &[u8]) -> Result<ObjectPage> {
        let page: Contents =
            xml::read(&["ListBucketResult"], text).map_err(|why| object_api::not_a_listing("S3", why))?;
        let encoded = page.encoding_type.as_deref() == Some("url");
        let object = |entry: Entry| ObjectEntry {
            key: if encoded { decode(&entry.key) } else { entry.key.into_bytes() },
            size: entry.size,
            modified: entry.last_modified,
            tag: entry.etag.as_deref().and_then(VersionTag::etag),
            directory: false,
        };
        if page.is_truncated && page.next_continuation_token.is_none() {
            let text =
                "truncated listing without a continuation token; the service may not support ListObjectsV2";
            return Err(Error::new(Kind::Unsupported, text));
        }
        let objects = page.contents.into_iter().map(object).collect();
        Ok(ObjectPage { objects, next: page.next_continuation_token })
    }

    fn object_url(&self, key: &str, _: &VersionTag) -> String {
        format!("{}/{}", self.url(), object_api::key_path(key))
    }

    fn region(&self) -> Option<String> {
        Some(self.bucket.lock().region.clone())
    }

    /// AWS has a host for each region.
    fn use_region(&self, region: &str) {
        let mut bucket = self.bucket.lock();
        let host = |region: &str| format!(".{region}.amazonaws.com");
        bucket.url = bucket.url.replace(&host(&bucket.region), &host(region));
        bucket.region = region.to_owned();
    }

    fn authorize(&self, request: &mut HttpRequest, key: &AuthKey) -> Result<()> {
        let key = match key {
            AuthKey::Anonymous => return Ok(()),
            AuthKey::Aws(key) => key,
            _ => return Err(wrong_service()),
        };
        let region = self.bucket.lock().region.clone();
        AwsAuthorizer::new(key, "s3", &region)
            .with_request_payer(self.requester_pays)
            .try_authorize(request, None)
            .map_err(engine_error)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", rename = "ListBucketResult")]
struct Contents {
    #[serde(default)]
    contents: Vec<Entry>,
    encoding_type: Option<String>,
    #[serde(default)]
    is_truncated: bool,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s3_bucket_of_each_aws_region_is_at_its_host() {
        let access = Access::default();
        let service = BucketService::of(&"s3://b".parse().expect("a URI"), &access).expect("AWS");
        let bucket = S3Bucket::new("b", &service, &access).expect("a bucket");
        bucket.use_region("eu-west-1");
        assert_eq!(bucket.url(), "https://s3.eu-west-1.amazonaws.com/b");
        assert_eq!(bucket.region().as_deref(), Some("eu-west-1"));
    }
}
