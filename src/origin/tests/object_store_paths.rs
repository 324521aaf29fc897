//! Keys that `object_store` can't list.

use axum::response::IntoResponse;
use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;

use super::test_server::OriginServer;

/// Checks the reason why listings are requested here and not by `object_store` (docs/decisions/object-store.md): should this fail,
/// they need not be any longer.
#[tokio::test]
async fn object_store_path_refuses_or_alters_keys() {
    let server = OriginServer::start().await;
    let builder = AmazonS3Builder::new().with_bucket_name("b").with_endpoint(&server.url).with_region("r");
    let store = builder.with_allow_http(true).with_skip_signature(true).build().expect("a store");
    let listed = async |keys: &[&str]| {
        let entry = |key: &&str| {
            format!(
                "<Contents><Key>{key}</Key><Size>1</Size><ETag>\"v\"</ETag>\
                 <LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
            )
        };
        let entries: String = keys.iter().map(entry).collect();
        let page = format!("<ListBucketResult>{entries}</ListBucketResult>");
        server.rule(move |_| Some(page.clone().into_response()));
        store.list(None).map_ok(|object| object.location.to_string()).try_collect::<Vec<_>>().await
    };
    assert_eq!(listed(&["a", "/a", "dir/"]).await.expect("listed"), ["a", "a", "dir"]);
    listed(&["a", "a//b"]).await.expect_err("one key fails all");
}
