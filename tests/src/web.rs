//! A web server over a directory of files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;

use crate::fault::Faults;
use crate::file;
use crate::serve::Server;
use crate::tally::Tally;

/// A web server over a directory: GET and HEAD, ranges, ETag and Last-Modified.
#[derive(Debug)]
pub struct Web {
    /// To stop and start it.
    pub server: Server,
    /// What it served.
    pub tally: Tally,
    /// What it does wrong.
    pub faults: Faults,
}

impl Web {
    /// Serves the files below `root`.
    pub fn start(root: &Path) -> Self {
        let (tally, faults) = (Tally::default(), Faults::default());
        let app = Router::new().fallback(serve).with_state(root.to_owned());
        let server = Server::start(tally.around(faults.around(app)), 0);
        Self { server, tally, faults }
    }

    /// The URL of the file at `path` below the root; `path` is encoded already.
    pub fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.server.url())
    }
}

async fn serve(State(root): State<PathBuf>, request: Request) -> Response {
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
