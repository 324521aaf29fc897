//! The differences between the services: their URLs, the format of their listings, how requests are authorized.

use std::fmt;

use chrono::{DateTime, Utc};
use object_store::client::HttpRequest;
use percent_encoding::{AsciiSet, utf8_percent_encode};
use reqwest::header::{CONTENT_ENCODING, ETAG, HeaderMap};

use super::object_version::VersionTag;
use crate::auth::AuthKey;
use crate::error::{Error, Kind, Result};
use crate::http_client::{PATH_SEGMENT_ENCODE_SET, header};

/// The most keys that a page is asked to have. S3 sends no more.
pub(super) const KEYS_PER_PAGE: &str = "1000";

/// The characters that are percent-encoded in a key in a path: its slashes stay.
const ENCODED_IN_KEY: &AsciiSet = &PATH_SEGMENT_ENCODE_SET.remove(b'/');

/// The API of one bucket, or whatever a service calls it.
pub(super) trait ObjectApi: fmt::Debug + Send + Sync {
    /// The URL of a page of the objects whose keys begin with `prefix`: the first, or the one that `next` of the page
    /// before it names.
    fn page_url(&self, prefix: &str, next: Option<&str>) -> String;

    /// Reads a page.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for a text that is not one.
    fn page(&self, text: &[u8]) -> Result<ObjectPage>;

    /// The URL of an object, of the version `tag` where a URL can name one.
    fn object_url(&self, key: &str, tag: &VersionTag) -> String;

    /// Whether a URL can name the object of `key`. In a path, `.` and `..` are steps, encoded or not.
    fn can_name(&self, key: &str) -> bool {
        !key.split('/').any(|part| matches!(part, "." | ".."))
    }

    /// The version of the object that a response is of; `None` where the service does not tell.
    fn version_tag(&self, headers: &HeaderMap) -> Option<VersionTag> {
        header(headers, &ETAG).and_then(VersionTag::etag)
    }

    /// Whether the body of a response is what the service stores. An upload in signed chunks leaves `aws-chunked` on
    /// objects of some services, whose content is plain all the same.
    fn is_stored_encoding(&self, headers: &HeaderMap) -> bool {
        header(headers, &CONTENT_ENCODING)
            .is_none_or(|coding| matches!(coding, "" | "identity" | "aws-chunked"))
    }

    /// The region that requests are signed for, where the service has any.
    fn region(&self) -> Option<String> {
        None
    }

    /// Signs for `region` from now on, and asks there: the service says that the bucket is in it.
    fn use_region(&self, _region: &str) {}

    /// Signs a request, or adds its token.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a key of another service.
    fn authorize(&self, request: &mut HttpRequest, key: &AuthKey) -> Result<()>;
}

/// A page of a listing.
#[derive(Debug)]
pub(super) struct ObjectPage {
    pub objects: Vec<ObjectEntry>,
    /// The cursor of the next page; `None` where there is none.
    pub next: Option<String>,
}

/// An object in a listing.
#[derive(Debug)]
pub(super) struct ObjectEntry {
    pub key: Vec<u8>,
    pub size: u64,
    pub modified: DateTime<Utc>,
    pub tag: Option<VersionTag>,
    /// Whether the service says that it is a directory.
    pub directory: bool,
}

/// Encodes a query of these names and values.
pub(super) fn query(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, PATH_SEGMENT_ENCODE_SET)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Encodes `key` for a URL's path.
pub(super) fn key_path(key: &str) -> String {
    utf8_percent_encode(key, ENCODED_IN_KEY).to_string()
}

/// The error for a response that is not a listing.
pub(super) fn not_a_listing(
    service: &str,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::with(
        Kind::Unsupported,
        format!("the response is not a listing of {service}; check the endpoint"),
        error,
    )
}
