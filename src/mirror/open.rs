//! Opening the store that a mirror lies in: a local directory or a bucket of any cloud.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use reqwest::redirect::Policy;

use super::multipart::MirrorStore;
use super::store::root_cause;
use crate::auth::KeyCache;
use crate::auth::store_connector::StoreConnector;
use crate::auth::store_keys::StoreKeys;
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient};
use crate::source::{Access, BucketService, Uri, not_object_storage};

/// The timeout of one request that moves much: a part of an upload over a slow line, or a copy of 5 GiB within the store.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// A store, and its credentials where it is no local directory.
type Opened = (MirrorStore, Option<Arc<KeyCache>>);

/// Refuses what can't hold a mirror.
///
/// # Errors
/// [`Kind::Unsupported`].
pub fn check_location(uri: &Uri) -> Result<()> {
    if matches!(uri, Uri::Http(_) | Uri::Hf { .. } | Uri::Bt(_)) {
        let text = format!("{uri} cannot hold a mirror; use a bucket, or file:///directory");
        return Err(Error::new(Kind::Unsupported, text));
    }
    Ok(())
}

/// Opens the store that `uri` names; a local directory is made if it is missing.
///
/// # Errors
/// [`Kind::Invalid`], [`Kind::Unsupported`] for what can't hold a mirror, [`Kind::Disk`].
pub fn open(uri: &Uri, access: &Access) -> Result<Opened> {
    check_location(uri)?;
    match uri {
        Uri::File(path) => Ok((local(path)?, None)),
        _ => {
            let keys =
                KeyCache::lazy(uri, access, &HttpClient::new(Policy::none(), access.authorities.as_deref())?);
            let keys = Arc::new(keys);
            let store = cloud(uri, access, &keys)
                .map_err(|e| e.context(format!("the mirror {uri} cannot be opened")))?;
            Ok((store, Some(keys)))
        }
    }
}

/// Opens a bucket, where its service is and with the keys that an origin in it would have.
fn cloud(uri: &Uri, access: &Access, keys: &Arc<KeyCache>) -> Result<MirrorStore> {
    // The fault is not quoted where it may be a key.
    let invalid = |e: object_store::Error| Error::new(Kind::Invalid, root_cause(&e));
    let service = BucketService::of(uri, access)?;
    let client = http_client::mirror_client(access.authorities.as_deref(), REQUEST_TIMEOUT)?;
    let region = Some(service.region.clone()).filter(|region| !region.is_empty());
    let account = match uri {
        Uri::Azure { account, .. } => Some(account.clone()),
        _ => None,
    };
    let connector = StoreConnector { keys: keys.clone(), client, region, account };
    let anonymous = access.is_anonymous(uri);
    Ok(match uri {
        Uri::S3 { bucket, prefix } | Uri::R2 { bucket, prefix, .. } | Uri::Cw { bucket, prefix } => {
            let builder = AmazonS3Builder::new()
                .with_bucket_name(bucket)
                .with_region(&service.region)
                // The URL is the bucket's own, whichever way that is named in it.
                .with_endpoint(service.bucket(bucket)?)
                .with_virtual_hosted_style_request(true)
                .with_conditional_put(S3ConditionalPut::ETagMatch)
                .with_credentials(StoreKeys::aws(keys))
                .with_skip_signature(anonymous)
                .with_http_connector(connector);
            MirrorStore::service(Arc::new(builder.build().map_err(invalid)?), prefix)
        }
        Uri::Gs { bucket, prefix } => {
            let builder = GoogleCloudStorageBuilder::new()
                .with_bucket_name(bucket)
                .with_base_url(&service.endpoint)
                .with_credentials(StoreKeys::google(keys))
                .with_skip_signature(anonymous)
                .with_http_connector(connector);
            MirrorStore::service(Arc::new(builder.build().map_err(invalid)?), prefix)
        }
        Uri::Azure { account, container, prefix } => {
            let builder = MicrosoftAzureBuilder::new()
                .with_account(account)
                .with_container_name(container)
                .with_config(AzureConfigKey::Endpoint, &service.endpoint)
                .with_credentials(StoreKeys::azure(keys))
                .with_skip_signature(anonymous)
                .with_http_connector(connector);
            MirrorStore::service(Arc::new(builder.build().map_err(invalid)?), prefix)
        }
        _ => return Err(not_object_storage(uri)),
    })
}

