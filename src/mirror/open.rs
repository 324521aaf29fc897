//! Opening the store that a mirror lies in: a local directory or a bucket of any cloud.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{Certificate, ClientOptions, ObjectStore};
use url::{Host, Url};

use super::store::innermost;
use crate::error::{Error, Kind, Result};
use crate::source::{Access, AzureAccess, GcsAccess, S3Access, Secret, Uri};

/// How long a connection may take to come about (DESIGN, section 6).
const CONNECT: Duration = Duration::from_secs(3);
/// How long one request may take: a part of an upload over a slow line, or a copy of 5 GiB within the store.
const REQUEST: Duration = Duration::from_secs(600);

/// Opens the store that `uri` names; a local directory is made if it is missing.
///
/// # Errors
/// [`Kind::Invalid`], [`Kind::Unsupported`] for what can't hold a mirror, [`Kind::Disk`].
pub fn open(uri: &Uri, access: &Access) -> Result<Arc<dyn ObjectStore>> {
    // What is at fault is not quoted where it may be a key.
    let invalid = |e: object_store::Error| {
        let why = innermost(&e);
        Error::new(Kind::Invalid, format!("the mirror {uri} can't be opened: {why}"))
    };
    let given = |access: &Option<S3Access>| access.clone().unwrap_or_default();
    Ok(match uri {
        Uri::File(path) => local(path)?,
        Uri::S3 { bucket, prefix } => below(
            s3(bucket, "us-east-1", None, &given(&access.s3), access)?.build().map_err(invalid)?,
            prefix,
        ),
        // https://developers.cloudflare.com/r2/api/s3/api/
        Uri::R2 { account, bucket, prefix } => {
            let endpoint = format!("https://{account}.r2.cloudflarestorage.com");
            below(
                s3(bucket, "auto", Some(endpoint), &given(&access.r2), access)?.build().map_err(invalid)?,
                prefix,
            )
        }
        // https://docs.coreweave.com/docs/products/storage/object-storage: buckets have hosts of their own.
        Uri::Cw { bucket, prefix } => {
            let endpoint = Some(format!("https://{bucket}.cwobject.com"));
            let store = s3(bucket, "US-EAST-04A", endpoint, &given(&access.cw), access)?;
            let hosted =
                access.virtual_host.unwrap_or(access.cw.as_ref().is_none_or(|cw| cw.endpoint.is_none()));
            below(store.with_virtual_hosted_style_request(hosted).build().map_err(invalid)?, prefix)
        }
        Uri::Gs { bucket, prefix } => below(gcs(bucket, access)?.build().map_err(invalid)?, prefix),
        Uri::Azure { account, container, prefix } => {
            below(azure(account, container, access)?.build().map_err(invalid)?, prefix)
        }
        Uri::Http(_) | Uri::Hf { .. } => {
            let text = format!("{uri} can't hold a mirror; use a bucket, or file:///directory");
            return Err(Error::new(Kind::Unsupported, text));
        }
    })
}

fn below(store: impl ObjectStore, prefix: &str) -> Arc<dyn ObjectStore> {
    Arc::new(PrefixStore::new(store, prefix))
}

fn local(path: &Path) -> Result<Arc<dyn ObjectStore>> {
    let fault = |e: io::Error| Error::disk(format!("cannot use {} as a mirror", path.display()), e);
    std::fs::create_dir_all(path).map_err(fault)?;
    let store = LocalFileSystem::new_with_prefix(path).map_err(|e| fault(io::Error::other(innermost(&e))))?;
    Ok(Arc::new(store.with_fsync(true)))
}

/// How every service is asked.
fn client(access: &Access, http: bool) -> Result<ClientOptions> {
    let mut client =
        ClientOptions::new().with_connect_timeout(CONNECT).with_timeout(REQUEST).with_allow_http(http);
    if let Some(authorities) = &access.authorities {
        let wrong = |_| Error::new(Kind::Invalid, "the authorities to trust are no certificates (PEM)");
        for certificate in Certificate::from_pem_bundle(authorities.as_bytes()).map_err(wrong)? {
            client = client.with_root_certificate(certificate);
        }
    }
    Ok(client)
}

fn s3(
    bucket: &str,
    region: &str,
    endpoint: Option<String>,
    given: &S3Access,
    access: &Access,
) -> Result<AmazonS3Builder> {
    let endpoint = given.endpoint.clone().or(endpoint);
    let http = endpoint.as_deref().map(|endpoint| plain(endpoint, access.allow_http)).transpose()?;
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(given.region.as_deref().unwrap_or(region))
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_skip_signature(given.anonymous)
        .with_virtual_hosted_style_request(access.virtual_host.unwrap_or(false))
        .with_client_options(client(access, http.unwrap_or(false))?);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    use AmazonS3ConfigKey as K;
    let machine = access.aws.clone().unwrap_or_default();
    let text = |path: &std::path::PathBuf| path.display().to_string();
    let keys = [
        (K::AccessKeyId, given.access_key_id.clone()),
        (K::SecretAccessKey, secret(&given.secret_access_key)),
        (K::Token, secret(&given.session_token)),
        (K::WebIdentityTokenFile, machine.token_file.as_ref().map(text)),
        (K::RoleArn, machine.role),
        (K::RoleSessionName, machine.session),
        (K::ContainerCredentialsRelativeUri, machine.container),
        (K::ContainerCredentialsFullUri, machine.pod.as_ref().map(|(url, _)| url.clone())),
        (K::ContainerAuthorizationTokenFile, machine.pod.as_ref().map(|(_, file)| text(file))),
        (K::MetadataEndpoint, machine.metadata),
    ];
    Ok(keys.into_iter().fold(builder, |builder, (key, value)| match value {
        Some(value) => builder.with_config(key, value),
        None => builder,
    }))
}

