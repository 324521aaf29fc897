//! Web servers that fail, redirect, or send other bytes than asked for.

use std::sync::atomic::{AtomicIsize, Ordering};

use axum::http::{Method, StatusCode};
use axum::response::{Html, IntoResponse, Redirect, Response};
use url::Url;

use super::web_server::{fetched, site, sums};
use crate::blob::{Blob, WHOLE_MARK};
use crate::block::BLOCK;
use crate::error::Kind;
use crate::origin::web::WebOrigin;
use crate::source::Access;
use crate::tier::conformance::pinned;
use crate::tier::{Tier, Urgency};

#[tokio::test]
async fn web_server_that_fails_once_is_asked_again() {
    let site = site("d/").await;
    site.server.put("d/x", "xyz");
    site.server.put("d/SHA256SUMS", sums("x", "xyz"));
    let asked = parking_lot::Mutex::new(std::collections::BTreeSet::new());
    site.server.rule(move |request| {
        let first = asked.lock().insert(request.uri().path().to_owned());
        first.then(|| StatusCode::BAD_GATEWAY.into_response())
    });
    assert_eq!(pinned(&site.origin, "x").await.expect("pinned").size, 3);
}

#[tokio::test]
async fn web_probe_that_contradicts_head_is_repeated_then_refused() {
    const SIZE: usize = (BLOCK + 3) as usize;
    let other_responses: [fn() -> Response; 6] = [
        || {
            let headers = [("content-range", "bytes 0-0/99"), ("etag", "\"v0\"")];
            (StatusCode::PARTIAL_CONTENT, headers, "x").into_response()
        },
        || Html("<html>Please wait</html>").into_response(),
        || ([("etag", "\"portal\"")], "<html>Please wait</html>").into_response(),
        || Redirect::temporary("/portal").into_response(),
        || StatusCode::RANGE_NOT_SATISFIABLE.into_response(),
        || ([("etag", "\"other\"")], vec![0; SIZE]).into_response(),
    ];
    for (number, other) in other_responses.into_iter().enumerate() {
        let site = site("x").await;
        site.server.put("x", vec![7; SIZE]);
        site.server.put("portal", "Please log in");
        let expected = pinned(&site.origin, "x").await.expect("pinned");
        assert_eq!(expected.size, SIZE as u64);
        for (times, is_listed) in [(1, true), (isize::MAX, false)] {
            let left = AtomicIsize::new(times);
            site.server.rule(move |request| {
                let is_probe = request.method() == Method::GET && request.uri().path() == "/x";
                (is_probe && left.fetch_sub(1, Ordering::Relaxed) > 0).then(other)
            });
            match pinned(&site.origin, "x").await {
                Ok(listed) => {
                    let is_same = (listed.size, &listed.version) == (expected.size, &expected.version);
                    assert!(is_listed && is_same, "{number}: {listed:?}");
                }
                Err(error) => {
                    let is_told = error.to_string().contains("responses to HEAD and to GET have different ");
                    assert!(!is_listed && is_told, "{number}: {error}");
                }
            }
        }
    }
}

#[tokio::test]
async fn web_server_that_is_busy_is_not_asked_before_retry_after() {
    let site = site("x").await;
    site.server.put("x", "weights");
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    let busy =
        |after: &'static str| (StatusCode::TOO_MANY_REQUESTS, [("retry-after", after)]).into_response();
    let once = std::sync::atomic::AtomicBool::new(true);
    site.server.rule(move |_| once.swap(false, Ordering::Relaxed).then(|| busy("1")));
    assert_eq!(fetched(&site, &blob, 0..7).await.expect("after a second"), "weights");

    site.server.rule(move |_| Some(busy("30")));
    let before = site.server.requests.load(Ordering::Relaxed);
    let error = fetched(&site, &blob, 0..7).await.expect_err("busy");
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("429 Too Many Requests"), "{error}");
    let error = fetched(&site, &blob, 0..7).await.expect_err("not asked at all");
    assert!(error.to_string().contains("asked not to be sent requests for another"), "{error}");
    assert_eq!(site.server.requests.load(Ordering::Relaxed) - before, 1);
}