fn local(path: &Path) -> Result<MirrorStore> {
    let fault = |e: io::Error| Error::disk(format!("cannot use {} as a mirror", path.display()), e);
    std::fs::create_dir_all(path).map_err(fault)?;
    let store =
        LocalFileSystem::new_with_prefix(path).map_err(|e| fault(io::Error::other(root_cause(&e))))?;
    Ok(MirrorStore::directory(store.with_fsync(true), path.to_owned()))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::mirror::Mirror;
    use crate::source::{AuthMethod, AzureAccess, GcsAccess, S3Access, Secret, SecretStore};

    #[test]
    fn open_accepts_buckets_of_every_cloud_only() {
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

    /// Whether a request has arrived, with the document that it carries, if any.
    fn is_whole(request: &[u8]) -> bool {
        let bare = request.starts_with(b"GET") && request.ends_with(b"\r\n\r\n");
        bare || request.ends_with(b"}\n") || request.ends_with(b"</Delete>") || request.ends_with(b"--\r\n")
    }

    /// A service that answers one request after the other with these, and then tells what it was asked, in lower case.
    async fn service(answers: &'static [Answer]) -> (String, tokio::task::JoinHandle<Vec<String>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let server = tokio::spawn(async move {
            let mut requests = Vec::new();
            for (head, body) in answers {
                let (mut connection, _) = listener.accept().await.expect("a connection");
                let mut request = Vec::new();
                while !is_whole(&request) {
                    assert_ne!(connection.read_buf(&mut request).await.expect("read"), 0);
                }
                requests.push(String::from_utf8(request).expect("text").to_lowercase());
                if (*head, *body) == LOST {
                    // Without lingering, a drop resets the connection.
                    connection.set_zero_linger().expect("set");
                    continue;
                }
                let len = body.len();
                let answer =
                    format!("HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{body}");
                connection.write_all(answer.as_bytes()).await.expect("written");
            }
            requests
        });
        (endpoint, server)
    }

    /// The head of a response, but for its length, and its body.
    type Answer = (&'static str, &'static str);
    const NONE: Answer = ("404 Not Found", "");
    const WRITTEN: Answer = ("200 OK\r\netag: \"1\"\r\nx-goog-generation: 1", "");
    const EXISTS: Answer = ("412 Precondition Failed", "");
    const DELETED: Answer =
        ("200 OK", "<DeleteResult><Deleted><Key>format.json</Key></Deleted></DeleteResult>");
    const LOST: Answer = ("", "");
    const FORMAT: Answer = (
        "200 OK\r\netag: \"1\"\r\nlast-modified: Thu, 26 Nov 2026 00:00:00 GMT",
        "{\"format\":\"bdnfs mirror\",\"version\":1}\n",
    );
    const LACKS: Answer = ("501 Not Implemented", "<Error><Code>NotImplemented</Code></Error>");

    fn founded(uri: &str, access: &Access) -> Mirror {
        Mirror::open(&uri.parse().expect("a URI"), access, "t", std::env::temp_dir()).expect("open")
    }

    #[tokio::test]
    async fn mirror_in_an_anonymous_google_bucket_is_written() {
        let (endpoint, server) = service(&[NONE, WRITTEN, EXISTS, NONE]).await;
        let gcs = Some(GcsAccess { anonymous: true, endpoint: Some(endpoint), ..GcsAccess::default() });
        let access = Access { gcs, ..Access::default() };
        founded("gs://bucket/below", &access).init().await.expect("founded");
        let requests = server.await.expect("served");
        assert!(requests[1].starts_with("put /bucket/below%2fformat%2ejson "), "{}", requests[1]);
        assert!(!requests.concat().contains("authorization"), "{requests:?}");
    }

    #[tokio::test]
    async fn mirror_failure_is_one_line_without_the_response_body() {
        const DENIED: Answer = (
            "403 Forbidden",
            "<?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>hush</Message></Error>",
        );
        const PAGE: Answer = ("405 Method Not Allowed", "<html><body>hush</body></html>");
        for (answers, failed, message) in [
            (&[DENIED][..], "cannot read s3://bucket/format.json", "403 Forbidden, SignatureDoesNotMatch"),
            (&[NONE, PAGE], "cannot write s3://bucket/format.json", "405 Method Not Allowed"),
        ] {
            let (endpoint, server) = service(answers).await;
            let message = format!("{failed} at {endpoint}: the server returned {message}");
            let s3 = Some(S3Access { anonymous: true, endpoint: Some(endpoint), ..S3Access::default() });
            let error = founded("s3://bucket", &Access { s3, ..Access::default() })
                .init()
                .await
                .expect_err("refused");
            assert!(
                error.to_string().starts_with(&message) && !error.to_string().contains("hush"),
                "{error}"
            );
            server.await.expect("served");
        }
        let s3 = Some(S3Access {
            anonymous: true,
            endpoint: Some("http://127.0.0.1:1".into()),
            ..S3Access::default()
        });
        let error = founded("s3://bucket", &Access { s3, ..Access::default() })
            .init()
            .await
            .expect_err("nobody is there");
        assert!(
            error.to_string().contains(
                "format.json at http://127.0.0.1:1: cannot connect to the server: Connection refused"
            ),
            "{error}"
        );
    }

    #[tokio::test]
    async fn init_of_store_without_conditional_writes_is_refused() {
        for answers in [&[NONE, WRITTEN, WRITTEN, DELETED][..], &[NONE, LACKS]] {
            let (endpoint, server) = service(answers).await;
            let s3 = Some(S3Access { anonymous: true, endpoint: Some(endpoint), ..S3Access::default() });
            let access = Access { s3, ..Access::default() };
            let error = founded("s3://bucket", &access).init().await.expect_err("ignored");
            assert!(
                error.kind() == Kind::Unsupported && error.to_string().contains("If-None-Match"),
                "{error}"
            );
            assert_eq!(server.await.expect("served").len(), answers.len());
        }
    }

    #[tokio::test]
    async fn conditional_write_whose_response_is_lost_is_made_again_and_known_by_its_content() {
        const OTHER: Answer = (FORMAT.0, "another");
        for (answers, failure) in [
            (&[NONE, LOST, EXISTS, FORMAT, LOST, EXISTS, FORMAT][..], None),
            (&[NONE, LOST, WRITTEN, EXISTS, FORMAT], None),
            // Another writer was faster.
            (&[NONE, LOST, EXISTS, OTHER, EXISTS, OTHER], None),
            (&[NONE, LOST, LOST, LOST], Some("the connection to the server was lost")),
        ] {
            let (endpoint, server) = service(answers).await;
            let s3 = Some(S3Access { anonymous: true, endpoint: Some(endpoint), ..S3Access::default() });
            let founded = founded("s3://bucket", &Access { s3, ..Access::default() }).init().await;
            let error = founded.err().map(|error| error.to_string());
            assert_eq!(error.is_some(), failure.is_some(), "{error:?}");
            assert!(error.is_none_or(|error| failure.is_some_and(|text| error.contains(text))));
            assert_eq!(server.await.expect("served").len(), answers.len());
        }
    }

    #[tokio::test]
    async fn mirror_delete_with_rotated_azure_key_is_made_again() {
        const REFUSED: Answer = ("403 Forbidden", "<Error><Code>AuthenticationFailed</Code></Error>");
        const DELETED: Answer = (
            "202 Accepted\r\ncontent-type: multipart/mixed; boundary=b",
            "--b\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n\r\n--b--\r\n",
        );
        let (endpoint, server) = service(&[NONE, REFUSED, DELETED]).await;
        let secrets = tempfile::tempdir().expect("a directory");
        let rotate = |name| std::fs::write(secrets.path().join("s"), format!("sv=1&sig={name}"));
        rotate("old").expect("written");
        let access = Access {
            auth: Some(AuthMethod::Secret { auth_secret_name: "s".into() }),
            secrets: vec![SecretStore::Directory(secrets.path().to_owned())],
            azure: Some(AzureAccess { endpoint: Some(endpoint), ..AzureAccess::default() }),
            ..Access::default()
        };
        let (mirror, key) = (founded("azure://account/c", &access), "x".into());
        assert!(mirror.get(&key).await.expect("read").is_none());
        rotate("new").expect("written");
        mirror.delete(&key).await.expect("deleted");
        let requests = server.await.expect("served");
        assert!(!requests[1].contains("sig=new") && !requests[2].contains("sig=old"), "{requests:?}");
        assert_eq!(requests[2].matches("sig=new").count(), 2, "of the batch, and of what is in it");
    }

    #[tokio::test]
    async fn mirror_redirected_elsewhere_sends_nothing_there() {
        const ELSEWHERE: Answer = ("307 Temporary Redirect\r\nlocation: http://localhost:1/stolen", "");
        let (endpoint, server) = service(&[ELSEWHERE]).await;
        let s3 = Some(S3Access { anonymous: true, endpoint: Some(endpoint), ..S3Access::default() });
        let error =
            founded("s3://bucket", &Access { s3, ..Access::default() }).init().await.expect_err("redirected");
        assert!(error.to_string().contains("the server returned 307 Temporary Redirect"), "{error}");
        server.await.expect("served");
    }
}
