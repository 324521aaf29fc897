//! A name server that knows one name, whose addresses can be changed while it runs.

use std::fmt;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::network::{NetworkHost, inside};

/// A name server on a host of its own. It is gone when it is dropped.
pub struct Dns {
    addresses: Arc<Mutex<Vec<Ipv4Addr>>>,
    home: TempDir,
    _runtime: Runtime,
    _host: NetworkHost,
}

impl Dns {
    /// Answers every question for an address with these, on `host`.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn start(host: NetworkHost, addresses: &[Ipv4Addr]) -> Self {
        let socket = inside(&host.path(), || {
            UdpSocket::bind(host.socket_address(53)).expect("the port of name servers")
        });
        let home = TempDir::with_prefix("bdnfs-dns-").expect("a temporary directory");
        let line = format!("nameserver {}\noptions timeout:1 attempts:5\n", host.address);
        std::fs::write(home.path().join("resolv.conf"), line).expect("a file");
        let (runtime, addresses) = (host.runtime(), Arc::new(Mutex::new(addresses.to_vec())));
        let known = addresses.clone();
        socket.set_nonblocking(true).expect("a socket");
        runtime.spawn(async move {
            let socket = tokio::net::UdpSocket::from_std(socket).expect("a socket");
            let mut question = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut question).await {
                let known = known.lock().clone();
                if let Some(answer) = answer(&question[..len], &known) {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        Self { addresses, home, _runtime: runtime, _host: host }
    }

    /// These are the name's addresses from now on.
    pub fn set(&self, addresses: &[Ipv4Addr]) {
        *self.addresses.lock() = addresses.to_vec();
    }

    /// The `/etc/resolv.conf` of its clients.
    pub fn resolver(&self) -> PathBuf {
        let home: &Path = self.home.path();
        home.join("resolv.conf")
    }
}

impl fmt::Debug for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dns({:?})", self.addresses)
    }
}

/// The answer to `question` (RFC 1035, section 4): one record for each address, if the question asks for addresses.
fn answer(question: &[u8], addresses: &[Ipv4Addr]) -> Option<Vec<u8>> {
    // Behind the head of 12 bytes the name's parts, each behind its length, up to an empty one; then type and class.
    let mut end = 12;
    while *question.get(end)? != 0 {
        end += usize::from(question[end]) + 1;
    }
    let asked = question.get(12..end + 5)?;
    let addresses = if asked.ends_with(&[0, 1, 0, 1]) { addresses } else { &[] };
    // The same id; the flags of an answer, with recursion available; one question, the number of answers, nothing else.
    let mut answer =
        [&question[..2], &[0x81, 0x80, 0, 1, 0, u8::try_from(addresses.len()).ok()?, 0, 0, 0, 0]].concat();
    answer.extend_from_slice(asked);
    for address in addresses {
        // The name of the question; an address; for 1 s; of 4 bytes.
        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend_from_slice(&address.octets());
    }
    Some(answer)
}
