//! An S3 server over a directory: `root/bucket/key`.
//!
//! It speaks the part of the protocol that object storage clients use (path-style addresses): signatures (version 4),
//! GET and HEAD with ranges and conditions, listings page by page, PUT with conditions, multipart uploads, DELETE.
//! ETags are strong and change with the content, but are no MD5. The crate `s3s-fs` was tried first; it hashes a
//! file anew for every GET, ignores If-Match and reads 4 KiB at a time.

mod list;
mod sign;
mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;

use crate::fault::Faults;
use crate::file;
use crate::requests::RequestCounter;
use crate::serve::{HttpServer, ReservedPort};

pub use sign::Keys;
pub(crate) use sign::{hex, verify_for};

/// An S3 server on loopback.
#[derive(Debug)]
pub struct S3Server {
    /// To stop and start it.
    pub server: HttpServer,
    /// The requests that it served.
    pub requests: RequestCounter,
    /// Its faults.
    pub faults: Faults,
    store: Arc<BucketStore>,
}

impl S3Server {
    /// Serves the buckets below `root`, to those who sign with `keys`; to everybody where there are none.
    pub fn start(root: &Path, keys: Option<Keys>) -> Self {
        Self::on_port(root, keys, 0)
    }

    /// The same, on a port of one's choice.
    pub fn on_port(root: &Path, keys: Option<Keys>, port: u16) -> Self {
        Self::at(root, keys, ReservedPort::take(port))
    }

    /// The same, on any port.
    pub fn at(root: &Path, keys: Option<Keys>, port: ReservedPort) -> Self {
        let (requests, faults) = (RequestCounter::default(), Faults::default());
        let (open, admitted) =
            (keys.is_none(), Mutex::new(keys.map(|keys| (keys, None)).into_iter().collect()));
        let store = Arc::new(BucketStore { root: root.to_owned(), open, admitted, ..BucketStore::default() });
        let app = Router::new().fallback(serve).with_state(store.clone());
        let server = HttpServer::on_port(requests.around(faults.around(app)), port);
        Self { server, requests, faults, store }
    }

    /// The keys that it accepts.
    pub fn allowed_keys(&self) -> AllowedKeys {
        AllowedKeys(self.store.clone())
    }

    /// Takes no notice of the conditions of writes any more, as many services do.
    pub fn ignore_conditions(&self) {
        self.store.unconditional.store(true, Ordering::Relaxed);
    }

    /// Lets everybody read `bucket` from now on. Requests that are signed still need accepted keys, as on AWS.
    pub fn allow_anonymous_reads(&self, bucket: &str) {
        *self.store.public.lock() = Some(bucket.to_owned());
    }

    /// Is in `region` from now on, and answers requests that are signed for another as AWS does.
    pub fn move_to(&self, region: &str) {
        *self.store.region.lock() = Some(region.to_owned());
    }

    /// Puts an object whose key no file can have (`a//b`, `../c`, `dir/`): it is served from `file`.
    pub fn put_odd_key(&self, bucket: &str, key: &str, file: &Path) {
        let mut odd = self.store.odd.lock();
        odd.insert((bucket.to_owned(), key.to_owned()), file.to_owned());
    }
}

/// The keys that a server accepts, to be changed while it runs.
#[derive(Clone, Debug)]
pub struct AllowedKeys(Arc<BucketStore>);

impl AllowedKeys {
    /// Accepts `keys` beside those that it accepts already; until `until`, if that is given.
    pub fn allow(&self, keys: Keys, until: Option<SystemTime>) {
        self.0.admitted.lock().push((keys, until));
    }

    /// Accepts no key any more.
    pub fn revoke_all(&self) {
        self.0.admitted.lock().clear();
    }
}

/// The buckets, and what is under way in them.
#[derive(Debug, Default)]
struct BucketStore {
    root: PathBuf,
    /// Whether everybody is let in.
    open: bool,
    /// The keys that are accepted, and until when.
    admitted: Mutex<Vec<(Keys, Option<SystemTime>)>>,
    odd: Mutex<BTreeMap<(String, String), PathBuf>>,
    /// The bucket that everybody may read, if there is one.
    public: Mutex<Option<String>>,
    /// Whether the conditions of writes are ignored.
    unconditional: AtomicBool,
    /// The region that requests have to be signed for, if that matters.
    region: Mutex<Option<String>>,
    listings: list::ListingPages,
    /// Held while an object is published, so that its condition and its rename are one.
    publish: Mutex<()>,
}

