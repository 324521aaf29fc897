//! Counts the requests to a server and the bytes of its answers: the proof that nothing is fetched twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, RANGE};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::{Router, http::Method};
use futures_util::TryStreamExt;
use parking_lot::Mutex;

/// The range that a listing asks a bucket for, to see whether its service has ranges. Nothing is ever read in such parts.
const PROBED_RANGE: &str = "bytes=1-1";

/// The requests that one server served, by method and path; those by which a listing probes for ranges are counted apart.
/// Clones are handles to the same list.
#[derive(Clone, Debug, Default)]
pub struct RequestCounter {
    counts: Arc<Mutex<BTreeMap<(Method, String), RequestCount>>>,
    range_probes: Arc<AtomicU64>,
}

/// Requests, and the bytes of their bodies and of those that answered them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCount {
    /// Requests received.
    pub requests: u64,
    /// Bytes handed to the network in answer.
    pub bytes: u64,
    /// Bytes of the requests' own bodies.
    pub received: u64,
}

impl RequestCounter {
    /// `app`, counted.
    pub fn around(&self, app: Router) -> Router {
        app.layer(from_fn_with_state(self.clone(), count))
    }

    /// Everything of `method` on paths that `select` takes. Paths are as on the wire: encoded, without the query.
    pub fn of(&self, method: Method, select: impl Fn(&str) -> bool) -> RequestCount {
        self.sum(|(m, path)| *m == method && select(path))
    }

    /// Everything.
    pub fn all(&self) -> RequestCount {
        self.sum(|_| true)
    }

    fn sum(&self, select: impl Fn(&(Method, String)) -> bool) -> RequestCount {
        let counts = self.counts.lock();
        let chosen = counts.iter().filter(|(key, _)| select(key));
        chosen.fold(RequestCount::default(), |sum, (_, one)| RequestCount {
            requests: sum.requests + one.requests,
            bytes: sum.bytes + one.bytes,
            received: sum.received + one.received,
        })
    }

    /// All GETs of paths that end in `suffix`.
    pub fn gets(&self, suffix: &str) -> RequestCount {
        self.of(Method::GET, |path| path.ends_with(suffix))
    }

    /// How often listings asked for a part of an object, to see whether there are ranges.
    pub fn range_probes(&self) -> u64 {
        self.range_probes.load(Ordering::Relaxed)
    }

    /// Forgets all requests so far.
    pub fn clear(&self) {
        self.counts.lock().clear();
        self.range_probes.store(0, Ordering::Relaxed);
    }

    fn add(&self, key: &(Method, String), more: RequestCount) {
        let mut counts = self.counts.lock();
        let count = counts.entry(key.clone()).or_default();
        count.requests += more.requests;
        count.bytes += more.bytes;
        count.received += more.received;
    }
}

async fn count(State(requests): State<RequestCounter>, request: Request, next: Next) -> Response {
    if request.headers().get(RANGE).is_some_and(|range| range == PROBED_RANGE) {
        requests.range_probes.fetch_add(1, Ordering::Relaxed);
        return next.run(request).await;
    }
    let key = (request.method().clone(), request.uri().path().to_owned());
    requests.add(&key, RequestCount { requests: 1, ..RequestCount::default() });
    let (head, body) = request.into_parts();
    let (sent, sender) = (requests.clone(), key.clone());
    let body = body.into_data_stream().inspect_ok(move |piece| {
        sent.add(&sender, RequestCount { received: piece.len() as u64, ..RequestCount::default() });
    });
    let (mut head, body) = next.run(Request::from_parts(head, Body::from_stream(body))).await.into_parts();
    if let Some(exact) = body.size_hint().exact() {
        head.headers.entry(CONTENT_LENGTH).or_insert(exact.into());
    }
    let counted = body.into_data_stream().inspect_ok(move |piece| {
        requests.add(&key, RequestCount { bytes: piece.len() as u64, ..RequestCount::default() });
    });
    Response::from_parts(head, Body::from_stream(counted))
}
