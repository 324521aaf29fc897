use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};

use super::test_server::OriginServer;
use super::{failed, listed};
use crate::blob::Blob;
use crate::error::Kind;
use crate::origin::object_storage::BucketOrigin;
use crate::source::{Access, AwsAmbient, Patterns, S3Access, Secret, Uri};
use crate::tier::conformance::{self, Subject, pinned};
use crate::tier::{Origin, Tier, Urgency};

pub(super) struct Bucket {
    pub(super) server: Arc<OriginServer>,
    pub(super) origin: BucketOrigin,
}

fn access(endpoint: &str) -> Access {
    let s3 = S3Access {
        access_key_id: Some("AKID".into()),
        secret_access_key: Some(Secret::new("hush")),
        endpoint: Some(endpoint.into()),
        ..S3Access::default()
    };
    Access { s3: Some(s3), ..Access::default() }
}

/// A bucket `b` on a server, and the origin of `prefix` in it.
pub(super) async fn bucket(prefix: &str) -> Bucket {
    let server = OriginServer::start().await;
    let origin = at(&server, prefix).await;
    Bucket { server, origin }
}

async fn at(server: &OriginServer, prefix: &str) -> BucketOrigin {
    open(prefix, &access(&server.url)).await.expect("open")
}

async fn open(prefix: &str, access: &Access) -> crate::error::Result<BucketOrigin> {
    BucketOrigin::open(&Uri::S3 { bucket: "b".into(), prefix: prefix.into() }, access).await
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

#[tokio::test]
async fn s3_bucket_conforms_to_the_tier_suite() {
    conformance::suite(&bucket("model").await).await;
}

#[tokio::test]
async fn s3_service_that_ignores_conditions_conforms_to_the_tier_suite() {
    let bucket = bucket("model").await;
    bucket.server.conditions.store(false, Ordering::Relaxed);
    conformance::suite(&bucket).await;
}

#[tokio::test]
async fn bucket_listing_of_a_prefix_keeps_keys_exact() {
    let Bucket { server, origin } = bucket("model").await;
    for key in
        ["model2/x", "a b/+%2F é", "model/a%2Fb", "model/ space ", "model/b/c", "model/d/", "model/~*'()"]
    {
        server.put(&format!("b/{key}"), if key.ends_with('/') { "" } else { "xyz" });
    }
    let paths = listed(&origin, Patterns::default()).await.expect("listed");
    let expected = [
        (" space ", "3"),
        ("a%2Fb", "3"),
        ("b", "directory"),
        ("b/c", "3"),
        ("d", "directory"),
        ("~*\\'()", "3"),
    ];
    assert_eq!(paths, expected.map(|(path, what)| (path.to_owned(), what.to_owned())));
    for (prefix, path) in [("model", "a%2Fb"), ("model", " space "), ("model", "~*'()"), ("", "a b/+%2F é")]
    {
        let origin = at(&server, prefix).await;
        let blob = pinned(&origin, path).await.expect(path);
        let body = origin.fetch(&blob, 1..3, Urgency::Read).await.expect(path).expect("no miss");
        assert_eq!(body.try_collect::<Vec<Bytes>>().await.expect(path).concat(), b"yz");
    }
}

#[tokio::test]
async fn bucket_key_that_is_not_a_path_is_refused_by_name() {
    let Bucket { server, origin } = bucket("model").await;
    server.put("b/model/good", "x");
    for (key, named) in [
        ("a//b", "\"a//b\""),
        ("../x", "\"../x\""),
        ("/x", "\"/x\""),
        ("x/", "\"x/\""),
        ("d/./y", "\"d/./y\""),
        ("n\0l", "\"n\\0l\""),
    ] {
        server.put(&format!("b/model/{key}"), "x");
        let error = failed(&origin).await;
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains(named), "{error}");
        server.remove(&format!("b/model/{key}"));
    }
    listed(&origin, Patterns::default()).await.expect("only the good one");
}

#[tokio::test]
async fn bucket_key_that_is_not_a_path_is_escaped_and_read_if_asked() {
    let server = OriginServer::start().await;
    let keys = ["a//b", "/x", "x/", "d", "d/y", "n\0l", "100%"];
    keys.iter().for_each(|key| server.put(&format!("b/model/{key}"), format!("<{key}>")));
    let escaping = Access { escape: true, ..access(&server.url) };
    let origin = open("model", &escaping).await.expect("open");
    for (key, path) in keys.iter().zip(["a/%2Fb", "%2Fx", "x%2F", "%64", "d/y", "n%00l", "100%25"]) {
        let blob = pinned(&origin, path).await.expect(path);
        let body = origin.fetch(&blob, 0..blob.size, Urgency::Read).await.expect(path).expect("no miss");
        let content = body.try_collect::<Vec<Bytes>>().await.expect(path).concat();
        assert_eq!(String::from_utf8_lossy(&content), format!("<{key}>"));
    }
    server.put("b/model/../x", "no request can name it");
    let error = failed(&origin).await;
    assert!(error.to_string().contains("a part of its key is '.' or '..'"), "{error}");
}

