//! Connections to peers: a minimal HTTP/1.1 client. Bodies are read straight into their final buffers.

use std::fmt;
use std::time::Duration;

use bytes::BufMut;
use httparse::{EMPTY_HEADER, Response};
use hyper::StatusCode;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::error::{Error, Kind, Result};
use crate::peer::Member;
use crate::peer::identity::Identity;
use crate::peer::wire::BlockRequest;

/// The number of bytes that are read from a socket at once: several TLS records. By default the library asks for a quarter of one,
/// and system calls would cost as much as copies.
const SOCKET_BUFFER_BYTES: usize = 64 << 10;

/// The longest head of a response, in bytes, and how many headers it may have.
const MAX_HEAD_BYTES: u64 = 4096;
const MAX_HEADERS: usize = 16;

/// The longest line between two chunks of a body: a length in hexadecimal.
const MAX_CHUNK_LINE_BYTES: u64 = 64;

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection. It can be used for another request when the last response was read to its end.
pub(super) struct PeerConnection {
    connection: BufReader<Box<dyn ByteStream>>,
    /// The number of bytes of the current chunk that are still to come.
    chunk: u64,
}

/// The head of a response.
pub(super) struct ResponseHead {
    pub(super) code: StatusCode,
    /// The value of `retry-after`.
    pub(super) retry_after: Option<Duration>,
    /// Whether a body in chunks follows.
    pub(super) body: bool,
    /// Whether the connection can be used again.
    pub(super) kept: bool,
}

impl PeerConnection {
    /// Connects to `peer`, with mutual TLS where there is an `identity`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the connection is refused, or the certificate is for another node.
    pub(super) async fn connect(identity: Option<&Identity>, peer: &Member) -> Result<Self> {
        let failed = |e| Error::with(Kind::Unavailable, "cannot connect", e);
        let tcp = TcpStream::connect(peer.address).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let connection: Box<dyn ByteStream> = match identity {
            Some(identity) => Box::new(
                identity
                    .connect(BufReader::with_capacity(SOCKET_BUFFER_BYTES, tcp), peer.address, &peer.id)
                    .await?,
            ),
            None => Box::new(tcp),
        };
        Ok(Self { connection: BufReader::with_capacity(MAX_HEAD_BYTES as usize, connection), chunk: 0 })
    }

    /// Sends `request` to `host`, and receives the head of the response.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the connection breaks or the response is not HTTP.
    pub(super) async fn send(&mut self, host: &str, request: &BlockRequest) -> Result<ResponseHead> {
        let mut text = format!("GET {} HTTP/1.1\r\nhost: {host}\r\n", request.path());
        for (name, value) in request.headers() {
            text.extend([name, ": ", &value, "\r\n"]);
        }
        text.push_str("\r\n");
        self.connection.write_all(text.as_bytes()).await.map_err(io_failed)?;
        self.connection.flush().await.map_err(io_failed)?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            self.line(&mut head, MAX_HEAD_BYTES).await?;
        }
        ResponseHead::parse(&head)
            .ok_or_else(|| Error::new(Kind::Unavailable, "sent an invalid HTTP response"))
    }

    /// Reads `len` bytes of the body into `room`, or all that are left of it. Returns how many.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the connection breaks or the body is not in chunks.
    pub(super) async fn fill(&mut self, room: &mut impl BufMut, len: usize) -> Result<usize> {
        let mut filled = 0;
        while filled < len {
            match self.read(room, len - filled).await? {
                0 => break,
                got => filled += got,
            }
        }
        Ok(filled)
    }

    /// Reads the next bytes of the body into `room`, up to `most`. 0 at its end.
    async fn read(&mut self, room: &mut impl BufMut, most: usize) -> Result<usize> {
        if self.chunk == 0 {
            self.chunk = self.next_chunk().await?;
            if self.chunk == 0 {
                self.empty_line().await?;
                return Ok(0);
            }
        }
        let most = usize::try_from(self.chunk).unwrap_or(most).min(most);
        match self.connection.read_buf(&mut room.limit(most)).await.map_err(io_failed)? {
            0 if most > 0 => Err(ended()),
            got => {
                self.chunk -= got as u64;
                if self.chunk == 0 {
                    self.empty_line().await?;
                }
                Ok(got)
            }
        }
    }

    /// Whether there are no unread bytes.
    pub(super) fn is_clear(&self) -> bool {
        self.chunk == 0 && self.connection.buffer().is_empty()
    }

    /// The length of the next chunk.
    async fn next_chunk(&mut self) -> Result<u64> {
        let mut line = Vec::new();
        self.line(&mut line, MAX_CHUNK_LINE_BYTES).await?;
        match httparse::parse_chunk_size(&line) {
            Ok(httparse::Status::Complete((_, len))) => Ok(len),
            _ => Err(invalid_body()),
        }
    }

    async fn empty_line(&mut self) -> Result<()> {
        let mut line = Vec::new();
        self.line(&mut line, MAX_CHUNK_LINE_BYTES).await?;
        if line == b"\r\n" { Ok(()) } else { Err(invalid_body()) }
    }

    /// Appends the next line to `line`, which may have `most` bytes then.
    async fn line(&mut self, line: &mut Vec<u8>, most: u64) -> Result<()> {
        let most = most.saturating_sub(line.len() as u64);
        let got = (&mut self.connection).take(most).read_until(b'\n', line).await.map_err(io_failed)?;
        if got > 0 && line.ends_with(b"\n") { Ok(()) } else { Err(ended()) }
    }
}

impl ResponseHead {
    fn parse(head: &[u8]) -> Option<Self> {
        let mut lines = [EMPTY_HEADER; MAX_HEADERS];
        let mut response = Response::new(&mut lines);
        response.parse(head).ok()?.is_complete().then_some(())?;
        let header = |name: &str| {
            let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.and_then(|header| str::from_utf8(header.value).ok())
        };
        let body = header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        let closes = header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let code = StatusCode::from_u16(response.code?).ok()?;
        Some(Self {
            code,
            retry_after: header("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs),
            body,
            // A body that is not in chunks is not read, nor what follows an informational response.
            kept: !closes && !code.is_informational() && (body || header("content-length") == Some("0")),
        })
    }
}

impl fmt::Debug for PeerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerConnection")
    }
}

fn io_failed(error: std::io::Error) -> Error {
    Error::with(Kind::Unavailable, "connection closed early", error)
}

/// The error of a connection that ends where there should be more.
pub(super) fn ended() -> Error {
    Error::new(Kind::Unavailable, "connection closed early")
}

fn invalid_body() -> Error {
    Error::new(Kind::Unavailable, "sent an invalid HTTP body")
}
