//! The server of metrics and probes. Anybody who reaches its port may connect: what they take is bounded.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use bdnfs::error::{Error, Kind, Result};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::socket::ACCEPT_PAUSE;

/// The most connections at a time: far more than monitors and probes have, and far fewer than the files that mounts may open. One
/// more ends the oldest, so that those who send nothing keep no probe waiting.
const MAX_METRICS_CONNECTIONS: usize = 128;
/// The maximum duration of a connection, which carries one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// A server of metrics that listens.
#[derive(Debug)]
pub struct MetricsServer(TcpListener);

impl MetricsServer {
    /// Listens at `address`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`].
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let bound = TcpListener::bind(address).await;
        let cannot =
            |e| Error::with(Kind::Unavailable, format!("cannot listen at {address} (telemetry.listen)"), e);
        bound.map(Self).map_err(cannot)
    }

    /// Serves `routes` until `end` is there.
    pub async fn serve(self, routes: Router, end: impl Future<Output = ()>) -> io::Result<()> {
        // All end with this set.
        let mut connections = JoinSet::new();
        let mut oldest_first = VecDeque::<AbortHandle>::new();
        tokio::pin!(end);
        loop {
            let accepted = tokio::select! {
                () = &mut end => return Ok(()),
                accepted = self.0.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    while connections.try_join_next().is_some() {}
                    oldest_first.retain(|connection| !connection.is_finished());
                    if oldest_first.len() >= MAX_METRICS_CONNECTIONS
                        && let Some(oldest) = oldest_first.pop_front()
                    {
                        oldest.abort();
                    }
                    let service = TowerToHyperService::new(routes.clone());
                    let connection = http1::Builder::new()
                        .keep_alive(false)
                        .serve_connection(TokioIo::new(stream), service);
                    oldest_first.push_back(connections.spawn(timeout(CONNECTION_TIMEOUT, connection)));
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection to the metrics: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;

    /// The address of a server; it ends with the sender.
    async fn start() -> (SocketAddr, oneshot::Sender<()>) {
        let server = MetricsServer::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("bound");
        let address = server.0.local_addr().expect("an address");
        let (end, ended) = oneshot::channel();
        let routes = Router::new().route("/", get(|| async { "fine" }));
        tokio::spawn(server.serve(routes, async { ended.await.unwrap_or(()) }));
        (address, end)
    }

    async fn ask(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer, and its end");
        answer
    }

    #[tokio::test]
    async fn silent_connections_keep_no_probe_waiting() {
        let (address, end) = start().await;
        let mut silent = VecDeque::new();
        for _ in 0..MAX_METRICS_CONNECTIONS {
            silent.push_back(TcpStream::connect(address).await.expect("connected"));
        }
        let began = Instant::now();
        assert!(ask(address).await.ends_with("fine"));
        // The oldest made way for it, long before its time.
        let mut oldest = silent.pop_front().expect("many");
        assert!(matches!(
            timeout(CONNECTION_TIMEOUT, oldest.read(&mut [0])).await.expect("closed"),
            Ok(0) | Err(_)
        ));
        assert!(began.elapsed() < CONNECTION_TIMEOUT);
        end.send(()).expect("serving");
        let mut youngest = silent.pop_back().expect("many");
        assert!(matches!(youngest.read(&mut [0]).await, Ok(0) | Err(_)), "all end with the server");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connection_is_closed_after_its_time() {
        let (address, _end) = start().await;
        let mut silent = TcpStream::connect(address).await.expect("connected");
        let closed = timeout(2 * CONNECTION_TIMEOUT, silent.read(&mut [0])).await.expect("closed");
        assert!(matches!(closed, Ok(0) | Err(_)));
    }
}