#[tokio::test]
async fn web_redirect_is_followed_unless_endless_or_to_plain_http() {
    let site = site("x").await;
    site.server.put("y", "weights");
    site.server
        .rule(|request| (request.uri().path() == "/x").then(|| Redirect::temporary("/y").into_response()));
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    assert_eq!(fetched(&site, &blob, 0..7).await.expect("fetch"), "weights");
    for (to, said) in [
        ("/x", "more than 10 redirects"),
        ("http://example.org/", "it leads to plain http"),
        ("ftp://127.0.0.1/x", "it does not lead to a web server"),
    ] {
        site.server.rule(move |_| Some(Redirect::temporary(to).into_response()));
        let error = fetched(&site, &blob, 0..7).await.expect_err("a bad redirect");
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[tokio::test]
async fn web_redirect_to_the_metadata_service_is_not_followed() {
    let site = site("x").await;
    site.server.put("x", "weights");
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    for to in ["http://169.254.169.254/latest/meta-data", "http://[fe80::1]/", "http://2852039166/latest"] {
        site.server.rule(move |_| Some(Redirect::temporary(to).into_response()));
        let allowed = Access { allow_http: true, ..Access::default() };
        let origin =
            WebOrigin::open(&Url::parse(&site.server.url).expect("URL").join("x").expect("URL"), &allowed);
        let fetch = origin.expect("open").fetch(&blob, 0..7, Urgency::Read).await.map(|_| ());
        let error = fetch.expect_err(to);
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert!(error.to_string().contains("link-local address"), "{error}");
    }
}

#[tokio::test]
async fn web_page_in_place_of_a_file_is_not_taken_for_a_change() {
    let site = site("x").await;
    site.server.put("x", "weights");
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    site.server.rule(|_| Some("<html>Please wait</html>".into_response()));
    let error = fetched(&site, &blob, 0..7).await.expect_err("a page");
    assert_eq!(error.kind(), Kind::Unsupported);
    let said = "/x: the server's response lacks the version of its earlier ones; perhaps another server responds in its place";
    assert!(error.to_string().ends_with(said), "{error}");
}

#[tokio::test]
async fn web_file_that_comes_encoded_is_refused_whatever_its_size() {
    const SAID: &str = "/x: the server sends it encoded, though asked not to";
    for size in [100, 2 << 20] {
        let site = site("x").await;
        site.server.put("x", vec![7; size]);
        let blob = pinned(&site.origin, "x").await.expect("pinned");
        let whole =
            move || ([("etag", "\"v0\""), ("content-encoding", "gzip")], vec![7; size]).into_response();
        site.server.rule(move |_| Some(whole()));
        let error = pinned(&site.origin, "x").await.expect_err("listed");
        assert!(error.kind() == Kind::Unsupported && error.to_string().ends_with(SAID), "{error}");
        // One whose server ignores Range is read whole.
        let version = [WHOLE_MARK.as_bytes(), &blob.version].concat().into();
        let error = fetched(&site, &Blob { version, ..blob }, 1..4).await.expect_err("read");
        assert!(error.kind() == Kind::Unsupported && error.to_string().ends_with(SAID), "{error}");
    }
}

#[tokio::test]
async fn web_file_stored_encoded_is_read_as_it_is_stored() {
    let site = site("x").await;
    site.server.put("x", "weights");
    let stored = [("etag", "\"v0\""), ("content-encoding", "x-gzip")];
    site.server.rule(move |request| {
        let range = request.headers().get("range").map(|range| range.to_str().expect("a range").to_owned());
        Some(match range.as_deref() {
            None => (stored, "weights").into_response(),
            Some("bytes=0-0") => {
                (StatusCode::PARTIAL_CONTENT, stored, [("content-range", "bytes 0-0/7")], "w").into_response()
            }
            _ => (StatusCode::PARTIAL_CONTENT, stored, [("content-range", "bytes 1-3/7")], "eig")
                .into_response(),
        })
    });
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    assert_eq!(fetched(&site, &blob, 1..4).await.expect("fetch"), "eig");
}

#[tokio::test]
async fn web_server_that_sends_other_bytes_is_refused() {
    let site = site("x").await;
    site.server.put("x", "weights");
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    for (range, kind) in [
        ("bytes 0-2/7", Kind::Corrupt),
        ("bytes 1-3/8", Kind::Changed),
        ("rows", Kind::Corrupt),
        ("bytes 1-2/7", Kind::Unsupported),
    ] {
        site.server.rule(move |_| {
            let headers = [("content-range", range), ("etag", "\"v0\"")];
            Some((StatusCode::PARTIAL_CONTENT, headers, "wei").into_response())
        });
        let error = fetched(&site, &blob, 1..4).await.expect_err(range);
        assert_eq!(error.kind(), kind, "{error}");
    }
    site.server.rule(|_| {
        let headers = [("content-range", "bytes 1-3/7"), ("etag", "\"v0\"")];
        Some((StatusCode::PARTIAL_CONTENT, headers, "eigh").into_response())
    });
    assert_eq!(fetched(&site, &blob, 1..4).await.expect_err("long").kind(), Kind::Corrupt);
}
