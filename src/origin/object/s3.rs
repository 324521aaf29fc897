//! S3, and the services that speak its protocol: Cloudflare R2, CoreWeave AI Object Storage.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::StaticCredentialProvider;
use object_store::aws::{
    AmazonS3Builder, AmazonS3ConfigKey, AwsAuthorizer, AwsCredential, AwsCredentialProvider,
};
use object_store::client::HttpRequest;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use std::sync::Arc;
use url::{Host, Url};

use super::cloud::{self, Cloud, Object, PAGE, Page, no_listing, query};
use super::machine;
use super::service::{Service, failure, no_credentials, retry};
use super::version::Tag;
use crate::error::{Error, Kind, Result};
use crate::origin::client::Client;
use crate::source::{Access, AwsMachine, S3Access, Secret, Uri};

/// A bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Its URL.
    url: String,
    region: String,
    /// What requests are signed with; `None`: they are not.
    credentials: Option<AwsCredentialProvider>,
    requester_pays: bool,
}

/// What a service has that nobody says otherwise of.
struct Defaults {
    region: &'static str,
    endpoint: String,
    virtual_host: bool,
}

impl Bucket {
    /// Opens the bucket that `uri` names.
    pub(super) async fn open(uri: &Uri, access: &Access, client: &Client) -> Result<Self> {
        let (bucket, given) = match uri {
            Uri::S3 { bucket, .. } => (bucket, &access.s3),
            Uri::R2 { bucket, .. } => (bucket, &access.r2),
            Uri::Cw { bucket, .. } => (bucket, &access.cw),
            _ => return Err(Error::new(Kind::Unsupported, "it is none that speaks S3")),
        };
        let given = given.clone().unwrap_or_default();
        let defaults = Defaults::of(uri, given.region.as_deref());
        let region = given.region.clone().unwrap_or_else(|| defaults.region.into());
        if region.is_empty() || !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(Error::new(Kind::Invalid, format!("{region:?} is not the name of a region")));
        }
        let endpoint = match &given.endpoint {
            Some(text) => cloud::endpoint(text, access.allow_http)?,
            None => defaults.endpoint,
        };
        let virtual_host = access.virtual_host.unwrap_or(defaults.virtual_host);
        let url = if virtual_host { hosted(&endpoint, bucket)? } else { format!("{endpoint}/{bucket}") };
        // What a machine has of AWS's opens nothing elsewhere.
        let aws = matches!(uri, Uri::S3 { .. });
        let machine = aws.then(|| access.aws.clone().unwrap_or_default());
        let credentials = credentials(&given, machine.as_ref(), &region, client).await?;
        Ok(Self { url, region, credentials, requester_pays: access.requester_pays })
    }
}

impl Defaults {
    fn of(uri: &Uri, region: Option<&str>) -> Self {
        match uri {
            // https://developers.cloudflare.com/r2/api/s3/api/
            Uri::R2 { account, .. } => Self {
                region: "auto",
                endpoint: format!("https://{account}.r2.cloudflarestorage.com"),
                virtual_host: false,
            },
            // https://docs.coreweave.com/docs/products/storage/object-storage: buckets have hosts of their own.
            Uri::Cw { .. } => {
                Self { region: "US-EAST-04A", endpoint: "https://cwobject.com".into(), virtual_host: true }
            }
            _ => {
                let name = region.unwrap_or("us-east-1");
                let china = if name.starts_with("cn-") { ".cn" } else { "" };
                let endpoint = format!("https://s3.{name}.amazonaws.com{china}");
                Self { region: "us-east-1", endpoint, virtual_host: false }
            }
        }
    }
}

/// The URL of a bucket that has a host of its own.
fn hosted(endpoint: &str, bucket: &str) -> Result<String> {
    let host = Url::parse(endpoint).ok().filter(|url| matches!(url.host(), Some(Host::Domain(_))));
    match (host, endpoint.split_once("://")) {
        (Some(_), Some((scheme, host))) => Ok(format!("{scheme}://{bucket}.{host}")),
        _ => Err(Error::new(
            Kind::Invalid,
            format!("{endpoint} has no name that a bucket's could stand before; name buckets by path"),
        )),
    }
}