fn gcs(bucket: &str, access: &Access) -> Result<GoogleCloudStorageBuilder> {
    let GcsAccess { service_account, application_credentials, endpoint, anonymous, .. } =
        access.gcs.clone().unwrap_or_default();
    let http = endpoint.as_deref().map(|endpoint| plain(endpoint, access.allow_http)).transpose()?;
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(bucket)
        .with_skip_signature(anonymous)
        .with_client_options(client(access, http.unwrap_or(false))?);
    if let Some(endpoint) = endpoint {
        builder = builder.with_base_url(&endpoint);
    }
    Ok(match (service_account, application_credentials) {
        (Some(key), _) => builder.with_service_account_key(key.expose()),
        (None, Some(file)) => builder.with_application_credentials(file.display().to_string()),
        (None, None) => builder,
    })
}

fn azure(account: &str, container: &str, access: &Access) -> Result<MicrosoftAzureBuilder> {
    let given: AzureAccess = access.azure.clone().unwrap_or_default();
    let http = given.endpoint.as_deref().map(|endpoint| plain(endpoint, access.allow_http)).transpose()?;
    let builder = MicrosoftAzureBuilder::new()
        .with_account(account)
        .with_container_name(container)
        .with_skip_signature(given.anonymous)
        .with_client_options(client(access, http.unwrap_or(false))?);
    use AzureConfigKey as K;
    let keys = [
        (K::Endpoint, given.endpoint),
        (K::AccessKey, secret(&given.account_key)),
        (K::SasKey, secret(&given.sas)),
        (K::AuthorityId, given.tenant_id),
        (K::ClientId, given.client_id),
        (K::ClientSecret, secret(&given.client_secret)),
        (K::FederatedTokenFile, given.federated_token_file.map(|path| path.display().to_string())),
        (K::AuthorityHost, given.authority),
        (K::MsiEndpoint, given.identity_endpoint),
    ];
    Ok(keys.into_iter().fold(builder, |builder, (key, value)| match value {
        Some(value) => builder.with_config(key, value),
        None => builder,
    }))
}

fn secret(secret: &Option<Secret>) -> Option<String> {
    secret.as_ref().map(|secret| secret.expose().to_owned())
}

/// Whether an endpoint is reached by plain http, which must be allowed unless that is this machine.
fn plain(endpoint: &str, allowed: bool) -> Result<bool> {
    let url = Url::parse(endpoint).ok().filter(|url| url.username().is_empty() && url.password().is_none());
    let url =
        url.ok_or_else(|| Error::new(Kind::Invalid, "the endpoint is no URL of the form https://host"))?;
    let here = match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    if url.scheme() == "http" && !here && !allowed {
        let text = format!("the endpoint {endpoint} is plain http; use https, or allow http explicitly");
        return Err(Error::new(Kind::Invalid, text));
    }
    Ok(url.scheme() == "http")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_every_cloud_open_and_other_things_do_not() {
        let s3 = S3Access {
            access_key_id: Some("id".into()),
            secret_access_key: Some(Secret::new("hush")),
            ..S3Access::default()
        };
        let access = Access {
            s3: Some(s3.clone()),
            r2: Some(s3.clone()),
            cw: Some(s3.clone()),
            gcs: Some(GcsAccess { anonymous: true, ..GcsAccess::default() }),
            azure: Some(AzureAccess { anonymous: true, ..AzureAccess::default() }),
            ..Access::default()
        };
        for uri in ["s3://b/p", "r2://account.b/p", "cw://b", "gs://b/p", "azure://account/container/p"] {
            open(&uri.parse().expect(uri), &access).expect(uri);
        }
        for uri in ["https://h/x", "hf://a/b"] {
            let error = open(&uri.parse().expect(uri), &access).expect_err("no store");
            assert_eq!(error.kind(), Kind::Unsupported, "{uri}");
        }
        let s3 = Some(S3Access { endpoint: Some("http://far.example".into()), ..s3 });
        let far = Access { s3, ..access };
        let error = open(&"s3://b".parse().expect("a URI"), &far).expect_err("plain http");
        assert!(error.to_string().contains("plain http") && !error.to_string().contains("hush"), "{error}");
        open(&"s3://b".parse().expect("a URI"), &Access { allow_http: true, ..far }).expect("allowed");
    }
}
