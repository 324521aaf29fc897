//! The API of S3, and of the services that speak it: Cloudflare R2, CoreWeave AI Object Storage.

use chrono::{DateTime, Utc};
use object_store::aws::AwsAuthorizer;
use object_store::client::HttpRequest;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::object_api::{self, KEYS_PER_PAGE, ObjectApi, ObjectEntry, ObjectPage, query};
use super::object_version::VersionTag;
use crate::auth::store_adapter::engine_error;
use crate::auth::{AuthKey, wrong_service};
use crate::error::Result;
use crate::source::{Access, BucketService};
use crate::xml;

/// A bucket.
#[derive(Debug)]
pub(super) struct S3Bucket {
    /// Its URL.
    url: String,
    region: String,
    requester_pays: bool,
}

impl S3Bucket {
    /// The bucket called `name`.
    pub(super) fn new(name: &str, service: &BucketService, access: &Access) -> Result<Self> {
        let (url, region) = (service.bucket(name)?, service.region.clone());
        Ok(Self { url, region, requester_pays: access.requester_pays })
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
        format!("{}?{}", self.url, query(&pairs))
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
        let objects = page.contents.into_iter().map(object).collect();
        Ok(ObjectPage { objects, next: page.next_continuation_token })
    }

    fn object_url(&self, key: &str, _: &VersionTag) -> String {
        format!("{}/{}", self.url, object_api::key_path(key))
    }

    fn authorize(&self, request: &mut HttpRequest, key: &AuthKey) -> Result<()> {
        let key = match key {
            AuthKey::Anonymous => return Ok(()),
            AuthKey::Aws(key) => key,
            _ => return Err(wrong_service()),
        };
        AwsAuthorizer::new(key, "s3", &self.region)
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
