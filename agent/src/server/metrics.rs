//! The server of metrics and probes. Anybody who reaches its port may connect: what they take is bounded.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use bdnfs::error::{Error, Kind, Result};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::socket::ACCEPT_PAUSE;

/// The most connections at a time: far more than monitors and probes have, and far fewer than the files that mounts may open.
const MAX_METRICS_CONNECTIONS: usize = 128;
/// How long one connection may last, which carries one request: so that who sends nothing, or reads nothing, keeps no probe waiting
/// for long.
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
        let mut connections = JoinSet::new();
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return Ok(()),
                Some(_) = connections.join_next() => {}
                accepted = self.0.accept(), if connections.len() < MAX_METRICS_CONNECTIONS => match accepted {
                    Ok((stream, _)) => {
                        let service = TowerToHyperService::new(routes.clone());
                        let connection = http1::Builder::new()
                            .keep_alive(false)
                            .serve_connection(TokioIo::new(stream), service);
                        connections.spawn(timeout(CONNECTION_TIMEOUT, connection));
                    }
                    Err(error) => {
                        tracing::warn!("cannot accept a connection to the metrics: {error}");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn connect(address: SocketAddr) -> TcpStream {
        TcpStream::connect(address).await.expect("connected")
    }

    async fn ask(mut stream: TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer, and its end");
        answer
    }

    #[tokio::test]
    async fn silent_connections_delay_a_probe_and_take_no_more_than_their_share() {
        let server = MetricsServer::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("bound");
        let address = server.0.local_addr().expect("an address");
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let routes = Router::new().route("/", get(|| async { "fine" }));
        let serving = tokio::spawn(server.serve(routes, async { ended.await.unwrap_or(()) }));
        assert!(ask(connect(address).await).await.ends_with("fine"));
        let mut silent = Vec::new();
        for _ in 0..MAX_METRICS_CONNECTIONS {
            silent.push(connect(address).await);
        }
        let mut probe = tokio::spawn(ask(connect(address).await));
        assert!(timeout(Duration::from_secs(1), &mut probe).await.is_err(), "it is not its turn");
        assert_eq!(silent[0].read(&mut [0]).await.expect("closed"), 0);
        assert!(probe.await.expect("joined").ends_with("fine"));
        end.send(()).expect("serving");
        serving.await.expect("joined").expect("served");
    }
}
