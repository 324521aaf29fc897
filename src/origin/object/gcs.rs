//! Google Cloud Storage, by its JSON API: its listings tell generations, and a generation can be asked for.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::client::HttpRequest;
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use percent_encoding::utf8_percent_encode;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

use super::cloud::{self, Cloud, Object, PAGE, Page, no_listing, query};
use super::machine;
use super::service::{Service, no_credentials, retry};
use super::version::Tag;
use crate::error::{Error, Kind, Result};
use crate::origin::client::{Client, UNRESERVED, header};
use crate::source::{Access, GcsAccess};

/// Google's own service.
const ENDPOINT: &str = "https://storage.googleapis.com";
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
    /// Where tokens come from; `None`: requests carry none.
    credentials: Option<GcpCredentialProvider>,
}

impl Bucket {
    pub(super) async fn open(bucket: &str, access: &Access, client: &Client) -> Result<Self> {
        let given = access.gcs.clone().unwrap_or_default();
        let endpoint = match &given.endpoint {
            Some(text) => cloud::endpoint(text, access.allow_http)?,
            None => ENDPOINT.into(),
        };
        let project = given.project.clone().filter(|_| access.requester_pays);
        if access.requester_pays && project.is_none() {
            let text = "the requester pays for it, but no project is given that is billed";
            return Err(Error::new(Kind::Invalid, text));
        }
        let credentials = credentials(given, client).await?;
        Ok(Self { url: format!("{endpoint}/storage/v1/b/{bucket}/o"), project, credentials })
    }

    fn with_project<'a>(&'a self, mut pairs: Vec<(&'a str, &'a str)>) -> String {
        pairs.extend(self.project.as_deref().map(|project| ("userProject", project)));
        query(&pairs)
    }
}

async fn credentials(given: GcsAccess, client: &Client) -> Result<Option<GcpCredentialProvider>> {
    if given.anonymous {
        return Ok(None);
    }
    let builder = GoogleCloudStorageBuilder::new().with_bucket_name("none").with_retry(retry());
    let builder = builder.with_http_connector(Service(client.clone()));
    // What is at fault is never quoted: it may be the key.
    let (builder, wrong) = match (given.service_account, given.application_credentials) {
        (Some(key), _) => {
            let wrong = "the key of the service account is not what Google gives out: JSON with \"client_email\", \
                         \"private_key\" and \"private_key_id\"";
            (builder.with_service_account_key(key.expose()), wrong.to_owned())
        }
        (None, Some(file)) => {
            let file = file.display().to_string();
            let wrong = format!(
                "the application default credentials in {file} can't be used; their \"type\" is to be \
                 authorized_user or service_account"
            );
            (builder.with_application_credentials(file), wrong)
        }
        (None, None) => {
            machine::probe(client, machine::METADATA).await.map_err(|why| {
                let text = format!(
                    "there are no credentials for it: no service account and no application default credentials are \
                     given, and this machine has no metadata service ({why}); give the key of a service account, or \
                     ask for anonymous access"
                );
                Error::new(Kind::Refused, text)
            })?;
            (builder, "this machine's Google credentials can't be used".into())
        }
    };
    // It reads files.
    let store = tokio::task::spawn_blocking(|| builder.build()).await;
    match store {
        Ok(Ok(store)) => Ok(Some(store.credentials().clone())),
        _ => Err(Error::new(Kind::Invalid, wrong)),
    }
}

#[async_trait]
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

    async fn authorize(&self, request: &mut HttpRequest) -> Result<()> {
        // Else what is kept compressed is sent decompressed, whole, and of another size than is listed.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let credential = credentials.get_credential().await.map_err(no_credentials)?;
        if !credential.bearer.is_empty() {
            let invalid = |_| Error::new(Kind::Refused, "the token that was got is no token");
            let mut value =
                HeaderValue::from_str(&format!("Bearer {}", credential.bearer)).map_err(invalid)?;
            value.set_sensitive(true);
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
