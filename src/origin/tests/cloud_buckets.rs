//! Google's and Azure's protocols, spoken by the server of these tests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};

use super::test_server::OriginServer;
use super::{failed, listed, s3_buckets};
use crate::blob::Blob;
use crate::error::Kind;
use crate::origin::is_sequential;
use crate::origin::object_storage::BucketOrigin;
use crate::source::{Access, AzureAccess, GcsAccess, Patterns, Secret, Uri};
use crate::tier::conformance::{self, Subject, pinned};
use crate::tier::{Tier, Urgency};

/// A bucket `b`, and the origin of `model` in it.
struct Bucket {
    server: Arc<OriginServer>,
    origin: BucketOrigin,
}

impl From<s3_buckets::Bucket> for Bucket {
    fn from(s3_buckets::Bucket { server, origin }: s3_buckets::Bucket) -> Self {
        Self { server, origin }
    }
}

impl Subject for Bucket {
    fn tier(&self) -> &dyn Tier {
        &self.origin
    }

    fn put<'a>(&'a self, path: &'a str, content: Bytes) -> BoxFuture<'a, Blob> {
        self.server.put(&format!("b/model/{path}"), content);
        async move { pinned(&self.origin, path).await.expect("listed") }.boxed()
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        self.server.remove(&format!("b/model/{path}"));
        async {}.boxed()
    }
}

async fn open(uri: &str, access: &Access) -> crate::error::Result<BucketOrigin> {
    BucketOrigin::open(&uri.parse::<Uri>().expect(uri), access).await
}

async fn gcs() -> Bucket {
    let server = OriginServer::start().await;
    let given = GcsAccess { endpoint: Some(server.url.clone()), anonymous: true, ..GcsAccess::default() };
    let origin = open("gs://b/model", &Access { gcs: Some(given), ..Access::default() }).await.expect("open");
    Bucket { server, origin }
}

async fn azure() -> Bucket {
    let server = OriginServer::start().await;
    let given = AzureAccess {
        account_key: Some(Secret::new("aHVzaA==")),
        endpoint: Some(server.url.clone()),
        ..AzureAccess::default()
    };
    let access = Access { azure: Some(given), ..Access::default() };
    let origin = open("azure://account/b/model", &access).await.expect("open");
    Bucket { server, origin }
}

#[tokio::test]
async fn gcs_bucket_conforms_to_the_tier_suite() {
    conformance::suite(&gcs().await).await;
}

#[tokio::test]
async fn azure_container_conforms_to_the_tier_suite() {
    conformance::suite(&azure().await).await;
}

#[tokio::test]
async fn bucket_listing_of_each_cloud_keeps_keys_exact() {
    for Bucket { server, origin } in [gcs().await, azure().await] {
        let names = ["a%2Fb", "+ é", "b/c", "~*'()", "&<>?#"];
        names.iter().for_each(|name| server.put(&format!("b/model/{name}"), "xyz"));
        server.put("b/model/d/", "");
        server.put("b/model2/x", "x");
        for name in names {
            let blob = pinned(&origin, name).await.expect(name);
            let body = origin.fetch(&blob, 1..3, Urgency::Read).await.expect(name).expect("no miss");
            assert_eq!(body.try_collect::<Vec<Bytes>>().await.expect(name).concat(), b"yz");
        }
        let paths = listed(&origin, Patterns::default()).await.expect("listed");
        assert_eq!(paths.len(), names.len() + 2, "{paths:?}");
        assert!(paths.contains(&("d".into(), "directory".into())), "{paths:?}");
    }
}

#[tokio::test]
async fn bucket_of_each_cloud_without_ranges_is_listed_to_be_read_whole() {
    for Bucket { server, origin } in [gcs().await, azure().await, s3_buckets::bucket("model").await.into()] {
        let content: Vec<u8> = (0..2 << 20).map(|i| (i % 251) as u8).collect();
        server.put("b/model/large", content.clone());
        server.put("b/model/small", "xyz");
        let version = async |path| pinned(&origin, path).await.expect(path).version;
        assert!(!is_sequential(&version("large").await), "it has ranges");
        server.ranges.store(false, Ordering::Relaxed);
        let large = pinned(&origin, "large").await.expect("pinned");
        assert!(is_sequential(&large.version) && !is_sequential(&version("small").await));
        for range in [0..2 << 20, 1..7, 1_000_000..1_500_000, (2 << 20) - 1..2 << 20] {
            let body = origin.fetch(&large, range.start as u64..range.end as u64, Urgency::Read).await;
            let part = body.expect("fetched").expect("no miss").try_collect::<Vec<Bytes>>().await;
            assert!(part.expect("skipped to").concat() == content[range.clone()], "{range:?}");
        }
        server.put("b/model/large", vec![7; 2 << 20]);
        let error = origin.fetch(&large, 1..7, Urgency::Read).await.err().expect("changed");
        assert_eq!(error.kind(), Kind::Changed);
    }
}