#[tokio::test]
async fn bucket_origin_of_a_single_object_is_a_tree_of_one() {
    let Bucket { server, origin } = bucket("models/one.bin").await;
    server.put("b/models/one.bin2", "no");
    let error = failed(&origin).await;
    assert_eq!(error.kind(), Kind::NotFound);
    let said = "s3://b/models/one.bin: no such object, and none below it";
    assert_eq!(error.to_string(), said);
    server.put("b/models/one.bin", "weights");
    let paths = listed(&origin, Patterns::default()).await.expect("listed");
    assert_eq!(paths, [("one.bin".to_owned(), "7".to_owned())]);
    let blob = pinned(&origin, "one.bin").await.expect("pinned");
    // Another process, which has only the manifest, finds it too.
    let again = at(&server, "models/one.bin").await;
    assert!(again.fetch(&blob, 0..7, Urgency::Read).await.expect("fetch").is_some());
}

#[tokio::test]
async fn s3_request_is_signed_unless_anonymous() {
    let Bucket { server, origin } = bucket("model").await;
    server.put("b/model/x", "x");
    server.rule(|request| {
        let signed = request.headers().get("authorization").and_then(|v| v.to_str().ok());
        let right = signed.is_some_and(|v| v.starts_with("AWS4-HMAC-SHA256 Credential=AKID/"));
        let body = "<Error><Code>AccessDenied</Code></Error>";
        (!right).then(|| (StatusCode::FORBIDDEN, body).into_response())
    });
    let blob = pinned(&origin, "x").await.expect("signed");
    assert!(origin.fetch(&blob, 0..1, Urgency::Read).await.expect("signed").is_some());
    let s3 = S3Access { endpoint: Some(server.url.clone()), anonymous: true, ..S3Access::default() };
    let anonymous = open("model", &Access { s3: Some(s3), ..Access::default() }).await.expect("open");
    let said = "the server returned 403 Forbidden, AccessDenied; no credentials were sent";
    let error = failed(&anonymous).await;
    assert_eq!(
        (error.kind(), error.to_string()),
        (Kind::Refused, format!("s3://b/model: cannot list {}/b: {said}", server.url))
    );
    let error = anonymous.fetch(&blob, 0..1, Urgency::Read).await.err().expect("refused");
    assert_eq!((error.kind(), error.to_string()), (Kind::Refused, format!("s3://b/model/x: {said}")));
}

/// Sets the answer to a GET of the object `x`.
fn answers(server: &OriginServer, status: u16, headers: &'static [(&str, &str)], body: &'static str) {
    server.rule(move |request| {
        let status = StatusCode::from_u16(status).expect("a status");
        let mut response = (status, [("etag", "\"v0\"")], body).into_response();
        for (name, value) in headers {
            response.headers_mut().insert(*name, value.parse().expect("a header"));
        }
        request.uri().path().ends_with("/x").then_some(response)
    });
}

#[tokio::test]
async fn s3_object_stored_encoded_is_read_as_it_is_stored() {
    let Bucket { server, origin } = bucket("model").await;
    server.put("b/model/x", "weights");
    let blob = pinned(&origin, "x").await.expect("pinned");
    answers(&server, 206, &[("content-encoding", "gzip"), ("content-range", "bytes 1-3/7")], "eig");
    let body = origin.fetch(&blob, 1..4, Urgency::Read).await.expect("stored so").expect("no miss");
    assert_eq!(body.try_collect::<Vec<Bytes>>().await.expect("eig").concat(), b"eig");
    answers(&server, 206, &[("content-encoding", "gzip"), ("content-range", "bytes 1-3/9")], "eig");
    let error = origin.fetch(&blob, 1..4, Urgency::Read).await.err().expect("another length");
    assert_eq!(error.kind(), Kind::Changed);
    answers(&server, 200, &[("content-encoding", "gzip")], "weights");
    let error = origin.fetch(&blob, 0..7, Urgency::Read).await.err().expect("nothing proves it");
    assert_eq!(error.kind(), Kind::Corrupt);
}

