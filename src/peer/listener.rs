//! The listener: peers' requests as they come in over HTTP.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Limited, StreamBody};
use hyper::body::{self, Incoming};
use hyper::header::{CONNECTION, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::identity::Identity;
use super::link::{FROM, LETTERS};
use super::server::{Caller, Server};
use super::wire::{Ask, Frame, Frames, Reply};
use crate::error::{Error, Result};

/// How many connections there may be. More wait to be accepted.
const CONNECTIONS: usize = 4096;

/// How long a connection may take to prove who is there, and a request to be complete. What is open and idle longer than
/// that costs a descriptor, and no peer keeps one longer than a minute.
const PATIENCE: Duration = Duration::from_secs(70);
const HANDSHAKE: Duration = Duration::from_secs(3);

/// How long to wait when no connection can be accepted: the process has too many open files.
const FULL: Duration = Duration::from_millis(100);

/// The longest letter, in bytes: what gossip makes fits into a datagram.
const LETTER: usize = 64 << 10;

type Body = UnsyncBoxBody<Bytes, Error>;

/// Serves `server` to whoever connects and has a certificate of the cluster's; to whoever connects, without `identity`.
/// Ends when it is dropped.
pub async fn serve(listener: TcpListener, server: Arc<Server>, identity: Option<Arc<Identity>>) {
    if identity.is_none() {
        tracing::warn!(
            "PEERS ARE SERVED WITHOUT TLS: whoever can connect reads every tenant's data; this is for tests on one machine"
        );
    }
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a peer's connection");
                tokio::time::sleep(FULL).await;
                continue;
            }
        };
        let (server, identity) = (server.clone(), identity.clone());
        connections.spawn(async move {
            connection(stream, server, identity).await;
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, server: Arc<Server>, identity: Option<Arc<Identity>>) {
    // Only a matter of speed.
    let _ = stream.set_nodelay(true);
    let Some(identity) = identity else {
        return requests(stream, server, Caller::ANYBODY, || true).await;
    };
    let version = identity.version();
    let proved = timeout(HANDSHAKE, identity.accept(stream)).await;
    match proved {
        Ok(Ok((stream, caller))) => requests(stream, server, caller, || identity.version() == version).await,
        Ok(Err(error)) => tracing::debug!(%error, "a connection was refused"),
        Err(_) => tracing::debug!("a connection did not prove who it is"),
    }
}

/// Answers the requests of one connection, as long as it is `current`: who it is was proved to an identity that may have
/// been replaced.
async fn requests(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    server: Arc<Server>,
    caller: Caller,
    current: impl Fn() -> bool,
) {
    let (server, caller, current) = (&server, &caller, &current);
    let answer = service_fn(|request: Request<Incoming>| async move {
        let mut response = match (request.method(), request.uri().path()) {
            (&Method::GET, _) => respond(server, caller, &request).await,
            (&Method::POST, LETTERS) => letter(server, request).await,
            _ => empty(StatusCode::NOT_FOUND),
        };
        if !current() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok::<_, Infallible>(response)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), answer).await {
        tracing::debug!(%error, "a peer's connection ended");
    }
}

async fn respond(server: &Arc<Server>, caller: &Caller, request: &Request<Incoming>) -> Response<Body> {
    let header = |name: &str| request.headers().get(name)?.to_str().ok();
    let Some(ask) = Ask::parse(request.uri().path(), header) else { return empty(StatusCode::NOT_FOUND) };
    match server.answer(caller, ask).await {
        Reply::Miss => empty(StatusCode::NOT_FOUND),
        Reply::Busy(wait) => with(empty(StatusCode::SERVICE_UNAVAILABLE), RETRY_AFTER, wait.as_secs().max(1)),
        Reply::Frames(frames) => Response::new(StreamBody::new(encoded(frames)).boxed_unsync()),
    }
}

fn encoded(frames: Frames) -> impl Stream<Item = Result<body::Frame<Bytes>>> {
    let pieces = |frame: Result<Frame>| match frame {
        Ok(frame) => frame.encode().into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    };
    frames.flat_map(move |frame| stream::iter(pieces(frame))).map_ok(body::Frame::data)
}

async fn letter(server: &Server, request: Request<Incoming>) -> Response<Body> {
    let from = request.headers().get(FROM).and_then(|from| from.to_str().ok()?.parse().ok());
    let (Some(letterbox), Some(from)) = (server.letterbox(), from) else {
        return empty(StatusCode::NOT_FOUND);
    };
    match timeout(HANDSHAKE, Limited::new(request.into_body(), LETTER).collect()).await {
        Ok(Ok(letter)) => letterbox.put((from, letter.to_bytes())),
        _ => return empty(StatusCode::BAD_REQUEST),
    }
    empty(StatusCode::OK)
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

fn with(mut response: Response<Body>, name: HeaderName, value: u64) -> Response<Body> {
    response.headers_mut().insert(name, value.into());
    response
}
