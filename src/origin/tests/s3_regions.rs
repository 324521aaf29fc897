//! Buckets in another region than they are asked for in.

use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::failed;
use super::s3_buckets::{Bucket, bucket};
use crate::error::Kind;
use crate::tier::conformance::pinned;
use crate::tier::{Tier, Urgency};

/// Returns the answer of AWS to a request at the wrong region, or that of services, as Garage, that tell the region in the error
/// alone.
fn elsewhere(garage: bool, region: &str) -> Response {
    let body = format!("<Error><Code>AuthorizationHeaderMalformed</Code><Region>{region}</Region></Error>");
    match garage {
        true => (StatusCode::BAD_REQUEST, body).into_response(),
        false => (StatusCode::MOVED_PERMANENTLY, [("x-amz-bucket-region", region)]).into_response(),
    }
}

#[tokio::test]
async fn s3_region_named_by_the_service_is_used() {
    for garage in [false, true] {
        let Bucket { server, origin } = bucket("model").await;
        server.put("b/model/x", "weights");
        server.rule(move |request| {
            let scope = request.headers().get("authorization").and_then(|value| value.to_str().ok());
            let right = scope.is_some_and(|scope| scope.contains("/eu-west-1/s3/"));
            (!right).then(|| elsewhere(garage, "eu-west-1"))
        });
        let blob = pinned(&origin, "x").await.expect("listed");
        assert!(origin.fetch(&blob, 0..7, Urgency::Read).await.expect("fetched").is_some());
        assert_eq!(server.requests.load(Ordering::Relaxed), 3, "the first is asked once more");
    }
}

#[tokio::test]
async fn s3_region_that_is_invalid_is_ignored() {
    let Bucket { server, origin } = bucket("model").await;
    server.rule(|_| Some(elsewhere(true, "evil.example/")));
    assert_eq!(failed(&origin).await.kind(), Kind::Invalid);
    // One that is never right is not followed for ever.
    server.rule(|_| Some(elsewhere(false, "eu-west-1")));
    let error = failed(&origin).await;
    assert!(error.to_string().contains("the bucket's region is eu-west-1"), "{error}");
}