impl BucketStore {
    /// Whether a request is signed with an accepted key.
    fn verify(&self, request: &Parts) -> Result<(), S3Error> {
        let admitted = self.admitted.lock();
        let mut refusal = S3Error(StatusCode::FORBIDDEN, "InvalidAccessKeyId");
        for (keys, until) in &*admitted {
            match sign::verify(keys, request) {
                Ok(()) if until.is_some_and(|until| until <= SystemTime::now()) => {
                    return Err(S3Error(StatusCode::BAD_REQUEST, "ExpiredToken"));
                }
                Ok(()) => return Ok(()),
                // The key is known, so that is what's wrong.
                Err(why) if why.1 != "InvalidAccessKeyId" => refusal = why,
                Err(_) => {}
            }
        }
        Err(refusal)
    }

    /// The file of an object.
    fn path(&self, bucket: &str, key: &str) -> Result<PathBuf, S3Error> {
        let odd = self.odd.lock();
        if let Some(file) = odd.get(&(bucket.to_owned(), key.to_owned())) {
            return Ok(file.clone());
        }
        let strange = |part: &str| matches!(part, "" | "." | "..") || part.starts_with(write::UPLOAD_PREFIX);
        if strange(bucket) || key.split('/').any(strange) {
            return Err(S3Error(StatusCode::BAD_REQUEST, "InvalidArgument"));
        }
        Ok(self.root.join(bucket).join(key))
    }
}

/// Why a request is not answered: status and code of the error document.
#[derive(Debug)]
pub(crate) struct S3Error(pub(crate) StatusCode, pub(crate) &'static str);

impl IntoResponse for S3Error {
    fn into_response(self) -> Response {
        let text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{}</Code><Message>{}</Message></Error>",
            self.1,
            self.0.canonical_reason().unwrap_or_default()
        );
        (self.0, [("content-type", "application/xml")], text).into_response()
    }
}

impl From<StatusCode> for S3Error {
    fn from(status: StatusCode) -> Self {
        let code = match status {
            StatusCode::NOT_FOUND => "NoSuchKey",
            StatusCode::PRECONDITION_FAILED => "PreconditionFailed",
            StatusCode::RANGE_NOT_SATISFIABLE => "InvalidRange",
            StatusCode::NOT_MODIFIED => "NotModified",
            _ => "InvalidRequest",
        };
        Self(status, code)
    }
}

impl From<std::io::Error> for S3Error {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound => StatusCode::NOT_FOUND.into(),
            _ => Self(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        }
    }
}

type S3Result = Result<Response, S3Error>;

async fn serve(State(store): State<Arc<BucketStore>>, request: Request) -> Response {
    route(&store, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn route(store: &Arc<BucketStore>, request: Request) -> S3Result {
    let (head, body) = request.into_parts();
    if let Some(region) = store.region.lock().as_deref().filter(|region| !sign::is_for(region, &head)) {
        return Ok(
            (StatusCode::MOVED_PERMANENTLY, [("x-amz-bucket-region", region.to_owned())]).into_response()
        );
    }
    let path = percent_decode_str(head.uri.path().trim_start_matches('/')).decode_utf8();
    let path = path.map_err(|_| S3Error(StatusCode::BAD_REQUEST, "InvalidURI"))?.into_owned();
    let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
    let is_public = store.public.lock().as_deref() == Some(bucket)
        && matches!(head.method, Method::GET | Method::HEAD)
        && !head.headers.contains_key(AUTHORIZATION);
    if !store.open && !is_public {
        store.verify(&head)?;
    }
    let query = S3Query::new(head.uri.query().unwrap_or_default());
    if !store.root.join(bucket).is_dir() {
        return Err(S3Error(StatusCode::NOT_FOUND, "NoSuchBucket"));
    }
    if key.is_empty() {
        return match head.method {
            Method::GET => list::answer(store, bucket.to_owned(), query).await,
            Method::HEAD => Ok(StatusCode::OK.into_response()),
            Method::POST if query.get("delete").is_some() => write::delete(store, bucket, body).await,
            _ => Err(S3Error(StatusCode::NOT_IMPLEMENTED, "NotImplemented")),
        };
    }
    let path = store.path(bucket, key)?;
    match head.method {
        Method::GET | Method::HEAD => Ok(file::answer(&head.method, &head.headers, &path).await?),
        _ => write::answer(store, &head, body, &query, &path).await,
    }
}

/// A request's query, decoded.
#[derive(Debug)]
struct S3Query(BTreeMap<String, String>);

impl S3Query {
    fn new(text: &str) -> Self {
        let decode =
            |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = text
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Self(pairs.map(|(name, value)| (decode(name), decode(value))).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}
