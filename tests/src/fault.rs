//! Faults of a server, as a decorator around it that is switched while it runs.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, IF_NONE_MATCH, LOCATION, RANGE, RETRY_AFTER,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, future, stream};
use parking_lot::Mutex;

/// The faults of a server's answers to GET; of one kind to writes on a condition; with [latency](ServerFault::Latency) to any
/// request.
#[derive(Clone, Debug)]
pub enum ServerFault {
    /// It answers a request for a range with the whole file and 200.
    IgnoreRange,
    /// Its `Content-Range` names another range than the one asked for.
    WrongRange,
    /// The body ends after this many bytes, short of its `Content-Length`.
    Truncate(u64),
    /// Every byte of the body is another one; length and headers are right.
    Garble,
    /// The body comes encoded, whole, with `Content-Encoding: gzip`, unasked.
    Gzip,
    /// It answers with this status, and asks to be left alone for this many seconds.
    Status(StatusCode, Option<u32>),
    /// Every other time it answers with this status.
    Half(StatusCode),
    /// It answers 429, and says in both ways that there are (`Retry-After`, `RateLimit`) how many seconds are to pass.
    Limited(u32, u32),
    /// It accepts the request and never answers.
    Silence,
    /// It sends the head of the answer and this many bytes, then nothing, on an open connection.
    Stall(u64),
    /// It sends the body at this many bytes a second, five pieces a second.
    Drip(u64),
    /// It answers 200 with a page for people, as a proxy or a captive portal.
    Page,
    /// It sends the client elsewhere: to this URL with the request's path behind it.
    Redirect(String),
    /// It answers any request after this latency, as a store that is not on this machine.
    Latency(Duration),
    /// It answers a write on a condition with 412, and does not do it.
    UnmetCondition,
}

/// The switch of a server's faults. Clones are handles to one and the same.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Option<(ServerFault, u64)>>>, Arc<AtomicBool>);

impl Faults {
    /// `app`, with a fault where one is set.
    pub fn around(&self, app: Router) -> Router {
        app.layer(from_fn_with_state(self.clone(), spoil))
    }

    /// From now on every GET meets `fault`.
    pub fn set(&self, fault: ServerFault) {
        self.times(fault, u64::MAX);
    }

    /// The next `times` GETs meet `fault`.
    pub fn times(&self, fault: ServerFault, times: u64) {
        *self.0.lock() = Some((fault, times));
    }

    /// No fault from now on, for new requests.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }

    /// Whether this is an odd request, for [`ServerFault::Half`].
    fn odd(&self) -> bool {
        self.1.fetch_xor(true, Ordering::Relaxed)
    }

    fn next(&self, request: &Request) -> Option<ServerFault> {
        let mut set = self.0.lock();
        let meets = |fault: &ServerFault| match fault {
            ServerFault::Latency(_) => true,
            ServerFault::UnmetCondition => {
                request.headers().contains_key(IF_NONE_MATCH) && request.method() == Method::PUT
            }
            _ => request.method() == Method::GET,
        };
        let (fault, times) = set.as_mut().filter(|(fault, times)| *times > 0 && meets(fault))?;
        *times -= 1;
        Some(fault.clone())
    }
}

