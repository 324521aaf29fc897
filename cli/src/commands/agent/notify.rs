//! Notifies systemd that the agent is ready (sd_notify(3), `Type=notify`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::{env, io};

/// The variable with the notification socket: a path, or an abstract name after `@`.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Sends the notification. A failure is only logged.
pub fn notify_ready() {
    let Some(socket) = env::var_os(SOCKET_VARIABLE) else { return };
    let send = || -> io::Result<()> {
        let address = match socket.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&socket)?,
        };
        UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(drop)
    };
    if let Err(error) = send() {
        tracing::warn!("cannot notify systemd that the agent is ready: {error}");
    }
}
