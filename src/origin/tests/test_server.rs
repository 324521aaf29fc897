//! A web server on loopback for the tests of origins: files with ETags, ranges and conditions, and an S3 service's
//! listing of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use parking_lot::Mutex;
use percent_encoding::{percent_decode_str, utf8_percent_encode};

use crate::http_client::PATH_SEGMENT_ENCODE_SET;

/// The number of keys on a page of a listing: few, so that there are several.
const PAGE: usize = 3;

/// A rule of a test: the response in place of the server's.
pub type Rule = Box<dyn Fn(&Request) -> Option<Response> + Send>;

#[derive(Default)]
pub struct OriginServer {
    pub url: String,
    files: Mutex<BTreeMap<String, (usize, Bytes)>>,
    puts: AtomicUsize,
    rule: Mutex<Option<Rule>>,
    /// Whether it has ETags, knows ranges and heeds conditions.
    pub etags: AtomicBool,
    /// Whether its listings have them.
    pub listed_etags: AtomicBool,
    pub ranges: AtomicBool,
    pub conditions: AtomicBool,
    /// Whether it never answers a request for a range.
    pub silent: AtomicBool,
    pub requests: AtomicUsize,
}

impl OriginServer {
    pub async fn start() -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let yes = || AtomicBool::new(true);
        let server = Self {
            url,
            etags: yes(),
            listed_etags: yes(),
            ranges: yes(),
            conditions: yes(),
            ..Self::default()
        };
        let server = Arc::new(server);
        let app = Router::new().fallback(answer).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        server
    }

    /// Puts a file; `path` has no slash before it and is not encoded.
    pub fn put(&self, path: &str, content: impl Into<Bytes>) {
        let version = self.puts.fetch_add(1, Ordering::Relaxed);
        self.files.lock().insert(path.into(), (version, content.into()));
    }

    pub fn remove(&self, path: &str) {
        self.files.lock().remove(path);
    }

    /// Lets `rule` answer every request first.
    pub fn rule(&self, rule: impl Fn(&Request) -> Option<Response> + Send + 'static) {
        *self.rule.lock() = Some(Box::new(rule));
    }

    fn file(&self, path: &str, head: bool, headers: &HeaderMap) -> Response {
        let asked = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let Some((version, content)) = self.files.lock().get(path).cloned() else {
            return (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>").into_response();
        };
        let etag = format!("\"v{version}\"");
        if self.conditions.load(Ordering::Relaxed) && asked("if-match").is_some_and(|asked| asked != etag) {
            return StatusCode::PRECONDITION_FAILED.into_response();
        }
        let size = content.len();
        let range = asked("range").filter(|_| self.ranges.load(Ordering::Relaxed)).map(|range| {
            let (first, last) =
                range.strip_prefix("bytes=").and_then(|r| r.split_once('-')).expect("a range");
            (
                first.parse::<usize>().expect("first"),
                last.parse::<usize>().expect("last").min(size.max(1) - 1),
            )
        });
        let mut response = Response::builder();
        if self.etags.load(Ordering::Relaxed) {
            response = response.header("etag", etag).header("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");
        }
        let (status, body) = match range {
            Some((first, _)) if first >= size => {
                response = response.header("content-range", format!("bytes */{size}"));
                (StatusCode::RANGE_NOT_SATISFIABLE, Bytes::new())
            }
            Some((first, last)) => {
                response = response.header("content-range", format!("bytes {first}-{last}/{size}"));
                (StatusCode::PARTIAL_CONTENT, content.slice(first..=last))
            }
            None => (StatusCode::OK, content),
        };
        let response = response.status(status).header("content-length", body.len());
        response.body(if head { Body::empty() } else { body.into() }).expect("a response")
    }

    /// A page of the keys that begin with `prefix` and come after `after`: with the number of their version and their
    /// size; and what the next page comes after.
    fn page(&self, bucket: &str, prefix: &str, after: &str) -> (Vec<(String, usize, usize)>, Option<String>) {
        let files = self.files.lock();
        let all = files.iter().filter_map(|(path, (version, content))| {
            let key = path.strip_prefix(bucket)?.strip_prefix('/')?;
            (key.starts_with(prefix) && key > after).then(|| (key.to_owned(), *version, content.len()))
        });
        let mut page: Vec<_> = all.take(PAGE + 1).collect();
        let more = page.len() > PAGE;
        page.truncate(PAGE);
        let next = page.last().filter(|_| more).map(|(key, ..)| key.clone());
        (page, next)
    }

    /// A page of Google's.
    fn google(&self, bucket: &str, query: &BTreeMap<String, String>) -> Response {
        let asked = |name: &str| query.get(name).map_or("", String::as_str);
        let (page, next) = self.page(bucket, asked("prefix"), asked("pageToken"));
        let items = page.iter().map(|(key, version, size)| {
            serde_json::json!({
                "name": key, "size": size.to_string(), "generation": version.to_string(),
                "updated": "2026-01-02T03:04:05.000Z",
            })
        });
        let mut answer = serde_json::json!({ "items": items.collect::<Vec<_>>() });
        if let Some(next) = next {
            answer["nextPageToken"] = next.into();
        }
        answer.to_string().into_response()
    }

    /// An object of Google's; of a generation that is no more there is nothing.
    fn generation(&self, path: &str, generation: &str, headers: &HeaderMap) -> Response {
        let version = self.files.lock().get(path).map(|(version, _)| version.to_string());
        if version.as_deref() != Some(generation) {
            return StatusCode::NOT_FOUND.into_response();
        }
        let mut response = self.file(path, false, headers);
        response.headers_mut().remove("etag");
        response.headers_mut().insert("x-goog-generation", generation.parse().expect("a number"));
        response
    }

    /// A page of Azure's.
    fn azure(&self, bucket: &str, query: &BTreeMap<String, String>) -> Response {
        let asked = |name: &str| query.get(name).map_or("", String::as_str);
        let (page, next) = self.page(bucket, asked("prefix"), asked("marker"));
        let mut xml =
            String::from("\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Blobs>");
        for (key, version, size) in page {
            let key = utf8_percent_encode(&key, PATH_SEGMENT_ENCODE_SET);
            let _ = write!(
                xml,
                "<Blob><Name Encoded=\"true\">{key}</Name><Properties><Etag>v{version}</Etag>\
                 <Last-Modified>Fri, 02 Jan 2026 03:04:05 GMT</Last-Modified>\
                 <Content-Length>{size}</Content-Length></Properties></Blob>"
            );
        }
        let next = next.unwrap_or_default().replace('&', "&amp;").replace('<', "&lt;");
        let xml = format!("{xml}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>");
        xml.into_response()
    }

    /// A page of ListObjectsV2.
    fn list(&self, bucket: &str, query: &BTreeMap<String, String>) -> Response {
        let asked = |name: &str| query.get(name).map_or("", String::as_str);
        let (page, next) = self.page(bucket, asked("prefix"), asked("continuation-token"));
        let mut xml = String::from("<ListBucketResult><EncodingType>url</EncodingType>");
        for (key, version, size) in page {
            let key = utf8_percent_encode(&key, PATH_SEGMENT_ENCODE_SET).to_string().replace("%20", "+");
            let etag = match self.listed_etags.load(Ordering::Relaxed) {
                true => format!("<ETag>&quot;v{version}&quot;</ETag>"),
                false => String::new(),
            };
            let _ = write!(
                xml,
                "<Contents><Key>{key}</Key><Size>{size}</Size>{etag}\
                 <LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
            );
        }
        if let Some(next) = next {
            let next = next.replace('&', "&amp;").replace('<', "&lt;");
            let _ = write!(xml, "<NextContinuationToken>{next}</NextContinuationToken>");
        }
        (xml + "</ListBucketResult>").into_response()
    }
}

