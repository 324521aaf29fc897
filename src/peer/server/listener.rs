//! The listener: accepts connections of peers, and serves their requests over HTTP.

use std::convert::Infallible;
use std::io;
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

use super::PeerServer;
use crate::error::{Error, Result};
use crate::peer::identity::{Caller, Identity};
use crate::peer::membership::gossip_client::{GOSSIP_FROM, GOSSIP_PATH};
use crate::peer::wire::{BlockRequest, BlockResponse, Frame, Frames};

/// The most connections at once. More wait to be accepted.
const MAX_CONNECTIONS: usize = 4096;

/// The time for which a connection may be idle, or take for the head of a request. No peer keeps an idle connection for longer than
/// a minute.
const LISTENER_IDLE_TIMEOUT: Duration = Duration::from_secs(70);
/// The time that a TLS handshake may take, or the body of a gossip message.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// The time for which a peer may take nothing of what is sent to it: as long as a read of it may last.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The time to wait when a connection can't be accepted: the process has too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The longest gossip message, in bytes: chitchat's fit into a datagram.
const MAX_GOSSIP_MESSAGE_BYTES: usize = 64 << 10;

type HttpBody = UnsyncBoxBody<Bytes, Error>;

/// Serves `server` to clients with a certificate of the cluster; without `identity`, to any client. Ends when it is
/// dropped.
pub async fn serve(listener: TcpListener, server: Arc<PeerServer>, identity: Option<Arc<Identity>>) {
    if identity.is_none() {
        tracing::warn!(
            "PEERS ARE SERVED WITHOUT TLS: any client that connects reads every tenant's data; use this only for tests on one machine"
        );
    }
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a peer's connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
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

async fn connection(stream: TcpStream, server: Arc<PeerServer>, identity: Option<Arc<Identity>>) {
    // Best effort: it only costs speed.
    let _ = stream.set_nodelay(true);
    if let Err(error) = end_when_unread(&stream, UNREAD_TIMEOUT) {
        tracing::debug!(%error, "a peer that reads nothing is waited for");
    }
    let Some(identity) = identity else {
        return requests(stream, server, Caller::ANONYMOUS, || true).await;
    };
    let version = identity.version();
    let proved = timeout(HANDSHAKE_TIMEOUT, identity.accept(stream)).await;
    match proved {
        Ok(Ok((stream, caller))) => requests(stream, server, caller, || identity.version() == version).await,
        Ok(Err(error)) => tracing::debug!(%error, "a peer's TLS handshake failed"),
        Err(_) => tracing::debug!("a peer's TLS handshake timed out"),
    }
}

/// Has the kernel end a connection whose other end has taken nothing of what was sent for so long: it is gone, or does not read,
/// and what waits to be sent to it keeps its place in the budget.
fn end_when_unread(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    let milliseconds = timeout.as_millis().try_into().unwrap_or(u32::MAX);
    Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, milliseconds)?)
}

/// Serves the requests of one connection, until it is no more `current`: it was authenticated with an identity that may have
/// been replaced since.
async fn requests(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    server: Arc<PeerServer>,
    caller: Caller,
    current: impl Fn() -> bool,
) {
    let (server, caller, current) = (&server, &caller, &current);
    let answer = service_fn(|request: Request<Incoming>| async move {
        let mut response = match (request.method(), request.uri().path()) {
            (&Method::GET, _) => respond(server, caller, &request).await,
            (&Method::POST, GOSSIP_PATH) => receive_gossip(server, request).await,
            _ => empty(StatusCode::NOT_FOUND),
        };
        if !current() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok::<_, Infallible>(response)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(LISTENER_IDLE_TIMEOUT);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), answer).await {
        tracing::debug!(%error, "a peer's connection ended");
    }
}

async fn respond(
    server: &Arc<PeerServer>,
    caller: &Caller,
    request: &Request<Incoming>,
) -> Response<HttpBody> {
    let header = |name: &str| request.headers().get(name)?.to_str().ok();
    let Some(request) = BlockRequest::parse(request.uri().path(), header) else {
        return empty(StatusCode::NOT_FOUND);
    };
    match server.answer(caller, request).await {
        BlockResponse::Miss => empty(StatusCode::NOT_FOUND),
        BlockResponse::Busy(wait) => {
            with_header(empty(StatusCode::SERVICE_UNAVAILABLE), RETRY_AFTER, wait.as_secs().max(1))
        }
        BlockResponse::Frames(frames) => Response::new(StreamBody::new(encoded(frames)).boxed_unsync()),
    }
}

fn encoded(frames: Frames) -> impl Stream<Item = Result<body::Frame<Bytes>>> {
    let pieces = |frame: Result<Frame>| match frame {
        Ok(frame) => frame.encode().into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    };
    frames.flat_map(move |frame| stream::iter(pieces(frame))).map_ok(body::Frame::data)
}

async fn receive_gossip(server: &PeerServer, request: Request<Incoming>) -> Response<HttpBody> {
    let from = request.headers().get(GOSSIP_FROM).and_then(|from| from.to_str().ok()?.parse().ok());
    let (Some(sender), Some(from)) = (server.gossip_sender(), from) else {
        return empty(StatusCode::NOT_FOUND);
    };
    match timeout(HANDSHAKE_TIMEOUT, Limited::new(request.into_body(), MAX_GOSSIP_MESSAGE_BYTES).collect())
        .await
    {
        Ok(Ok(message)) => sender.send((from, message.to_bytes())),
        _ => return empty(StatusCode::BAD_REQUEST),
    }
    empty(StatusCode::OK)
}

fn empty(status: StatusCode) -> Response<HttpBody> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

fn with_header(mut response: Response<HttpBody>, name: HeaderName, value: u64) -> Response<HttpBody> {
    response.headers_mut().insert(name, value.into());
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn connection_to_a_peer_that_reads_nothing_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let _silent = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let (mut stream, _) = listener.accept().await.expect("a connection");
        end_when_unread(&stream, Duration::from_millis(500)).expect("set");
        let (piece, sent) = (vec![0; 1 << 20], async |stream: &mut TcpStream, piece: &[u8]| {
            loop {
                if let Err(error) = stream.write_all(piece).await {
                    return error.kind();
                }
            }
        });
        let ended = timeout(Duration::from_secs(30), sent(&mut stream, &piece)).await;
        assert_eq!(ended.expect("it ends"), io::ErrorKind::TimedOut);
    }
}