#[tokio::test]
async fn s3_status_200_with_the_content_range_of_rclone_is_accepted() {
    let Bucket { server, origin } = bucket("model").await;
    server.put("b/model/x", "weights");
    let blob = pinned(&origin, "x").await.expect("pinned");
    answers(&server, 200, &[("content-range", "bytes 1-3/7")], "eig");
    let body = origin.fetch(&blob, 1..4, Urgency::Read).await.expect("the range").expect("no miss");
    assert_eq!(body.try_collect::<Vec<Bytes>>().await.expect("eig").concat(), b"eig");
    let error = origin.fetch(&blob, 2..5, Urgency::Read).await.err().expect("another range");
    assert_eq!(error.kind(), Kind::Corrupt);
}

#[tokio::test]
async fn bucket_listing_without_etags_asks_for_each() {
    for head in [true, false] {
        let Bucket { server, origin } = bucket("model").await;
        server.listed_etags.store(false, Ordering::Relaxed);
        // s3s-fs 0.14 tells the ETag in answer to GET only.
        server.rule(move |request| {
            (!head && request.method() == Method::HEAD).then(|| StatusCode::OK.into_response())
        });
        server.put("b/model/x", "weights");
        let blob = pinned(&origin, "x").await.expect("pinned");
        let body = origin.fetch(&blob, 1..4, Urgency::Read).await.expect("fetch").expect("no miss");
        assert_eq!(body.try_collect::<Vec<Bytes>>().await.expect("eig").concat(), b"eig");
        server.put("b/model/x", "changed");
        let error = origin.fetch(&blob, 1..4, Urgency::Read).await.err().expect("changed");
        assert_eq!(error.kind(), Kind::Changed);
        pinned(&at(&server, "model/x").await, "x").await.expect("a single object");
    }
}

#[tokio::test]
async fn s3_refusal_says_what_to_do() {
    let Bucket { server, origin } = bucket("model").await;
    server.put("b/model/x", "weights");
    let blob = pinned(&origin, "x").await.expect("pinned");
    for (status, code, kind) in [
        (400, "ExpiredToken", Kind::Refused),
        (400, "RequestTimeout", Kind::Timeout),
        (409, "OperationAborted", Kind::Unavailable),
        (403, "InvalidAccessKeyId", Kind::Refused),
        (404, "NoSuchKey", Kind::Changed),
        (412, "PreconditionFailed", Kind::Changed),
        (416, "InvalidRange", Kind::Changed),
        (301, "PermanentRedirect", Kind::Unsupported),
        (503, "SlowDown", Kind::Unavailable),
    ] {
        let status = StatusCode::from_u16(status).expect("status");
        server.rule(move |_| {
            let body = format!("<Error><Code>{code}</Code><Message>hush</Message></Error>");
            Some((status, [("x-amz-bucket-region", "eu-west-1")], body).into_response())
        });
        let error = origin.fetch(&blob, 0..7, Urgency::Read).await.err().expect("refused");
        assert_eq!(error.kind(), kind, "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with("s3://b/model/x") && text.contains(code) && !text.contains("hush"),
            "{text}"
        );
        assert_eq!(text.contains("the bucket's region is eu-west-1"), status == 301, "{text}");
    }
    server.rule(|_| Some("<html>".into_response()));
    let error = failed(&origin).await;
    assert!(error.to_string().contains("not a listing of S3; check the endpoint"), "{error}");
}

#[tokio::test]
async fn bucket_access_that_is_wrong_is_refused_before_any_request() {
    let refused = async |access: &Access| {
        let error = open("", access).await.expect_err("what does not do");
        (error.kind(), error.to_string())
    };
    let nothing = AwsAmbient { metadata: Some("http://127.0.0.1:1".into()), ..AwsAmbient::default() };
    let (kind, text) = refused(&Access { aws: Some(nothing), ..Access::default() }).await;
    assert_eq!(kind, Kind::Refused);
    let said = "s3://b: no credentials found: no access key is given, and this machine has no web identity token with a role, no \
                AWS profile with a key, no container credentials, and no metadata service (http://127.0.0.1:1: cannot \
                connect to the server: Connection refused (os error 111)); give an access key ID and a secret access key, or \
                ask for anonymous access";
    assert_eq!(text, said);
    for (endpoint, said) in [
        ("http://10.0.0.1:9000", "is plain http"),
        ("ftp://h", "of the form https://host"),
        ("h:9000/x y", "of the form https://host"),
        ("https://u:hush@h", "may not contain a user name"),
    ] {
        let (kind, text) = refused(&access(endpoint)).await;
        assert_eq!(kind, Kind::Invalid);
        assert!(text.contains(said) && !text.contains("hush"), "{text}");
    }
    let mut far = access("http://10.0.0.1:9000/");
    far.allow_http = true;
    let origin = open("p", &far).await.expect("allowed");
    assert_eq!((origin.name(), &*origin.identity()), ("s3://b/p", "s3://b/p at http://10.0.0.1:9000"));
    far.virtual_host = Some(true);
    let (_, text) = refused(&far).await;
    assert_eq!(
        text,
        "s3://b: buckets cannot have hosts of their own at http://10.0.0.1:9000, which is not a host name; use path-style URLs (--bucket-style path)"
    );
    let trusting = Access { authorities: Some("hush".into()), ..access("https://h") };
    let (_, text) = refused(&trusting).await;
    assert!(text.contains("-----BEGIN CERTIFICATE-----") && !text.contains("hush"), "{text}");
}