/// What requests are signed with: the key that was given, else what `machine` has.
async fn credentials(
    given: &S3Access,
    machine: Option<&AwsMachine>,
    region: &str,
    client: &Client,
) -> Result<Option<AwsCredentialProvider>> {
    if given.anonymous {
        return Ok(None);
    }
    if let (Some(id), Some(secret)) = (&given.access_key_id, &given.secret_access_key) {
        let token = given.session_token.as_ref().map(|token| token.expose().to_owned());
        let (key_id, secret_key) = (id.clone(), Secret::expose(secret).to_owned());
        let credential = AwsCredential { key_id, secret_key, token };
        return Ok(Some(Arc::new(StaticCredentialProvider::new(credential))));
    }
    let key = "give an access key's id and secret, or ask for anonymous access";
    let Some(machine) = machine else {
        return Err(Error::new(Kind::Refused, format!("there are no credentials for it; {key}")));
    };
    let builder = match of_machine(machine) {
        Some(builder) => builder,
        None => {
            let address = machine.metadata.as_deref().unwrap_or(machine::METADATA);
            machine::probe(client, address).await.map_err(|why| {
                let text = format!(
                    "there are no credentials for it: no access key is given, and this machine has no web identity \
                     token with a role, no container's credentials, and no metadata service ({why}); {key}"
                );
                Error::new(Kind::Refused, text)
            })?;
            AmazonS3Builder::new().with_metadata_endpoint(address)
        }
    };
    // The bucket's name matters to nothing that is asked of this store.
    let builder = builder.with_bucket_name("none").with_region(region).with_retry(retry());
    let store = builder.with_http_connector(Service(client.clone())).build();
    let store =
        store.map_err(|_| Error::new(Kind::Invalid, "this machine's AWS credentials can't be used"))?;
    Ok(Some(store.credentials().clone()))
}

/// What the settings of this machine lead to, in the order of AWS's own tools.
fn of_machine(machine: &AwsMachine) -> Option<AmazonS3Builder> {
    use AmazonS3ConfigKey as K;
    let builder = AmazonS3Builder::new();
    if let (Some(file), Some(role)) = (&machine.token_file, &machine.role) {
        let file = file.to_str()?;
        let builder = builder.with_config(K::WebIdentityTokenFile, file).with_config(K::RoleArn, role);
        return Some(match &machine.session {
            Some(session) => builder.with_config(K::RoleSessionName, session),
            None => builder,
        });
    }
    if let Some(path) = &machine.container {
        return Some(builder.with_config(K::ContainerCredentialsRelativeUri, path));
    }
    let (url, file) = machine.pod.as_ref()?;
    let builder = builder.with_config(K::ContainerCredentialsFullUri, url);
    Some(builder.with_config(K::ContainerAuthorizationTokenFile, file.to_str()?))
}

#[async_trait]
impl Cloud for Bucket {
    /// ListObjectsV2.
    fn page_url(&self, prefix: &str, next: Option<&str>) -> String {
        // Signatures want them in order.
        let mut pairs: Vec<_> = next.map(|token| ("continuation-token", token)).into_iter().collect();
        pairs.extend([("encoding-type", "url"), ("list-type", "2"), ("max-keys", PAGE), ("prefix", prefix)]);
        format!("{}?{}", self.url, query(&pairs))
    }

    fn page(&self, text: &[u8]) -> Result<Page> {
        let page: Contents = quick_xml::de::from_reader(text).map_err(|e| no_listing("S3", e))?;
        let encoded = page.encoding_type.as_deref() == Some("url");
        let object = |entry: Entry| Object {
            key: if encoded { decode(&entry.key) } else { entry.key.into_bytes() },
            size: entry.size,
            modified: entry.last_modified,
            tag: entry.etag.as_deref().and_then(Tag::etag),
            directory: false,
        };
        let objects = page.contents.into_iter().map(object).collect();
        Ok(Page { objects, next: page.next_continuation_token })
    }

    fn object_url(&self, key: &str, _: &Tag) -> String {
        format!("{}/{}", self.url, cloud::path(key))
    }

    async fn authorize(&self, request: &mut HttpRequest) -> Result<()> {
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let credential = credentials.get_credential().await.map_err(no_credentials)?;
        AwsAuthorizer::new(&credential, "s3", &self.region)
            .with_request_payer(self.requester_pays)
            .try_authorize(request, None)
            .map_err(failure)
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
