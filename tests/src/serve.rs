//! A server on loopback that can be stopped and started again on the same port.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;

use crate::network::{NetworkHost, inside};

/// An HTTP server with threads of its own. It stops when it is dropped.
#[derive(Debug)]
pub struct HttpServer {
    app: Router,
    port: ReservedPort,
    runtime: Option<Runtime>,
}

impl HttpServer {
    /// Serves `app` on `port` of loopback; 0 picks a free one.
    ///
    /// # Panics
    /// When the port is taken.
    pub fn start(app: Router, port: u16) -> Self {
        Self::on_port(app, ReservedPort::take(port))
    }

    /// Serves `app` on `port`.
    ///
    /// # Panics
    /// When the address is in use.
    pub fn on_port(app: Router, port: ReservedPort) -> Self {
        let mut server = Self { app, port, runtime: None };
        server.resume();
        server
    }

    /// Stops: connections break where they are, new ones are refused.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On a thread of its own, since an asynchronous test may not wait for the end of a runtime.
            let _ = std::thread::spawn(|| runtime.shutdown_timeout(Duration::from_secs(5))).join();
        }
    }

    /// Starts again, on the same port.
    ///
    /// # Panics
    /// When it was not stopped.
    pub fn resume(&mut self) {
        assert!(self.runtime.is_none(), "the server is running");
        let (runtime, app) = (threads(), self.app.clone());
        let listener = self.port.listen(&runtime).tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        runtime.spawn(async move { axum::serve(listener, app).await });
        self.runtime = Some(runtime);
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address
    }

    /// Its URL, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.port.address)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A port of loopback that is reserved while no server listens: a bound socket that never listens keeps the
/// kernel from giving it away, and `connect` to it is refused.
#[derive(Debug)]
pub struct ReservedPort {
    _holder: TcpSocket,
    /// Its address.
    pub address: SocketAddr,
    /// The network namespace whose it is, if it is another one's.
    namespace: Option<PathBuf>,
}

impl ReservedPort {
    /// Takes this one; 0: any that is free.
    ///
    /// # Panics
    /// When the port is in use.
    pub fn take(port: u16) -> Self {
        Self::bind(SocketAddr::from(([127, 0, 0, 1], port)), None)
    }

    /// The port `port` of `host`.
    ///
    /// # Panics
    /// When the port is in use.
    pub fn on(host: &NetworkHost, port: u16) -> Self {
        Self::bind(host.socket_address(port), Some(host.path()))
    }

    fn bind(address: SocketAddr, namespace: Option<PathBuf>) -> Self {
        let holder = bind(address, namespace.as_deref());
        let address = holder.local_addr().expect("a bound socket has an address");
        Self { _holder: holder, address, namespace }
    }

    pub(crate) fn listen(&self, runtime: &Runtime) -> TcpListener {
        let _inside = runtime.enter();
        let socket = bind(self.address, self.namespace.as_deref());
        socket.listen(1024).unwrap_or_else(|e| panic!("cannot listen on {}: {e}", self.address))
    }
}

/// A socket on `address` that lets others be bound there as well, as long as one of them listens.
fn bind(address: SocketAddr, namespace: Option<&Path>) -> TcpSocket {
    let new = || TcpSocket::new_v4().expect("a socket");
    let socket = namespace.map_or_else(new, |namespace| inside(namespace, new));
    socket.set_reuseaddr(true).expect("SO_REUSEADDR");
    socket.bind(address).unwrap_or_else(|e| panic!("cannot bind {address}: {e}"));
    socket
}

pub(crate) fn threads() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a tokio runtime")
}
