//! The API of Azure Blob Storage.

use chrono::{DateTime, Utc};
use object_store::azure::AzureAuthorizer;
use object_store::client::HttpRequest;
use percent_encoding::percent_decode_str;
use reqwest::header::HeaderValue;
use serde::Deserialize;

use super::object_api::{self, KEYS_PER_PAGE, ObjectApi, ObjectEntry, ObjectPage, not_a_listing, query};
use super::object_version::VersionTag;
use crate::auth::store_adapter::engine_error;
use crate::auth::{AuthKey, wrong_service};
use crate::error::Result;
use crate::source::BucketService;
use crate::xml;

/// The API version of anonymous requests; the signature brings its own. It is one with quoted ETags, encoded names and
/// large ranges that Azurite knows.
const API_VERSION: HeaderValue = HeaderValue::from_static("2023-11-03");

/// A container.
#[derive(Debug)]
pub(super) struct BlobContainer {
    account: String,
    /// The URL.
    url: String,
}

impl BlobContainer {
    /// The container called `name`.
    pub(super) fn new(account: &str, name: &str, service: &BucketService) -> Self {
        Self { account: account.into(), url: format!("{}/{name}", service.endpoint) }
    }
}

impl ObjectApi for BlobContainer {
    fn page_url(&self, prefix: &str, next: Option<&str>) -> String {
        let mut pairs = vec![
            ("restype", "container"),
            ("comp", "list"),
            ("maxresults", KEYS_PER_PAGE),
            ("prefix", prefix),
        ];
        pairs.extend(next.map(|marker| ("marker", marker)));
        format!("{}?{}", self.url, query(&pairs))
    }

    fn page(&self, text: &[u8]) -> Result<ObjectPage> {
        let page: Enumeration = xml::read(&["EnumerationResults"], strip_byte_order_mark(text))
            .map_err(|why| not_a_listing("Azure", why))?;
        let mut objects = Vec::with_capacity(page.blobs.blob.len());
        for Blob { name, properties } in page.blobs.blob {
            let key = match name.encoded {
                Some(true) => percent_decode_str(&name.text).collect(),
                _ => name.text.into_bytes(),
            };
            let modified = DateTime::parse_from_rfc2822(&properties.last_modified)
                .map_err(|e| not_a_listing("Azure", e))?;
            objects.push(ObjectEntry {
                key,
                size: properties.content_length.unwrap_or_default(),
                modified: modified.with_timezone(&Utc),
                tag: properties.etag.as_deref().and_then(VersionTag::etag),
                // Only accounts with a hierarchical namespace have it.
                directory: properties.resource_type.as_deref() == Some("directory"),
            });
        }
        Ok(ObjectPage { objects, next: page.next_marker.filter(|marker| !marker.is_empty()) })
    }

    fn object_url(&self, key: &str, _: &VersionTag) -> String {
        format!("{}/{}", self.url, object_api::key_path(key))
    }

    fn authorize(&self, request: &mut HttpRequest, key: &AuthKey) -> Result<()> {
        match key {
            AuthKey::Anonymous => _ = request.headers_mut().insert("x-ms-version", API_VERSION),
            AuthKey::Azure(key) => {
                AzureAuthorizer::new(key, &self.account).try_authorize(request).map_err(engine_error)?;
            }
            _ => return Err(wrong_service()),
        }
        Ok(())
    }
}

/// `text` without the byte order mark that Azure begins with.
fn strip_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Enumeration {
    #[serde(default)]
    blobs: Blobs,
    next_marker: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blobs {
    #[serde(default)]
    blob: Vec<Blob>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blob {
    name: Name,
    properties: Properties,
}

#[derive(Deserialize)]
struct Name {
    #[serde(rename = "@Encoded")]
    encoded: Option<bool>,
    #[serde(rename = "$text")]
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Properties {
    #[serde(rename = "Last-Modified")]
    last_modified: String,
    #[serde(rename = "Content-Length")]
    content_length: Option<u64>,
    etag: Option<String>,
    resource_type: Option<String>,
}
