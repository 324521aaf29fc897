//! Azure Blob Storage.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::azure::{AzureAuthorizer, AzureConfigKey, AzureCredentialProvider, MicrosoftAzureBuilder};
use object_store::client::HttpRequest;
use percent_encoding::percent_decode_str;
use reqwest::header::HeaderValue;
use serde::Deserialize;

use super::cloud::{self, Cloud, Object, PAGE, Page, no_listing, query};
use super::machine;
use super::service::{Service, failure, no_credentials, retry};
use super::version::Tag;
use crate::error::{Error, Kind, Result};
use crate::origin::client::Client;
use crate::source::{Access, AzureAccess, Secret};

/// The version of the protocol for requests that nobody signs; the others bring their own. It is the one that has ETags
/// with quotes, encoded names and large ranges, and that Azurite knows.
const VERSION: HeaderValue = HeaderValue::from_static("2023-11-03");

/// A container.
#[derive(Debug)]
pub(super) struct Container {
    account: String,
    /// Its URL.
    url: String,
    /// What requests are authorised with; `None`: they are not.
    credentials: Option<AzureCredentialProvider>,
}

impl Container {
    pub(super) async fn open(
        account: &str,
        container: &str,
        access: &Access,
        client: &Client,
    ) -> Result<Self> {
        let given = access.azure.clone().unwrap_or_default();
        let endpoint = match &given.endpoint {
            Some(text) => cloud::endpoint(text, access.allow_http)?,
            None => format!("https://{account}.blob.core.windows.net"),
        };
        let credentials = credentials(account, &given, client).await?;
        Ok(Self { account: account.into(), url: format!("{endpoint}/{container}"), credentials })
    }
}

async fn credentials(
    account: &str,
    given: &AzureAccess,
    client: &Client,
) -> Result<Option<AzureCredentialProvider>> {
    if given.anonymous {
        return Ok(None);
    }
    let secrets = given.account_key.is_some() || given.sas.is_some() || given.client_secret.is_some();
    if !secrets && given.federated_token_file.is_none() && given.identity_endpoint.is_none() {
        machine::probe(client, machine::METADATA).await.map_err(|why| {
            let text = format!(
                "there are no credentials for it: no account key, SAS, client secret or federated token is given, and \
                 this machine has no metadata service ({why}); give one of them, or ask for anonymous access"
            );
            Error::new(Kind::Refused, text)
        })?;
    }
    let builder = MicrosoftAzureBuilder::new().with_account(account).with_container_name("none");
    let builder = builder.with_retry(retry()).with_http_connector(Service(client.clone()));
    let store =
        settings(given).into_iter().fold(builder, |builder, (key, value)| builder.with_config(key, value));
    // What is at fault is never quoted: it may be the key.
    let store = store.build().map_err(|_| {
        let text = "the Azure credentials can't be used: an account key is base64, a SAS is a query (sv=..&sig=..), and \
                    a client secret or federated token has a tenant's id and a client's id beside it";
        Error::new(Kind::Invalid, text)
    })?;
    Ok(Some(store.credentials().clone()))
}

/// What was given, in `object_store`'s words.
fn settings(given: &AzureAccess) -> Vec<(AzureConfigKey, String)> {
    use AzureConfigKey as K;
    let secret = |secret: &Option<Secret>| secret.as_ref().map(|s| s.expose().to_owned());
    let file = given.federated_token_file.as_ref().map(|path| path.display().to_string());
    [
        (K::AccessKey, secret(&given.account_key)),
        (K::SasKey, secret(&given.sas)),
        (K::AuthorityId, given.tenant_id.clone()),
        (K::ClientId, given.client_id.clone()),
        (K::ClientSecret, secret(&given.client_secret)),
        (K::FederatedTokenFile, file),
        (K::AuthorityHost, given.authority.clone()),
        (K::MsiEndpoint, given.identity_endpoint.clone()),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
    .collect()
}

#[async_trait]
impl Cloud for Container {
    fn page_url(&self, prefix: &str, next: Option<&str>) -> String {
        let mut pairs =
            vec![("restype", "container"), ("comp", "list"), ("maxresults", PAGE), ("prefix", prefix)];
        pairs.extend(next.map(|marker| ("marker", marker)));
        format!("{}?{}", self.url, query(&pairs))
    }

    fn page(&self, text: &[u8]) -> Result<Page> {
        let page: Enumeration =
            quick_xml::de::from_reader(strip(text)).map_err(|e| no_listing("Azure", e))?;
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

    async fn authorize(&self, request: &mut HttpRequest) -> Result<()> {
        let Some(credentials) = &self.credentials else {
            request.headers_mut().insert("x-ms-version", VERSION);
            return Ok(());
        };
        let credential = credentials.get_credential().await.map_err(no_credentials)?;
        AzureAuthorizer::new(&credential, &self.account).try_authorize(request).map_err(failure)
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