#[tokio::test]
async fn gcs_key_with_a_dot_part_is_read() {
    let server = OriginServer::start().await;
    let given = GcsAccess { endpoint: Some(server.url.clone()), anonymous: true, ..GcsAccess::default() };
    let access = Access { gcs: Some(given), escape: true, ..Access::default() };
    let origin = open("gs://b/model", &access).await.expect("open");
    server.put("b/model/../x", "up");
    let blob = pinned(&origin, "%2E%2E/x").await.expect("listed");
    let body = origin.fetch(&blob, 0..2, Urgency::Read).await.expect("fetched").expect("no miss");
    assert_eq!(body.try_collect::<Vec<Bytes>>().await.expect("read").concat(), b"up");
}

#[tokio::test]
async fn bucket_request_is_authorized_and_its_refusal_names_the_source() {
    let Bucket { server, origin } = azure().await;
    server.put("b/model/x", "x");
    server.rule(|request| {
        let signed = request.headers().get("authorization").and_then(|v| v.to_str().ok());
        let right = signed.is_some_and(|v| v.starts_with("SharedKey account:"))
            && request.headers().contains_key("x-ms-version");
        let body = "<Error><Code>AuthenticationFailed</Code></Error>";
        (!right).then(|| (StatusCode::FORBIDDEN, body).into_response())
    });
    pinned(&origin, "x").await.expect("signed");
    let given = AzureAccess { anonymous: true, endpoint: Some(server.url.clone()), ..AzureAccess::default() };
    let access = Access { azure: Some(given), ..Access::default() };
    let error = failed(&open("azure://account/b/model", &access).await.expect("open")).await;
    let said = format!(
        "azure://account/b/model: cannot list {}/b: the server returned 403 Forbidden, AuthenticationFailed; no credentials were sent",
        server.url
    );
    assert_eq!((error.kind(), error.to_string()), (Kind::Refused, said));
}

#[tokio::test]
async fn bucket_with_bad_credentials_is_refused_without_showing_them() {
    let gcs = |given| Access { gcs: Some(given), ..Access::default() };
    let azure = |given| Access { azure: Some(given), ..Access::default() };
    let key = GcsAccess { service_account: Some(Secret::new("{\"hush\": 1}")), ..GcsAccess::default() };
    let file = GcsAccess { application_credentials: Some("/missing".into()), ..GcsAccess::default() };
    let account = AzureAccess { account_key: Some(Secret::new("hush!")), ..AzureAccess::default() };
    let application = AzureAccess {
        client_id: Some("c".into()),
        client_secret: Some(Secret::new("hush")),
        // Whoever answers there is not asked.
        identity_endpoint: Some("http://127.0.0.1:1/token".into()),
        ..AzureAccess::default()
    };
    let sas = AzureAccess { sas: Some(Secret::new("hush")), ..AzureAccess::default() };
    let nobody = Access { requester_pays: true, ..Access::default() };
    for (uri, access, said) in [
        ("gs://b", gcs(key), "gs://b: the service account key is not the JSON that Google gives out"),
        ("gs://b", gcs(file), "gs://b: cannot use the application default credentials in /missing"),
        ("gs://b", nobody, "gs://b: requester pays is set, but no project to bill is given"),
        (
            "azure://a/c",
            azure(account),
            "azure://a/c: the Azure credentials are invalid: an account key is base64",
        ),
        ("azure://a/c", azure(sas), "azure://a/c: the Azure credentials are invalid"),
        ("azure://a/c", azure(application), "azure://a/c: the Azure credentials are invalid"),
        ("r2://a.b", Access::default(), "r2://a.b: no credentials found; give an access key ID"),
        ("cw://b", Access::default(), "cw://b: no credentials found; give an access key ID"),
    ] {
        let error = open(uri, &access).await.expect_err(said);
        let text = format!("{error} {error:?}");
        assert!(text.starts_with(said) && !text.contains("hush"), "{text}");
        assert!(matches!(error.kind(), Kind::Refused | Kind::Invalid), "{text}");
    }
}
