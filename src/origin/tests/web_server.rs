use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::test_server::OriginServer;
use super::{failed, listed};
use crate::blob::Blob;
use crate::error::{Error, Kind};
use crate::origin::web::{WebOrigin, is_unconditional};
use crate::source::{Access, Patterns};
use crate::tier::conformance::{self, Subject, pinned};
use crate::tier::{Tier, Urgency};

pub(super) struct Site {
    pub(super) server: Arc<OriginServer>,
    pub(super) origin: WebOrigin,
}

/// A server, and the origin of `path` on it.
pub(super) async fn site(path: &str) -> Site {
    let server = OriginServer::start().await;
    let origin = open(&server, path);
    Site { server, origin }
}

fn open(server: &OriginServer, path: &str) -> WebOrigin {
    let url = Url::parse(&format!("{}/{path}", server.url)).expect("URL");
    WebOrigin::open(&url, &Access::default()).expect("loopback")
}

fn index(path: &str) -> String {
    format!(r#"{{"files": [{{"path": "{path}"}}]}}"#)
}

impl Subject for Site {
    fn tier(&self) -> &dyn Tier {
        &self.origin
    }

    fn put<'a>(&'a self, path: &'a str, content: Bytes) -> BoxFuture<'a, Blob> {
        self.server.put(&format!("dir/{path}"), content);
        self.server.put("dir/bdnfs.json", index(path));
        async move { pinned(&self.origin, path).await.expect("listed") }.boxed()
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        self.server.remove(&format!("dir/{path}"));
        async {}.boxed()
    }
}

/// A file SHA256SUMS, with what `content` has.
pub(super) fn sums(path: &str, content: &str) -> String {
    let hash = blake3::Hash::from_bytes(Sha256::digest(content).into());
    format!("{}  {path}\n", hash.to_hex())
}

pub(super) async fn fetched(site: &Site, blob: &Blob, range: std::ops::Range<u64>) -> Result<Bytes, Error> {
    let body = site.origin.fetch(blob, range, Urgency::Read).await?.expect("an origin has no misses");
    Ok(body.try_collect::<Vec<Bytes>>().await?.concat().into())
}

#[tokio::test]
async fn web_origin_conforms_to_the_tier_suite() {
    conformance::suite(&site("dir/").await).await;
}

#[tokio::test]
async fn web_server_that_ignores_conditions_conforms_to_the_tier_suite() {
    let site = site("dir/").await;
    site.server.conditions.store(false, Ordering::Relaxed);
    conformance::suite(&site).await;
}

#[tokio::test]
async fn web_origin_of_a_single_file_is_a_tree_of_one() {
    let site = site("d/m%20x.bin?sig=hush").await;
    site.server.put("d/m x.bin", "weights");
    for head in [true, false] {
        site.server.rule(move |request| {
            (!head && request.method() == Method::HEAD)
                .then(|| StatusCode::METHOD_NOT_ALLOWED.into_response())
        });
        let paths = listed(&site.origin, Patterns::default()).await.expect("listed");
        assert_eq!(paths, [("m x.bin".to_owned(), "7".to_owned())]);
    }
    let blob = pinned(&site.origin, "m x.bin").await.expect("pinned");
    assert_eq!(fetched(&site, &blob, 2..5).await.expect("fetch"), "igh");
    site.server.remove("d/m x.bin");
    let error = failed(&site.origin).await;
    assert_eq!(error.kind(), Kind::NotFound);
    let said = format!("{}/d/m%20x.bin?***: the server returned 404 Not Found", site.server.url);
    assert!(error.to_string().starts_with(&said), "{error}");
}

#[tokio::test]
async fn web_directory_lists_what_its_index_names() {
    let site = site("d/").await;
    let error = failed(&site.origin).await;
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("neither bdnfs.json nor SHA256SUMS"), "{error}");

    site.server.put("d/a/b c", "xyz");
    let hash = Sha256::digest("xyz");
    let hex = blake3::Hash::from_bytes(hash.into()).to_hex();
    site.server.put("d/SHA256SUMS", format!("{hex}  ./a/b c\n"));
    let expected = [("a".to_owned(), "directory".to_owned()), ("a/b c".to_owned(), "3".to_owned())];
    assert_eq!(listed(&site.origin, Patterns::default()).await.expect("listed"), expected);
    let blob = pinned(&site.origin, "a/b c").await.expect("pinned");
    assert_eq!(blob.sha256, Some(hash.into()));
    assert_eq!(fetched(&site, &blob, 0..3).await.expect("fetch"), "xyz");

    // The better index is preferred; what it tells whole is not asked after.
    site.server.put("d/bdnfs.json", r#"{"files": [{"path": "told", "size": 9, "etag": "\"x\""}]}"#);
    let before = site.server.requests.load(Ordering::Relaxed);
    let paths = listed(&site.origin, Patterns::default()).await.expect("listed");
    assert_eq!(paths, [("told".to_owned(), "9".to_owned())]);
    assert_eq!(site.server.requests.load(Ordering::Relaxed) - before, 1);
    assert_eq!(
        listed(&open(&site.server, "d/SHA256SUMS"), Patterns::default()).await.expect("sums"),
        expected
    );
}

#[tokio::test]
async fn web_index_with_a_wrong_entry_is_refused_by_name() {
    let site = site("d/bdnfs.json").await;
    for (files, kind, said) in [
        (index("../up"), Kind::Invalid, "\"../up\": a part is '.' or '..'"),
        (index("/abs"), Kind::Invalid, "\"/abs\": it begins with '/'"),
        (index("gone"), Kind::NotFound, "/d/gone: the server returned 404"),
        (r#"{"files": [{"path": "here", "size": 4}]}"#.into(), Kind::Invalid, "says 4 bytes, the server 3"),
        ("<html>".into(), Kind::Invalid, "/d/bdnfs.json: not an index"),
    ] {
        site.server.put("d/here", "xyz");
        site.server.put("d/bdnfs.json", files);
        let error = failed(&site.origin).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[tokio::test]
async fn web_file_without_a_version_is_refused_unless_its_hash_is_known() {
    let site = site("d/").await;
    site.server.etags.store(false, Ordering::Relaxed);
    site.server.put("d/x", "xyz");
    site.server.put("d/bdnfs.json", index("x"));
    let error = failed(&site.origin).await;
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("neither a strong ETag nor Last-Modified"), "{error}");
    site.server.remove("d/bdnfs.json");
    site.server.put("d/SHA256SUMS", format!("{}  x\n", "00".repeat(32)));
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    assert_eq!(fetched(&site, &blob, 0..3).await.expect("fetch"), "xyz");
    assert!(is_unconditional(&blob.version), "it is not checked before it is read");
}

#[tokio::test]
async fn web_file_without_a_version_is_read_in_parts_if_unpinned_is_set() {
    let site = site("x").await;
    site.server.etags.store(false, Ordering::Relaxed);
    site.server.put("x", "xyz");
    let url = Url::parse(&format!("{}/x", site.server.url)).expect("URL");
    let unpinned = Access { unpinned: true, ..Access::default() };
    let site = Site { origin: WebOrigin::open(&url, &unpinned).expect("loopback"), ..site };
    let blob = pinned(&site.origin, "x").await.expect("listed");
    assert_eq!(fetched(&site, &blob, 1..3).await.expect("fetch"), "yz");
    assert!(!is_unconditional(&blob.version), "it would be fetched whole");
    let again = pinned(&site.origin, "x").await.expect("listed");
    assert_ne!(again.version, blob.version, "what was cached may be of another state");
}

#[tokio::test]
async fn web_server_without_ranges_serves_whole_files_only() {
    let site = site("x").await;
    site.server.put("x", "weights");
    site.server.ranges.store(false, Ordering::Relaxed);
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    assert_eq!(fetched(&site, &blob, 0..7).await.expect("whole"), "weights");
    let error = fetched(&site, &blob, 1..7).await.expect_err("a part");
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("ignores Range"), "{error}");
}

#[tokio::test]
async fn web_listing_of_a_server_without_ranges_marks_its_files() {
    let site = site("x").await;
    site.server.put("x", vec![7; 2 << 20]);
    assert!(!pinned(&site.origin, "x").await.expect("pinned").version.starts_with(b"whole"), "it has ranges");
    site.server.ranges.store(false, Ordering::Relaxed);
    let content: Vec<u8> = (0..2 << 20).map(|i| (i % 251) as u8).collect();
    site.server.put("x", content.clone());
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    assert!(blob.version.starts_with(b"whole etag "), "{:?}", blob.version);
    for range in [0..2 << 20, 1..7, 1_000_000..1_500_000, (2 << 20) - 1..2 << 20] {
        let part = fetched(&site, &blob, range.start as u64..range.end as u64).await.expect("skipped to");
        assert!(part == content[range.clone()], "{range:?}");
    }
    site.server.put("x", vec![7; 2 << 20]);
    assert_eq!(fetched(&site, &blob, 1..7).await.expect_err("changed").kind(), Kind::Changed);
}

#[tokio::test]
async fn web_listing_of_a_complete_index_probes_one_file_for_ranges() {
    let index = r#"{"files": [{"path": "gone", "size": 9, "etag": "\"x\""}, {"path": "a", "size": 2097152, "etag":
                   "\"x\""}, {"path": "b", "size": 2097152, "etag": "\"x\""}]}"#;
    for ranges in [true, false] {
        let site = site("d/").await;
        site.server.put("d/bdnfs.json", index);
        site.server.put("d/a", vec![7; 2 << 20]);
        site.server.ranges.store(ranges, Ordering::Relaxed);
        for (path, is_large) in [("a", true), ("b", true), ("gone", false)] {
            let before = site.server.requests.load(Ordering::Relaxed);
            let blob = pinned(&site.origin, path).await.expect("pinned");
            assert_eq!(blob.version.starts_with(b"whole etag "), is_large && !ranges, "{path}");
            assert!(site.server.requests.load(Ordering::Relaxed) - before <= 3);
        }
    }
}

