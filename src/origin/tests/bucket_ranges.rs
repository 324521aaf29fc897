//! Whether a bucket's service ignores Range, as a listing finds it out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::time::{advance, pause, resume, sleep, timeout};

use super::s3_buckets::{Bucket, bucket};
use super::test_server::OriginServer;
use crate::http_client::MAX_RESPONSE_TIMEOUT;
use crate::origin::is_sequential;
use crate::origin::object_storage::BucketOrigin;
use crate::tier::conformance::pinned;

/// A bucket of ten objects of 2 MiB, which are four pages.
async fn large_objects() -> Bucket {
    let bucket = bucket("model").await;
    let content = Bytes::from(vec![7; 2 << 20]);
    (0..10).for_each(|number| bucket.server.put(&format!("b/model/{number}"), content.clone()));
    bucket
}

/// Lets `rule` answer the requests for ranges, of which it is told the number, and counts them.
fn probes(
    server: &OriginServer,
    rule: impl Fn(usize, &Request) -> Option<Response> + Send + 'static,
) -> Arc<AtomicUsize> {
    let probes = Arc::new(AtomicUsize::new(0));
    let counter = probes.clone();
    server.rule(move |request| {
        let is_probe = request.headers().contains_key("range");
        is_probe.then(|| rule(counter.fetch_add(1, Ordering::Relaxed), request))?
    });
    probes
}

/// Whether a listing marks its first object to be read whole.
async fn is_marked(origin: &BucketOrigin) -> bool {
    is_sequential(&pinned(origin, "0").await.expect("pinned").version)
}

#[tokio::test]
async fn bucket_listing_of_many_pages_probes_one_object_for_ranges() {
    let Bucket { server, origin } = large_objects().await;
    let key = pinned(&origin, "0").await.expect("pinned").key;
    for ranges in [true, false] {
        server.ranges.store(ranges, Ordering::Relaxed);
        let probes = probes(&server, |_, _| None);
        assert_eq!((is_marked(&origin).await, probes.load(Ordering::Relaxed)), (!ranges, 1));
        assert_eq!(pinned(&origin, "0").await.expect("pinned").key, key, "the content is the same");
    }
}

#[tokio::test]
async fn bucket_listing_whose_objects_are_refused_probes_three() {
    let Bucket { server, origin } = large_objects().await;
    server.ranges.store(false, Ordering::Relaxed);
    for (refused, marked) in [(2, true), (10, false)] {
        let probes = probes(&server, move |number, _| {
            (number < refused).then(|| StatusCode::FORBIDDEN.into_response())
        });
        assert_eq!((is_marked(&origin).await, probes.load(Ordering::Relaxed)), (marked, 3));
    }
}

#[tokio::test]
async fn bucket_listing_probe_that_fails_once_is_retried() {
    let Bucket { server, origin } = large_objects().await;
    server.ranges.store(false, Ordering::Relaxed);
    let asked = parking_lot::Mutex::new(String::new());
    probes(&server, move |_, request| {
        // The first request for each object.
        let (mut asked, path) = (asked.lock(), request.uri().path());
        let first = *asked != path;
        *asked = path.to_owned();
        first.then(|| StatusCode::SERVICE_UNAVAILABLE.into_response())
    });
    assert!(is_marked(&origin).await);
}

#[tokio::test]
async fn bucket_listing_of_service_with_ranges_is_not_misled_by_another_response() {
    let Bucket { server, origin } = large_objects().await;
    for (headers, bytes) in [
        (&[][..], 2 << 20),
        (&[("etag", "\"another\"")], 2 << 20),
        (&[("etag", "\"v0\"")], 1000),
        (&[("etag", "\"v0\""), ("content-encoding", "gzip")], 2 << 20),
    ] {
        let probes = probes(&server, move |number, _| {
            let headers = headers
                .iter()
                .map(|(name, value)| (name.parse().expect("a header"), value.parse().expect("a value")));
            let headers: HeaderMap = headers.collect();
            (number == 0).then(|| (headers, vec![7; bytes]).into_response())
        });
        assert_eq!((is_marked(&origin).await, probes.load(Ordering::Relaxed)), (false, 2), "{headers:?}");
    }
}

#[tokio::test]
async fn bucket_listing_gives_up_a_silent_probe_once() {
    let Bucket { server, origin } = large_objects().await;
    server.silent.store(true, Ordering::Relaxed);
    let probes = probes(&server, |_, _| None);
    let clock = async {
        while probes.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(5)).await;
        }
        pause();
        advance(MAX_RESPONSE_TIMEOUT).await;
        resume();
    };
    let listed = timeout(MAX_RESPONSE_TIMEOUT * 2, async { tokio::join!(is_marked(&origin), clock) });
    assert!(!listed.await.expect("listed in time").0);
    assert_eq!(probes.load(Ordering::Relaxed), 1);
}
