//! Azure Blob Storage.

use chrono::{DateTime, Utc};
use object_store::azure::AzureAuthorizer;
use object_store::client::HttpRequest;
use percent_encoding::percent_decode_str;
use reqwest::header::HeaderValue;
use serde::Deserialize;

use super::cloud::{self, Cloud, Object, PAGE, Page, no_listing, query};
use super::version::Tag;
use crate::credentials::connector::failure;
use crate::credentials::{Key, foreign};
use crate::error::Result;
use crate::source::Service;
use crate::xml;

/// The version of the protocol for requests that nobody signs; the others bring their own. It is the one that has ETags
/// with quotes, encoded names and large ranges, and that Azurite knows.
const VERSION: HeaderValue = HeaderValue::from_static("2023-11-03");

/// A container.
#[derive(Debug)]
pub(super) struct Container {
    account: String,
    /// Its URL.
    url: String,
}

impl Container {
    /// The container called `name`.
    pub(super) fn new(account: &str, name: &str, service: &Service) -> Self {
        Self { account: account.into(), url: format!("{}/{name}", service.endpoint) }
    }
}

impl Cloud for Container {
    fn page_url(&self, prefix: &str, next: Option<&str>) -> String {
        let mut pairs =
            vec![("restype", "container"), ("comp", "list"), ("maxresults", PAGE), ("prefix", prefix)];
        pairs.extend(next.map(|marker| ("marker", marker)));
        format!("{}?{}", self.url, query(&pairs))
    }

    fn page(&self, text: &[u8]) -> Result<Page> {
        let page: Enumeration =
            xml::read(&["EnumerationResults"], strip(text)).map_err(|why| no_listing("Azure", why))?;
        let mut objects = Vec::with_capacity(page.blobs.blob.len());
        for Blob { name, properties } in page.blobs.blob {
            let key = match name.encoded {
                Some(true) => percent_decode_str(&name.text).collect(),
                _ => name.text.into_bytes(),
            };
            let modified = DateTime::parse_from_rfc2822(&properties.last_modified)
                .map_err(|e| no_listing("Azure", e))?;
            objects.push(Object {
                key,
                size: properties.content_length.unwrap_or_default(),
                modified: modified.with_timezone(&Utc),
                tag: properties.etag.as_deref().and_then(Tag::etag),
                // Where the account has a hierarchical namespace.
                directory: properties.resource_type.as_deref() == Some("directory"),
            });
        }
        Ok(Page { objects, next: page.next_marker.filter(|marker| !marker.is_empty()) })
    }

    fn object_url(&self, key: &str, _: &Tag) -> String {
        format!("{}/{}", self.url, cloud::path(key))
    }

    fn sign(&self, request: &mut HttpRequest, key: &Key) -> Result<()> {
        match key {
            Key::Nobody => _ = request.headers_mut().insert("x-ms-version", VERSION),
            Key::Azure(key) => {
                AzureAuthorizer::new(key, &self.account).try_authorize(request).map_err(failure)?;
            }
            _ => return Err(foreign()),
        }
        Ok(())
    }
}

/// `text` without the mark of its encoding, which Azure begins with.
fn strip(text: &[u8]) -> &[u8] {
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