#[tokio::test]
async fn web_server_that_only_claims_ranges_is_read_whole() {
    let site = site("x").await;
    site.server.put("x", vec![7; 2 << 20]);
    site.server.ranges.store(false, Ordering::Relaxed);
    site.server.rule(|request| {
        let headers = [("content-length", "2097152"), ("accept-ranges", "bytes"), ("etag", "\"v0\"")];
        (request.method() == Method::HEAD).then(|| headers.into_response())
    });
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    assert_eq!(fetched(&site, &blob, 1..3).await.expect("skipped to"), [7, 7][..]);
}

#[tokio::test]
async fn web_refusal_says_what_to_do() {
    let site = site("x?sig=hush").await;
    site.server.put("x", "weights");
    let blob = pinned(&site.origin, "x").await.expect("pinned");
    for (status, kind, said) in [
        (401, Kind::Refused, "401 Unauthorized; no credentials were sent"),
        (403, Kind::Refused, "403 Forbidden; no credentials were sent"),
        (404, Kind::Changed, "is gone, though the snapshot has it (the server returned 404 Not Found"),
        (410, Kind::Changed, "is gone, though the snapshot has it (the server returned 410 Gone"),
        (409, Kind::Unavailable, "409 Conflict"),
        (412, Kind::Changed, "412 Precondition Failed"),
        (416, Kind::Changed, "416 Range Not Satisfiable"),
        (500, Kind::Unavailable, "500 Internal Server Error"),
        (504, Kind::Timeout, "504 Gateway Timeout"),
    ] {
        let status = StatusCode::from_u16(status).expect("status");
        site.server.rule(move |_| Some(status.into_response()));
        let error = fetched(&site, &blob, 0..7).await.expect_err("refused");
        assert_eq!(error.kind(), kind, "{error}");
        let text = error.to_string();
        assert!(text.contains(said) && text.contains("/x?***") && !text.contains("hush"), "{text}");
    }
    // The kernel accepts the connection, and no server ever answers.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/x", port.local_addr().expect("bound"));
    let silent = WebOrigin::open(&Url::parse(&url).expect("URL"), &Access::default()).expect("open");
    // Nothing is left to wait for but the deadlines: 5, 10 and 20 seconds.
    tokio::time::pause();
    let error = failed(&silent).await;
    tokio::time::resume();
    assert_eq!(error.kind(), Kind::Timeout);
    assert_eq!(error.to_string(), format!("{url}: the server did not respond within 20 s"));
    // No server listens there.
    let gone =
        WebOrigin::open(&Url::parse("http://127.0.0.1:1/x?sig=hush").expect("URL"), &Access::default())
            .expect("open");
    let error = failed(&gone).await;
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("cannot connect to the server: Connection refused"), "{error}");
    assert!(!error.to_string().contains("hush"), "{error}");
}

