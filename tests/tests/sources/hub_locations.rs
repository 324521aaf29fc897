//! Where the Hub says that a file is: asked once, used as long as it is good, and asked again as soon as it is not.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use bdnfs::blob::Blob;
use bdnfs::error::Kind;
use bdnfs::tier::Origin;
use bdnfs::tier::conformance::pinned;
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::hub::{HubServer, LFS_THRESHOLD_BYTES};
use bdnfs_tests::tree::content;

use crate::hub_origin::{fetch, open};

/// A Hub, a repository there as an origin, and its large file `w`, with its content.
async fn large_file() -> (HubServer, Arc<dyn Origin>, Blob, Vec<u8>) {
    let hub = HubServer::start();
    let bytes = content("w", 5 * LFS_THRESHOLD_BYTES);
    hub.publish("models/org/m", "main", &[("w", &bytes)]);
    let origin = open(&hub, "hf://org/m", None).await.unwrap();
    let blob = pinned(&*origin, "w").await.unwrap();
    (hub, origin, blob, bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_signed_url_is_used_until_it_expires() {
    let (hub, origin, blob, bytes) = large_file().await;
    let resolved = || hub.requests.gets("/w").requests;
    let reads = async || {
        for start in [0, 7, 40_000] {
            let got = fetch(&*origin, &blob, start..start + 9).await.unwrap();
            assert_eq!(got, bytes[start as usize..start as usize + 9]);
        }
    };
    reads().await;
    assert_eq!(resolved(), 1);
    hub.revoke_signed_urls();
    reads().await;
    assert_eq!(resolved(), 2, "once anew");
    hub.revoke_signed_urls();
    hub.set_url_expiry(1_000_000_000);
    reads().await;
    assert_eq!(resolved(), 5, "an address that has expired by its own words is not kept");

    hub.storage.faults.set(ServerFault::Status(StatusCode::FORBIDDEN, None));
    let error = fetch(&*origin, &blob, 0..9).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("refuses the URL that the Hub gave"), "{error}");
    assert!(!error.to_string().contains("signed-"), "{error}");
    for (fault, kind) in [
        (ServerFault::IgnoreRange, Kind::Unsupported),
        (ServerFault::WrongRange, Kind::Corrupt),
        (ServerFault::Gzip, Kind::Unsupported),
        (ServerFault::Truncate(3), Kind::Unavailable),
        (ServerFault::Status(StatusCode::SERVICE_UNAVAILABLE, None), Kind::Unavailable),
    ] {
        hub.storage.faults.set(fault.clone());
        assert_eq!(fetch(&*origin, &blob, 1..9).await.unwrap_err().kind(), kind, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_origin_read_in_parallel_ranges_asks_the_hub_once_for_the_url() {
    let hub = HubServer::start();
    hub.serve_small_files_directly();
    let (large, small) = (content("w", LFS_THRESHOLD_BYTES), content("s", 500));
    hub.publish("models/org/m", "main", &[("w", &large), ("s", &small)]);
    let origin = &*open(&hub, "hf://org/m", None).await.unwrap();
    let reads = async |path: &str, bytes: &[u8]| {
        let blob = &pinned(origin, path).await.unwrap();
        let read = |start: u64| async move {
            let expected = &bytes[start as usize..start as usize + 9];
            assert_eq!(fetch(origin, blob, start..start + 9).await.unwrap(), expected);
        };
        futures_util::future::join_all((0..16).map(|n| read(n * 10))).await;
        hub.requests.gets(&format!("/{path}")).requests
    };
    assert_eq!(reads("w", &large).await, 1);
    hub.revoke_signed_urls();
    assert_eq!(reads("w", &large).await, 2, "one more after all of them were refused");
    // What the Hub sends itself takes one request for each range, and no other.
    assert_eq!(reads("s", &small).await, 16);
    assert_eq!(reads("s", &small).await, 32);
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_that_led_to_a_dead_or_wrong_server_once_is_asked_again() {
    let (hub, origin, blob, bytes) = large_file().await;
    let read = async || fetch(&*origin, &blob, 1..9).await;
    // Nobody listens on this port, which only root may.
    hub.lead_to("http://127.0.0.1:1");
    assert_eq!(read().await.unwrap_err().kind(), Kind::Unavailable);
    hub.lead_to(&hub.storage.server.url());
    assert_eq!(read().await.unwrap(), bytes[1..9]);
    assert_eq!(hub.requests.gets("/w").requests, 2);
    for fault in [ServerFault::WrongRange, ServerFault::Status(StatusCode::BAD_GATEWAY, None)] {
        let asked = hub.requests.gets("/w").requests;
        hub.storage.faults.set(fault);
        read().await.unwrap_err();
        hub.storage.faults.clear();
        assert_eq!(read().await.unwrap(), bytes[1..9]);
        assert_eq!(hub.requests.gets("/w").requests, asked + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_that_never_says_where_a_file_is_is_asked_by_the_next_request() {
    let (hub, origin, blob, bytes) = large_file().await;
    hub.faults.times(ServerFault::Silence, 1);
    let read = fetch(&*origin, &blob, 1..9);
    let second = async {
        while hub.requests.gets("/w").requests == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        fetch(&*origin, &blob, 1..9).await
    };
    tokio::select! {
        _ = read => panic!("it was never answered"),
        second = second => assert_eq!(second.unwrap(), bytes[1..9]),
    }
}
