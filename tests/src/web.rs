//! A web server over a directory of files, which may want to know who asks.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT_RANGES, AUTHORIZATION, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH, LAST_MODIFIED, RANGE,
    WWW_AUTHENTICATE,
};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;

use crate::fault::Faults;
use crate::file;
use crate::requests::RequestCounter;
use crate::serve::HttpServer;

/// A web server over a directory: GET and HEAD, ranges, ETag and Last-Modified.
#[derive(Debug)]
pub struct WebServer {
    /// To stop and start it.
    pub server: HttpServer,
    /// The requests that it served.
    pub requests: RequestCounter,
    /// Its faults.
    pub faults: Faults,
    guard: Arc<Mutex<WebAccess>>,
}

/// The features that a third-party server lacks, as recorded from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebDialect {
    /// Nothing.
    #[default]
    Full,
    /// lighttpd 1.4 with a file whose extension has no MIME type (`.safetensors`, `.gguf`): neither ETag nor Last-Modified,
    /// and so no conditions.
    LighttpdWithoutMimeType,
    /// `python3 -m http.server` (3.11): Last-Modified, but neither ETag nor ranges nor conditions.
    PythonHttpServer,
}

/// The values of `Authorization` that are accepted, and until when; or none is needed.
#[derive(Debug, Default)]
struct WebAccess {
    admitted: Option<Vec<(String, Option<SystemTime>)>>,
    /// Requests that had an `Authorization`.
    told: u64,
}

impl WebServer {
    /// Serves the files below `root`.
    pub fn start(root: &Path) -> Self {
        Self::with_dialect(WebDialect::Full, root)
    }

    /// Serves the files below `root` as another server would.
    pub fn with_dialect(dialect: WebDialect, root: &Path) -> Self {
        let (requests, faults, guard) =
            (RequestCounter::default(), Faults::default(), Arc::<Mutex<WebAccess>>::default());
        let app = Router::new().fallback(serve).with_state((root.to_owned(), guard.clone()));
        let app = app.layer(from_fn_with_state(dialect, speak));
        let server = HttpServer::start(requests.around(faults.around(app)), 0);
        Self { server, requests, faults, guard }
    }

    /// From now on only these values of `Authorization` are let in, each until its time.
    pub fn accept_only(&self, admitted: &[(&str, Option<SystemTime>)]) {
        let admitted = admitted.iter().map(|(value, until)| ((*value).to_owned(), *until)).collect();
        self.guard.lock().admitted = Some(admitted);
    }

    /// How many requests had an `Authorization` header.
    pub fn authorized_requests(&self) -> u64 {
        self.guard.lock().told
    }

    /// The URL of the file at `path` below the root; `path` is encoded already.
    pub fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.server.url())
    }
}

impl WebAccess {
    fn admits(&mut self, value: Option<&str>) -> bool {
        self.told += u64::from(value.is_some());
        let Some(admitted) = &self.admitted else { return true };
        let good = |until: &Option<SystemTime>| until.is_none_or(|until| until > SystemTime::now());
        admitted.iter().any(|(known, until)| Some(known.as_str()) == value && good(until))
    }
}

/// Leaves out what the dialect does not have.
async fn speak(State(dialect): State<WebDialect>, mut request: Request, next: Next) -> Response {
    let (asked, answered): (&[HeaderName], &[HeaderName]) = match dialect {
        WebDialect::Full => (&[], &[]),
        WebDialect::LighttpdWithoutMimeType => (&[IF_MATCH, IF_NONE_MATCH], &[ETAG, LAST_MODIFIED]),
        WebDialect::PythonHttpServer => (&[IF_MATCH, IF_NONE_MATCH, RANGE], &[ETAG, ACCEPT_RANGES]),
    };
    asked.iter().for_each(|name| _ = request.headers_mut().remove(name));
    let mut response = next.run(request).await;
    answered.iter().for_each(|name| _ = response.headers_mut().remove(name));
    response
}

async fn serve(State((root, guard)): State<(PathBuf, Arc<Mutex<WebAccess>>)>, request: Request) -> Response {
    let value = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    if !guard.lock().admits(value) {
        return (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")]).into_response();
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let path: Vec<u8> = percent_decode_str(request.uri().path().trim_start_matches('/')).collect();
    if path.split(|byte| *byte == b'/').any(|part| part == b"..") {
        return StatusCode::BAD_REQUEST.into_response();
    }
    let path = root.join(OsStr::from_bytes(&path));
    file::answer(request.method(), request.headers(), &path).await.unwrap_or_else(IntoResponse::into_response)
}
