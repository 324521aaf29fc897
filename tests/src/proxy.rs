//! A TCP proxy that injects network faults into the connections through it, while it runs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::serve::{ReservedPort, threads};

/// The faults of the bytes that pass. The default is no fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkFault {
    /// Each chunk is delayed by this.
    pub delay: Duration,
    /// Nothing passes, connections stay open.
    pub frozen: bool,
    /// At most this many bytes a second pass in each direction of each connection.
    pub rate: Option<u64>,
    /// Every connection ends after this many bytes from the server.
    pub cut: Option<u64>,
    /// New connections are reset, old ones end.
    pub refuse: bool,
}

/// A proxy on loopback in front of one server. It stops when it is dropped.
#[derive(Debug)]
pub struct TcpProxy {
    port: ReservedPort,
    fault: watch::Sender<NetworkFault>,
    passed: Arc<AtomicU64>,
    runtime: Option<Runtime>,
}

/// The size of a chunk that passes.
const CHUNK_BYTES: usize = 64 << 10;

impl TcpProxy {
    /// Passes connections on to `server`.
    pub fn start(server: SocketAddr) -> Self {
        let (port, runtime) = (ReservedPort::take(0), threads());
        let (fault, now) = watch::channel(NetworkFault::default());
        let passed = Arc::<AtomicU64>::default();
        let (listener, count) = (port.listen(&runtime), passed.clone());
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connect(client, server, now.clone(), count.clone()));
            }
        });
        Self { port, fault, passed, runtime: Some(runtime) }
    }

    /// The fault from now on, for open connections as well.
    pub fn set(&self, fault: NetworkFault) {
        self.fault.send_replace(fault);
    }

    /// Bytes that came back from the server so far.
    pub fn bytes_from_server(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Where it listens, as the URL of an HTTP server, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.port.address)
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn connect(
    client: TcpStream,
    server: SocketAddr,
    now: watch::Receiver<NetworkFault>,
    count: Arc<AtomicU64>,
) {
    if now.borrow().refuse {
        // Without lingering, a drop resets the connection.
        let _ = client.set_zero_linger();
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let mut until = now.clone();
    tokio::select! {
        () = pump(from_client, to_server, now.clone(), None) => {}
        () = pump(from_server, to_client, now, Some(count)) => {}
        _ = until.wait_for(|fault| fault.refuse) => {}
    }
}

/// Passes bytes on until either side ends. `count` is there for what comes from the server.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut now: watch::Receiver<NetworkFault>,
    count: Option<Arc<AtomicU64>>,
) {
    let (mut piece, mut passed) = (vec![0; CHUNK_BYTES], 0);
    while let Ok(len @ 1..) = from.read(&mut piece).await {
        let Ok(fault) = now.wait_for(|fault| !fault.frozen).await.map(|fault| *fault) else {
            return;
        };
        tokio::time::sleep(fault.delay + time_for(len, fault.rate)).await;
        let left = count.as_ref().and(fault.cut).map_or(len as u64, |cut| cut.saturating_sub(passed));
        let passes = len.min(left as usize);
        if to.write_all(&piece[..passes]).await.is_err() {
            return;
        }
        passed += passes as u64;
        if let Some(count) = &count {
            count.fetch_add(passes as u64, Ordering::Relaxed);
        }
        // What is cut off may be the last there was: nothing more comes that would end it here.
        if passes < len {
            return;
        }
    }
}

fn time_for(len: usize, rate: Option<u64>) -> Duration {
    rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(len as f64 / rate as f64))
}
