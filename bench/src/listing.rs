//! A listing: the index of a directory with very many files, served over HTTP, and when it had been sent.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;

use crate::data::{self, FILES_IN_DIRECTORY};

/// A client that neither sends nor reads for this long has left.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A web server with one index and none of the files that it lists; it ends when dropped.
#[derive(Debug)]
pub struct IndexServer {
    address: SocketAddr,
    state: Arc<Mutex<IndexState>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct IndexState {
    ended: bool,
    /// When the last byte of the index was handed to the kernel, the last time it was asked for.
    sent: Option<Instant>,
}

impl IndexServer {
    /// Lists `files` files.
    ///
    /// # Errors
    /// Loopback can't be listened on.
    pub fn start(files: usize) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen on loopback")?;
        let address = listener.local_addr().context("cannot listen on loopback")?;
        let (state, index) = (Arc::new(Mutex::new(IndexState::default())), index(files));
        let seen = state.clone();
        let serve = move || {
            for stream in listener.incoming().flatten() {
                if seen.lock().ended {
                    return;
                }
                // A client that breaks off sees that by itself.
                let _ = answer(&stream, &index, &seen);
            }
        };
        Ok(Self { address, state, thread: Some(std::thread::spawn(serve)) })
    }

    /// The URL of the index.
    pub fn url(&self) -> String {
        format!("http://{}/bdnfs.json", self.address)
    }

    /// When it was last sent as a whole.
    pub fn sent(&self) -> Option<Instant> {
        self.state.lock().sent
    }
}

impl Drop for IndexServer {
    fn drop(&mut self) {
        self.state.lock().ended = true;
        // Wakes it; where that fails it has ended already.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers one request and closes: the index is asked for once.
fn answer(stream: &TcpStream, index: &str, state: &Mutex<IndexState>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = String::new();
    let mut reader = BufReader::new(stream);
    while reader.read_line(&mut request)? > 2 {}
    let mut out = stream;
    if !request.starts_with("GET /bdnfs.json ") {
        return out.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", index.len());
    out.write_all(head.as_bytes())?;
    out.write_all(index.as_bytes())?;
    state.lock().sent = Some(Instant::now());
    Ok(())
}

/// An index in the format that bdnfs reads: it has sizes and ETags, so that no file is requested for them.
fn index(files: usize) -> String {
    let mut text = String::from("{\"files\": [");
    for file in 0..files {
        let comma = if file == 0 { "" } else { "," };
        let path = data::name(file, FILES_IN_DIRECTORY);
        // Writing to a string can't fail.
        let _ =
            write!(text, "{comma}\n{{\"path\": \"{path}\", \"size\": 8192, \"etag\": \"\\\"{file:x}\\\"\"}}");
    }
    text + "\n]}\n"
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn index_server_serves_all_entries() {
        let server = IndexServer::start(1001).unwrap();
        assert!(server.sent().is_none());
        let ask = |path: &str| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            write!(stream, "GET /{path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        assert!(ask("file").starts_with("HTTP/1.1 404"));
        let text = ask("bdnfs.json");
        let index: serde_json::Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(index["files"].as_array().unwrap().len(), 1001);
        assert_eq!(index["files"][1000]["path"], "part-00001/sample-00001000.bin");
        assert_eq!(index["files"][1000]["etag"], "\"3e8\"");
        assert!(server.sent().is_some());
    }
}
