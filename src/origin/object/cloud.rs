//! Where the services differ: their URLs, the form of their listings, how they are told who asks.

use std::fmt;

use chrono::{DateTime, Utc};
use object_store::client::HttpRequest;
use percent_encoding::{AsciiSet, utf8_percent_encode};
use reqwest::header::{CONTENT_ENCODING, ETAG, HeaderMap};

use super::version::Tag;
use crate::client::{UNRESERVED, header};
use crate::credentials::Key;
use crate::error::{Error, Kind, Result};

/// The most keys that a page is asked to have. S3 sends no more.
pub(super) const PAGE: &str = "1000";

/// A key in a path: its slashes stay.
const KEY: &AsciiSet = &UNRESERVED.remove(b'/');

/// A bucket, or what else a service calls it.
pub(super) trait Cloud: fmt::Debug + Send + Sync {
    /// The URL of the objects whose keys begin with `prefix`, in the order of their keys; of the first page, or of the
    /// one that the page before it told.
    fn page_url(&self, prefix: &str, next: Option<&str>) -> String;

    /// Reads a page.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for anything else.
    fn page(&self, text: &[u8]) -> Result<Page>;

    /// The URL of an object, in the version `tag` where a URL can say so.
    fn object_url(&self, key: &str, tag: &Tag) -> String;

    /// Whether a URL can name the object of `key`. In a path, dots are taken for steps in it, encoded or not.
    fn reaches(&self, key: &str) -> bool {
        !key.split('/').any(|part| matches!(part, "." | ".."))
    }

    /// The version that an answer tells of.
    fn tag(&self, headers: &HeaderMap) -> Option<Tag> {
        header(headers, &ETAG).and_then(Tag::etag)
    }

    /// Whether the body of an answer is what the service keeps. An upload in signed chunks leaves its mark on objects
    /// of some services, and no more.
    fn plain(&self, headers: &HeaderMap) -> bool {
        header(headers, &CONTENT_ENCODING)
            .is_none_or(|coding| matches!(coding, "" | "identity" | "aws-chunked"))
    }

    /// Says who asks.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a key of another service's.
    fn sign(&self, request: &mut HttpRequest, key: &Key) -> Result<()>;
}

/// A page of a listing.
#[derive(Debug)]
pub(super) struct Page {
    pub objects: Vec<Object>,
    /// What the next one is asked for by; `None`: there is none.
    pub next: Option<String>,
}

/// An object, as it is listed.
#[derive(Debug)]
pub(super) struct Object {
    pub key: Vec<u8>,
    pub size: u64,
    pub modified: DateTime<Utc>,
    pub tag: Option<Tag>,
    /// Whether the service says that it is a directory.
    pub directory: bool,
}

/// A query of these names and values.
pub(super) fn query(pairs: &[(&str, &str)]) -> String {
    let pairs =
        pairs.iter().map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, UNRESERVED)));
    pairs.collect::<Vec<_>>().join("&")
}

/// `key` as part of a URL's path.
pub(super) fn path(key: &str) -> String {
    utf8_percent_encode(key, KEY).to_string()
}

/// The error for a listing that is none.
pub(super) fn no_listing(service: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::with(Kind::Unsupported, format!("the answer is no {service} listing; check the endpoint"), error)
}
