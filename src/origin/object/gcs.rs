//! Google Cloud Storage, by its JSON API: its listings tell generations, and a generation can be asked for.

use chrono::{DateTime, Utc};
use object_store::client::HttpRequest;
use percent_encoding::utf8_percent_encode;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

use super::cloud::{Cloud, Object, PAGE, Page, no_listing, query};
use super::version::Tag;
use crate::client::{UNRESERVED, header};
use crate::credentials::Key;
use crate::error::{Error, Kind, Result};
use crate::source::{Access, Service};

/// What is wanted of a page; much else would come.
const FIELDS: &str = "nextPageToken,items(name,size,generation,updated)";
/// The generation that an answer is of.
const GENERATION: HeaderName = HeaderName::from_static("x-goog-generation");

/// How what is kept is encoded.
const STORED: HeaderName = HeaderName::from_static("x-goog-stored-content-encoding");

/// A bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    /// The URL of its objects.
    url: String,
    /// Whom requests are billed to, where that is not the bucket's owner.
    project: Option<String>,
}

impl Bucket {
    /// The bucket called `name`.
    pub(super) fn new(name: &str, service: &Service, access: &Access) -> Result<Self> {
        let project = access.gcs.as_ref().and_then(|gcs| gcs.project.clone());
        let project = project.filter(|_| access.requester_pays);
        if access.requester_pays && project.is_none() {
            let text = "the requester pays for it, but no project is given that is billed";
            return Err(Error::new(Kind::Invalid, text));
        }
        Ok(Self { url: format!("{}/storage/v1/b/{name}/o", service.endpoint), project })
    }

    fn with_project<'a>(&'a self, mut pairs: Vec<(&'a str, &'a str)>) -> String {
        pairs.extend(self.project.as_deref().map(|project| ("userProject", project)));
        query(&pairs)
    }
}

impl Cloud for Bucket {
    fn page_url(&self, prefix: &str, next: Option<&str>) -> String {
        let mut pairs = vec![("fields", FIELDS), ("maxResults", PAGE), ("prefix", prefix)];
        pairs.extend(next.map(|token| ("pageToken", token)));
        format!("{}?{}", self.url, self.with_project(pairs))
    }

    fn page(&self, text: &[u8]) -> Result<Page> {
        let page: Items = serde_json::from_slice(text).map_err(|e| no_listing("Google Cloud Storage", e))?;
        let mut objects = Vec::with_capacity(page.items.len());
        for item in page.items {
            let size = item.size.parse().map_err(|e| no_listing("Google Cloud Storage", e))?;
            let tag = item.generation.and_then(|number| number.parse().ok()).map(Tag::Generation);
            let (key, modified) = (item.name.into_bytes(), item.updated);
            objects.push(Object { key, size, modified, tag, directory: false });
        }
        Ok(Page { objects, next: page.next_page_token })
    }

    fn object_url(&self, key: &str, tag: &Tag) -> String {
        let number = match tag {
            Tag::Generation(number) => number.to_string(),
            Tag::ETag(_) => String::new(),
        };
        let mut pairs = vec![("alt", "media")];
        pairs.extend((!number.is_empty()).then_some(("generation", number.as_str())));
        let mut all = query(&pairs);
        if self.project.is_some() {
            all = format!("{all}&{}", self.with_project(Vec::new()));
        }
        format!("{}/{}?{all}", self.url, utf8_percent_encode(key, UNRESERVED))
    }

    /// A key is one part of the path, slashes encoded.
    fn reaches(&self, key: &str) -> bool {
        !matches!(key, "." | "..")
    }

    fn tag(&self, headers: &HeaderMap) -> Option<Tag> {
        header(headers, &GENERATION)?.parse().ok().map(Tag::Generation)
    }

    fn plain(&self, headers: &HeaderMap) -> bool {
        header(headers, &CONTENT_ENCODING).is_none_or(|coding| header(headers, &STORED) == Some(coding))
    }

    fn sign(&self, request: &mut HttpRequest, key: &Key) -> Result<()> {
        // Else what is kept compressed is sent decompressed, whole, and of another size than is listed.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        if let Some(value) = key.authorization()? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Items {
    #[serde(default)]
    items: Vec<Item>,
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct Item {
    name: String,
    size: String,
    generation: Option<String>,
    updated: DateTime<Utc>,
}
