//! The JSON API of Google Cloud Storage: its listings name generations, and a generation can be asked for.

use chrono::{DateTime, Utc};
use object_store::client::HttpRequest;
use percent_encoding::utf8_percent_encode;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

use super::object_api::{KEYS_PER_PAGE, ObjectApi, ObjectEntry, ObjectPage, not_a_listing, query};
use super::object_version::VersionTag;
use crate::auth::AuthKey;
use crate::error::{Error, Kind, Result};
use crate::http_client::{PATH_SEGMENT_ENCODE_SET, header};
use crate::source::{Access, BucketService};

/// The fields that a page is asked to have; there are many more. Without `kind` an empty page would be `{}`, as other servers
/// answer.
const LISTING_FIELDS: &str = "kind,nextPageToken,items(name,size,generation,updated)";
/// The header with the generation of the object.
const GENERATION_HEADER: HeaderName = HeaderName::from_static("x-goog-generation");
/// The header with the encoding of the object as it is stored.
const STORED_ENCODING_HEADER: HeaderName = HeaderName::from_static("x-goog-stored-content-encoding");

/// A bucket.
#[derive(Debug)]
pub(super) struct GcsBucket {
    /// The URL of its objects.
    url: String,
    /// The project that requests are billed to, where that is not the bucket owner's.
    project: Option<String>,
}

impl GcsBucket {
    /// The bucket called `name`.
    pub(super) fn new(name: &str, service: &BucketService, access: &Access) -> Result<Self> {
        let project = access.gcs.as_ref().and_then(|gcs| gcs.project.clone());
        let project = project.filter(|_| access.requester_pays);
        if access.requester_pays && project.is_none() {
            let text = "requester pays is set, but no project to bill is given";
            return Err(Error::new(Kind::Invalid, text));
        }
        Ok(Self { url: format!("{}/storage/v1/b/{name}/o", service.endpoint), project })
    }

    fn with_project<'a>(&'a self, mut pairs: Vec<(&'a str, &'a str)>) -> String {
        pairs.extend(self.project.as_deref().map(|project| ("userProject", project)));
        query(&pairs)
    }
}

impl ObjectApi for GcsBucket {
    fn page_url(&self, prefix: &str, next: Option<&str>) -> String {
        let mut pairs = vec![("fields", LISTING_FIELDS), ("maxResults", KEYS_PER_PAGE), ("prefix", prefix)];
        pairs.extend(next.map(|token| ("pageToken", token)));
        format!("{}?{}", self.url, self.with_project(pairs))
    }

    fn page(&self, text: &[u8]) -> Result<ObjectPage> {
        let page: Items =
            serde_json::from_slice(text).map_err(|e| not_a_listing("Google Cloud Storage", e))?;
        if page.kind.is_none() && page.items.is_empty() {
            return Err(not_a_listing("Google Cloud Storage", "no `kind` field"));
        }
        let mut objects = Vec::with_capacity(page.items.len());
        for item in page.items {
            let size = item.size.parse().map_err(|e| not_a_listing("Google Cloud Storage", e))?;
            let tag = item.generation.and_then(|number| number.parse().ok()).map(VersionTag::Generation);
            let (key, modified) = (item.name.into_bytes(), item.updated);
            objects.push(ObjectEntry { key, size, modified, tag, directory: false });
        }
        Ok(ObjectPage { objects, next: page.next_page_token })
    }

    fn object_url(&self, key: &str, tag: &VersionTag) -> String {
        let number = match tag {
            VersionTag::Generation(number) => number.to_string(),
            VersionTag::ETag(_) => String::new(),
        };
        let mut pairs = vec![("alt", "media")];
        pairs.extend((!number.is_empty()).then_some(("generation", number.as_str())));
        let mut all = query(&pairs);
        if self.project.is_some() {
            all = format!("{all}&{}", self.with_project(Vec::new()));
        }
        format!("{}/{}?{all}", self.url, utf8_percent_encode(key, PATH_SEGMENT_ENCODE_SET))
    }

    /// A key is one part of the path, slashes encoded.
    fn can_name(&self, key: &str) -> bool {
        !matches!(key, "." | "..")
    }

    fn version_tag(&self, headers: &HeaderMap) -> Option<VersionTag> {
        header(headers, &GENERATION_HEADER)?.parse().ok().map(VersionTag::Generation)
    }

    fn is_stored_encoding(&self, headers: &HeaderMap) -> bool {
        header(headers, &CONTENT_ENCODING)
            .is_none_or(|coding| header(headers, &STORED_ENCODING_HEADER) == Some(coding))
    }

    fn authorize(&self, request: &mut HttpRequest, key: &AuthKey) -> Result<()> {
        // Without it an object that is stored compressed is sent decompressed, whole, and of another size than listed.
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
    /// `storage#objects`.
    kind: Option<String>,
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