#[tokio::test]
async fn bucket_listing_that_never_ends_is_refused_and_a_busy_one_waits() {
    let bucket = bucket("model").await;
    bucket.server.put("b/model/x", "x");
    let pages = std::sync::atomic::AtomicUsize::new(0);
    bucket.server.rule(move |request| {
        let page = pages.fetch_add(1, Ordering::Relaxed);
        let listing = request.uri().query()?.contains("list-type");
        let text = format!(
            "<ListBucketResult><NextContinuationToken>{page}</NextContinuationToken></ListBucketResult>"
        );
        listing.then(|| text.into_response())
    });
    let error = failed(&bucket.origin).await;
    assert_eq!(error.kind(), Kind::Unsupported);
    let said = "s3://b/model: the service sends 1000 empty pages in a row, so its listing may never end";
    assert_eq!(error.to_string(), said);
    // The same three pages over and over, each under another token.
    let pages = std::sync::atomic::AtomicUsize::new(0);
    bucket.server.rule(move |_| {
        let page = pages.fetch_add(1, Ordering::Relaxed);
        let object = format!(
            "<Key>model/{}</Key><Size>1</Size><LastModified>2024-01-02T03:04:05Z</LastModified><ETag>e</ETag>",
            page % 3
        );
        let next = format!("<NextContinuationToken>{page}</NextContinuationToken>");
        Some(format!("<ListBucketResult><Contents>{object}</Contents>{next}</ListBucketResult>").into_response())
    });
    let error = failed(&bucket.origin).await;
    assert_eq!(error.kind(), Kind::Unsupported);
    let said =
        "s3://b/model: the service repeats key \"model/0\" on a later page, so its listing may never end";
    assert_eq!(error.to_string(), said);
    // A service that knows ListObjects of version 1 only.
    bucket.server.rule(|_| {
        Some("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>".into_response())
    });
    let error = failed(&bucket.origin).await.to_string();
    assert!(error.contains("truncated listing without a continuation token"), "{error}");
    // Longer than a read would wait.
    let asked = std::sync::atomic::AtomicUsize::new(0);
    bucket.server.rule(move |_| {
        let busy = asked.fetch_add(1, Ordering::Relaxed) == 0;
        busy.then(|| (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "3")]).into_response())
    });
    assert_eq!(listed(&bucket.origin, Patterns::default()).await.expect("after three seconds").len(), 1);
}

#[tokio::test]
async fn bucket_answer_that_is_not_a_listing_is_refused() {
    let bucket = bucket("model").await;
    for (text, said) in [
        (
            "<html><body>Sign in to the network</body></html>".to_owned(),
            "it does not begin with ListBucketResult",
        ),
        (format!("<ListBucketResult>{}", "<a>".repeat(1_000_000)), "it is too deep"),
        ("<ListBucketResult><Contents>".to_owned(), ""),
        ("sign in".to_owned(), ""),
    ] {
        bucket.server.rule(move |_| Some(text.clone().into_response()));
        let error = failed(&bucket.origin).await;
        let asked = format!("s3://b/model: cannot list {}/b: ", bucket.server.url);
        let none = "the response is not a listing of S3; check the endpoint: ";
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert!(error.to_string().starts_with(&format!("{asked}{none}{said}")), "{error}");
    }
    bucket.server.rule(|_| Some(StatusCode::NOT_FOUND.into_response()));
    let error = failed(&bucket.origin).await.to_string();
    assert!(error.contains("/b: the server returned 404 Not Found"), "{error}");
}
