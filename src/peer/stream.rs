//! Streams: connections to a peer, as its client uses them. Bodies are read straight into the room where they stay.

use std::fmt;
use std::time::Duration;

use bytes::BufMut;
use httparse::{EMPTY_HEADER, Response};
use hyper::StatusCode;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::Member;
use super::identity::Identity;
use super::wire::Ask;
use crate::error::{Error, Kind, Result};

/// How much is read from a socket at once, in bytes: some records of TLS. By itself its library asks for a quarter of one, and
/// calls would cost as much as copies.
const READ: usize = 64 << 10;

/// The longest head of an answer, and how many lines of it are understood.
const HEAD: u64 = 4096;
const LINES: usize = 16;

/// The longest line between two parts of a body: a length in hexadecimal.
const LINE: u64 = 64;

trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A connection. It can be used for another request when all of the last one's body was read.
pub(super) struct Stream {
    connection: BufReader<Box<dyn Connection>>,
    /// What is still to come of a part of a body, which HTTP calls a chunk.
    chunk: u64,
}

/// What an answer begins with.
pub(super) struct Status {
    pub(super) code: StatusCode,
    /// When to ask again.
    pub(super) later: Option<Duration>,
    /// Whether a body follows.
    pub(super) body: bool,
    /// Whether the connection can be used again.
    pub(super) kept: bool,
}

impl Stream {
    /// Connects to `peer` as `identity`, if there is one. Then both prove who they are.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when nobody is there, or somebody else.
    pub(super) async fn connect(identity: Option<&Identity>, peer: &Member) -> Result<Self> {
        let failed = |e| Error::with(Kind::Unavailable, "can't be reached", e);
        let tcp = TcpStream::connect(peer.address).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let connection: Box<dyn Connection> = match identity {
            Some(identity) => {
                Box::new(identity.connect(BufReader::with_capacity(READ, tcp), &peer.id).await?)
            }
            None => Box::new(tcp),
        };
        Ok(Self { connection: BufReader::with_capacity(HEAD as usize, connection), chunk: 0 })
    }

    /// Sends `ask` to `host`, and receives what the answer begins with.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the connection breaks or what comes is no answer.
    pub(super) async fn ask(&mut self, host: &str, ask: &Ask) -> Result<Status> {
        let mut request = format!("GET {} HTTP/1.1\r\nhost: {host}\r\n", ask.path());
        for (name, value) in ask.headers() {
            request.extend([name, ": ", &value, "\r\n"]);
        }
        request.push_str("\r\n");
        self.connection.write_all(request.as_bytes()).await.map_err(broke)?;
        self.connection.flush().await.map_err(broke)?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            self.line(&mut head, HEAD).await?;
        }
        Status::parse(&head).ok_or_else(|| Error::new(Kind::Unavailable, "answers with what is no HTTP"))
    }

    /// Reads `len` bytes of the body into `room`, or all that are left of it. How many these are.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the connection breaks or what comes is no body.
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
            self.chunk = self.next().await?;
            if self.chunk == 0 {
                self.empty_line().await?;
                return Ok(0);
            }
        }
        let most = usize::try_from(self.chunk).unwrap_or(most).min(most);
        match self.connection.read_buf(&mut room.limit(most)).await.map_err(broke)? {
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

    /// Whether nothing has come that nobody has read.
    pub(super) fn is_clear(&self) -> bool {
        self.chunk == 0 && self.connection.buffer().is_empty()
    }

    /// How long the next chunk is.
    async fn next(&mut self) -> Result<u64> {
        let mut line = Vec::new();
        self.line(&mut line, LINE).await?;
        match httparse::parse_chunk_size(&line) {
            Ok(httparse::Status::Complete((_, len))) => Ok(len),
            _ => Err(no_body()),
        }
    }

    async fn empty_line(&mut self) -> Result<()> {
        let mut line = Vec::new();
        self.line(&mut line, LINE).await?;
        if line == b"\r\n" { Ok(()) } else { Err(no_body()) }
    }

    /// Adds the next line to `line`, which may be so long with it.
    async fn line(&mut self, line: &mut Vec<u8>, most: u64) -> Result<()> {
        let most = most.saturating_sub(line.len() as u64);
        let got = (&mut self.connection).take(most).read_until(b'\n', line).await.map_err(broke)?;
        if got > 0 && line.ends_with(b"\n") { Ok(()) } else { Err(ended()) }
    }
}

impl Status {
    fn parse(head: &[u8]) -> Option<Self> {
        let mut lines = [EMPTY_HEADER; LINES];
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
            later: header("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs),
            body,
            // What has another body than one in chunks is not read, nor what comes behind an answer that is none yet.
            kept: !closes && !code.is_informational() && (body || header("content-length") == Some("0")),
        })
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

fn broke(error: std::io::Error) -> Error {
    Error::with(Kind::Unavailable, "broke off", error)
}

/// What comes of an end where there should be more.
pub(super) fn ended() -> Error {
    Error::new(Kind::Unavailable, "broke off")
}

fn no_body() -> Error {
    Error::new(Kind::Unavailable, "sends what is no body")
}