async fn answer(State(server): State<Arc<OriginServer>>, request: Request) -> Response {
    server.requests.fetch_add(1, Ordering::Relaxed);
    if let Some(response) = server.rule.lock().as_ref().and_then(|rule| rule(&request)) {
        return response;
    }
    if server.silent.load(Ordering::Relaxed) && request.headers().contains_key("range") {
        return pending().await;
    }
    let path = percent_decode_str(&request.uri().path()[1..]).decode_utf8().expect("UTF-8").into_owned();
    let query =
        url::form_urlencoded::parse(request.uri().query().unwrap_or("").as_bytes()).into_owned().collect();
    let query: BTreeMap<String, String> = query;
    let google = path.strip_prefix("storage/v1/b/").and_then(|rest| rest.split_once("/o"));
    match (google, &query) {
        (Some((bucket, "")), query) => server.google(bucket, query),
        (Some((bucket, key)), query) => {
            let generation = query.get("generation").map_or("", String::as_str);
            server.generation(&format!("{bucket}{key}"), generation, request.headers())
        }
        (None, query) if query.contains_key("list-type") => server.list(&path, query),
        (None, query) if query.get("comp").is_some_and(|comp| comp == "list") => server.azure(&path, query),
        _ => server.file(&path, request.method() == Method::HEAD, request.headers()),
    }
}
