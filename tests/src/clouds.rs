//! Google Cloud Storage and Azure Blob Storage over a directory of buckets, each a directory of files: what it takes to list and
//! read them, for everybody. The real protocols are tried against emulators that others wrote.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use crate::fault::Faults;
use crate::federation::StorageTokens;
use crate::file;
use crate::serve::HttpServer;

/// A server that speaks both protocols.
#[derive(Debug)]
pub struct CloudServer {
    /// To stop and start it.
    pub server: HttpServer,
    /// Its faults.
    pub faults: Faults,
}

impl CloudServer {
    /// Serves the buckets below `root`.
    pub fn start(root: &Path) -> Self {
        Self::serve(app(root))
    }

    /// The same, for requests with one of `tokens` only.
    pub fn guarded(root: &Path, tokens: &StorageTokens) -> Self {
        Self::serve(tokens.around(app(root)))
    }

    fn serve(app: Router) -> Self {
        let faults = Faults::default();
        Self { server: HttpServer::start(faults.around(app), 0), faults }
    }
}

fn app(root: &Path) -> Router {
    Router::new().fallback(serve).with_state(root.to_owned())
}

async fn serve(State(root): State<PathBuf>, request: Request) -> Response {
    let decode = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
    let parts: Vec<String> = request.uri().path().split('/').skip(1).map(decode).collect();
    if parts.iter().any(|part| part == "..") {
        return StatusCode::BAD_REQUEST.into_response();
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts[..] {
        ["storage", "v1", "b", bucket, "o"] => google_page(&root.join(bucket), &request),
        ["storage", "v1", "b", bucket, "o", key] => {
            google_object(&root.join(bucket).join(key), request).await
        }
        [container] => azure_page(&root.join(container)),
        _ => object(&root.join(parts.join("/")), request).await,
    }
}

async fn object(path: &Path, request: Request) -> Response {
    file::answer(request.method(), request.headers(), path).await.unwrap_or_else(IntoResponse::into_response)
}

/// The names of the files of a bucket, with what is known of them.
fn files(bucket: &Path) -> Vec<(String, fs::Metadata)> {
    let files = fs::read_dir(bucket).expect("a bucket").map(|entry| {
        let entry = entry.expect("an entry");
        (entry.file_name().into_string().expect("UTF-8"), entry.metadata().expect("there"))
    });
    files.collect()
}

/// Another number whenever the file was written.
fn generation(meta: &fs::Metadata) -> String {
    (meta.mtime() * 1_000_000_000 + meta.mtime_nsec()).to_string()
}

/// The value of the parameter `name` of a request.
fn parameter(request: &Request, name: &str) -> Option<String> {
    let mut pairs = request.uri().query()?.split('&');
    let value = pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

fn google_page(bucket: &Path, request: &Request) -> Response {
    let prefix = parameter(request, "prefix").unwrap_or_default();
    let items = files(bucket).into_iter().filter(|(name, _)| name.starts_with(&prefix)).map(|(name, meta)| {
        json!({
            "kind": "storage#object", "name": name, "size": meta.len().to_string(), "generation": generation(&meta),
            "updated": "2026-01-02T03:04:05.000Z",
        })
    });
    let mut page = json!({ "kind": "storage#objects", "items": items.collect::<Vec<_>>() });
    if let Some(fields) = parameter(request, "fields") {
        keep_fields(page.as_object_mut().expect("an object"), &fields);
    }
    page.to_string().into_response()
}

/// Removes from a page what `fields` does not name (`kind,items(name,size)`), and no items at all, as Google does.
fn keep_fields(page: &mut Map<String, Value>, fields: &str) {
    let (of_page, of_items) = fields.split_once("items(").unwrap_or((fields, ""));
    let (of_items, after) = of_items.split_once(')').unwrap_or((of_items, ""));
    let names = |list: &str, name: &str| list.split(',').any(|named| named == name);
    page.retain(|name, value| match value {
        Value::Array(items) => {
            for item in items.iter_mut().filter_map(Value::as_object_mut) {
                item.retain(|name, _| names(of_items, name));
            }
            !items.is_empty() && !of_items.is_empty()
        }
        _ => names(of_page, name) || names(after, name),
    });
}

/// An object, if it is of the generation that is asked for.
async fn google_object(path: &Path, request: Request) -> Response {
    let Ok(meta) = fs::metadata(path) else { return StatusCode::NOT_FOUND.into_response() };
    if parameter(&request, "generation").is_some_and(|asked| asked != generation(&meta)) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let mut response = object(path, request).await;
    response.headers_mut().insert("x-goog-generation", generation(&meta).parse().expect("digits"));
    response
}

fn azure_page(container: &Path) -> Response {
    let mut page = String::from("<EnumerationResults><Blobs>");
    for (name, meta) in files(container) {
        let (etag, len) = (file::etag(&meta).replace('"', ""), meta.len());
        write!(
            page,
            "<Blob><Name>{name}</Name><Properties><Etag>{etag}</Etag><Content-Length>{len}</Content-Length>\
             <Last-Modified>Fri, 02 Jan 2026 03:04:05 GMT</Last-Modified></Properties></Blob>"
        )
        .expect("a string");
    }
    format!("{page}</Blobs><NextMarker/></EnumerationResults>").into_response()
}