async fn spoil(State(faults): State<Faults>, mut request: Request, next: Next) -> Response {
    match faults.next(&request) {
        None => next.run(request).await,
        Some(ServerFault::Latency(wait)) => {
            tokio::time::sleep(wait).await;
            next.run(request).await
        }
        Some(ServerFault::UnmetCondition) => StatusCode::PRECONDITION_FAILED.into_response(),
        Some(ServerFault::IgnoreRange) => {
            request.headers_mut().remove(RANGE);
            next.run(request).await
        }
        Some(ServerFault::WrongRange) => {
            let mut response = next.run(request).await;
            if let Some(range) = response.headers_mut().get_mut(CONTENT_RANGE) {
                *range = shifted(range);
            }
            response
        }
        Some(ServerFault::Truncate(after)) => with_body(next.run(request).await, |body| {
            Body::from_stream(head(body, after).chain(stream::once(cut())))
        }),
        Some(ServerFault::Stall(after)) => with_body(next.run(request).await, |body| {
            Body::from_stream(head(body, after).chain(stream::once(pending())))
        }),
        Some(ServerFault::Drip(rate)) => with_body(next.run(request).await, |body| dripping(body, rate)),
        Some(ServerFault::Garble) => with_body(next.run(request).await, flipped),
        Some(ServerFault::Gzip) => {
            // The length is unknown beforehand, so it has neither a length nor parts.
            request.headers_mut().remove(RANGE);
            let mut response = with_body(next.run(request).await, flipped);
            response.headers_mut().remove(CONTENT_LENGTH);
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        }
        Some(ServerFault::Status(status, retry_after)) => {
            let mut response = status.into_response();
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(RETRY_AFTER, seconds.into());
            }
            response
        }
        Some(ServerFault::Half(status)) => match faults.odd() {
            true => status.into_response(),
            false => next.run(request).await,
        },
        Some(ServerFault::Limited(retry_after, limit)) => {
            let limit = format!("\"api\";r=12;t=3, \"files\";r=0;t={limit}");
            let headers = [(RETRY_AFTER.as_str(), retry_after.to_string()), ("ratelimit", limit)];
            (StatusCode::TOO_MANY_REQUESTS, headers).into_response()
        }
        Some(ServerFault::Page) => axum::response::Html("<html>Please wait</html>").into_response(),
        Some(ServerFault::Silence) => pending().await,
        Some(ServerFault::Redirect(base)) => {
            (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, format!("{base}{}", request.uri()))]).into_response()
        }
    }
}

/// Ends a body, once what came before it had the time to be sent.
async fn cut() -> Result<Bytes, axum::Error> {
    tokio::time::sleep(Duration::from_millis(50)).await;
    Err(axum::Error::new(io::Error::other("cut short by the test")))
}

fn with_body(response: Response, change: impl FnOnce(Body) -> Body) -> Response {
    let (parts, body) = response.into_parts();
    Response::from_parts(parts, change(body))
}

fn flipped(body: Body) -> Body {
    let flip = |piece: Bytes| piece.iter().map(|byte| !byte).collect::<Bytes>();
    Body::from_stream(body.into_data_stream().map_ok(flip))
}

/// The same, `rate` bytes a second.
fn dripping(body: Body, rate: u64) -> Body {
    let pieces = body.into_data_stream().map_ok(move |piece: Bytes| {
        let step = (rate / 5).max(1) as usize;
        stream::iter(
            (0..piece.len()).step_by(step).map(move |at| piece.slice(at..piece.len().min(at + step))),
        )
        .then(|drop| async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok::<_, axum::Error>(drop)
        })
    });
    Body::from_stream(pieces.try_flatten())
}

/// The first `limit` bytes of `body`.
fn head(body: Body, limit: u64) -> impl futures_util::Stream<Item = Result<Bytes, axum::Error>> {
    body.into_data_stream()
        .scan(limit, |left, piece| {
            let piece = piece.map(|bytes| bytes.slice(..bytes.len().min(*left as usize)));
            *left -= piece.as_ref().map_or(0, |bytes| bytes.len() as u64);
            future::ready(Some(piece))
        })
        .take_while(|piece| future::ready(piece.as_ref().map_or(true, |bytes| !bytes.is_empty())))
}

/// `bytes a-b/n` with a and b moved by one.
fn shifted(range: &HeaderValue) -> HeaderValue {
    let text = range.to_str().expect("ours are text");
    let moved = text.split_inclusive(['-', '/', ' ']).enumerate().map(|(at, part)| match at {
        1 | 2 => {
            let digits = part.trim_end_matches(['-', '/']);
            format!("{}{}", digits.parse::<u64>().expect("a number") + 1, &part[digits.len()..])
        }
        _ => part.to_owned(),
    });
    HeaderValue::from_str(&moved.collect::<String>()).expect("digits are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_range_shifted_moves_by_one() {
        assert_eq!(shifted(&HeaderValue::from_static("bytes 0-9/100")), "bytes 1-10/100");
    }
}
