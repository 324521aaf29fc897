//! Where the services differ: their URLs, the form of their listings, how they are told who asks.

use std::fmt;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::client::HttpRequest;
use percent_encoding::{AsciiSet, utf8_percent_encode};
use reqwest::header::{CONTENT_ENCODING, ETAG, HeaderMap};
use url::Url;

use super::version::Tag;
use crate::error::{Error, Kind, Result};
use crate::origin::client::{UNRESERVED, header};
use crate::origin::http::loopback;

/// The most keys that a page is asked to have. S3 sends no more.
pub(super) const PAGE: &str = "1000";

/// A key in a path: its slashes stay.
const KEY: &AsciiSet = &UNRESERVED.remove(b'/');

/// A bucket, or what else a service calls it.
#[async_trait]
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
    /// [`Kind::Refused`] when there are no credentials to be had, [`Kind::Unavailable`] and [`Kind::Timeout`] when there
    /// may be later.
    async fn authorize(&self, request: &mut HttpRequest) -> Result<()>;
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

/// A service's URL that somebody gave, without a slash at its end.
///
/// # Errors
/// [`Kind::Invalid`], which says why it does not do.
pub(super) fn endpoint(text: &str, allow_http: bool) -> Result<String> {
    let invalid = |text: String| Err(Error::new(Kind::Invalid, text));
    match Url::parse(text) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => invalid(
            "the endpoint may not hold a user name or password; give credentials apart from it".into(),
        ),
        Ok(url) if url.scheme() == "http" && !allow_http && !loopback(&url) => {
            invalid(format!("the endpoint {text} is plain http; use https, or allow http explicitly"))
        }
        Ok(url)
            if matches!(url.scheme(), "http" | "https")
                && url.query().is_none()
                && url.fragment().is_none() =>
        {
            Ok(url.as_str().trim_end_matches('/').into())
        }
        _ => invalid("the endpoint is no URL of the form https://host".into()),
    }
}

/// The error for a listing that is none.
pub(super) fn no_listing(service: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::with(Kind::Unsupported, format!("the answer is no {service} listing; check the endpoint"), error)
}