#[tokio::test]
async fn web_file_said_to_be_empty_by_head_is_read() {
    let site = site("x").await;
    for content in ["weights", ""] {
        site.server.put("x", content);
        // Sanic says so of every file.
        site.server.rule(|request| {
            let headers = [("content-length", "0"), ("accept-ranges", "bytes"), ("etag", "\"v0\"")];
            (request.method() == Method::HEAD).then(|| headers.into_response())
        });
        assert_eq!(pinned(&site.origin, "x").await.expect("pinned").size, content.len() as u64);
    }
    // Many servers send no version with a status of 416.
    site.server.rule(|request| {
        let headers = [("content-range", "bytes */0")];
        (request.method() == Method::GET)
            .then(|| (StatusCode::RANGE_NOT_SATISFIABLE, headers).into_response())
    });
    assert_eq!(pinned(&site.origin, "x").await.expect("pinned").size, 0);
}

#[tokio::test]
async fn web_index_that_calls_a_file_empty_against_its_digest_is_refused() {
    let site = site("d/").await;
    site.server.put("d/x", "");
    site.server.put("d/SHA256SUMS", format!("{}  x\n", "00".repeat(32)));
    let error = failed(&site.origin).await;
    let said = "its size is 0, and its SHA-256 is not that of an empty file";
    assert!(error.kind() == Kind::Invalid && error.to_string().contains(said), "{error}");
    site.server.put("d/SHA256SUMS", sums("x", ""));
    assert_eq!(pinned(&site.origin, "x").await.expect("pinned").size, 0);
}
