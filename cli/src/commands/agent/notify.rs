//! Telling systemd that the agent is ready, where it was started by it (sd_notify(3), `Type=notify`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::{env, io};

/// The variable that names the socket to tell it to: a path, or an abstract name after `@`.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Says so. Nobody else depends on it, so a failure is only a line in the log.
pub fn ready() {
    let Some(socket) = env::var_os(SOCKET) else { return };
    let tell = || -> io::Result<()> {
        let address = match socket.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&socket)?,
        };
        UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(drop)
    };
    if let Err(error) = tell() {
        tracing::warn!("cannot tell systemd that the agent is ready: {error}");
    }
}
