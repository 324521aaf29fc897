//! The wire format between peers: requests, responses, frames.
//!
//! A request is one HTTP/1.1 GET:
//!
//! ```text
//! GET /v1/tenants/<tenant>/blobs/<digest>          the digest in hexadecimal
//! range: bytes=<first>-<last>                      within the blob
//! bdnfs-size: <bytes>                              of the whole blob
//! bdnfs-snapshot: <digest>                         a manifest that has the blob: how an owner finds it in the mirror
//! bdnfs-role: owner | holder | leaver              whether to fetch what it lacks; `leaver`: a draining node
//! bdnfs-urgency: read | ahead | stage              who waits
//! ```
//!
//! The response is 404 for a blob that does not exist or that the caller may not have, which look the same; 503 with
//! `retry-after` when the server is busy; else 200 with frames, each a header of 5 bytes and its bytes, until all of the range
//! was sent:
//!
//! | kind | length, u32 little-endian | meaning |
//! |---|---|---|
//! | `D` | of the bytes that follow, up to a block | the next bytes of the range |
//! | `W` | 0 | heartbeat: no bytes yet, but they are on their way |
//! | `E` | 0 | the server can't get the rest; the last frame |

use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream::BoxStream;

use crate::block::BLOCK;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::tier::Urgency;

/// The length of a frame's header, in bytes.
pub(super) const FRAME_HEADER_BYTES: usize = 5;

/// The role of a request's receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To fetch what it lacks from the mirror, for all who ask.
    Owner,
    /// To send what it has, and to fetch nothing.
    Holder,
    /// To send what it has and what it is fetching already: asked of a draining node by the new owner.
    Draining,
}

/// A request for some bytes of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// The tenant that the blob belongs to.
    pub tenant: String,
    /// A snapshot whose manifest has the blob.
    pub snapshot: Digest,
    /// The blob's digest.
    pub blob: Digest,
    /// The size in bytes.
    pub size: u64,
    /// The requested bytes; not empty.
    pub range: Range<u64>,
    /// The role of the receiver.
    pub role: Role,
    /// The kind of reader that waits for the bytes.
    pub urgency: Urgency,
}

/// The response to a request.
pub enum BlockResponse {
    /// The blob does not exist here, or the caller may not have it.
    Miss,
    /// The server is busy: retry after this long.
    Busy(Duration),
    /// The bytes, in frames.
    Frames(Frames),
}

impl BlockRequest {
    /// The path of the HTTP request.
    pub fn path(&self) -> String {
        format!("/v{}/tenants/{}/blobs/{}", super::PROTOCOL, self.tenant, self.blob)
    }

    /// The headers of the HTTP request.
    pub fn headers(&self) -> [(&'static str, String); 5] {
        [
            ("range", format!("bytes={}-{}", self.range.start, self.range.end - 1)),
            ("bdnfs-size", self.size.to_string()),
            ("bdnfs-snapshot", self.snapshot.to_string()),
            ("bdnfs-role", role(self.role).into()),
            ("bdnfs-urgency", urgency(self.urgency).into()),
        ]
    }

    /// Parses a path and headers; `None` when they are invalid.
    pub fn parse<'a>(path: &str, header: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let (tenant, blob) = path.strip_prefix("/v1/tenants/")?.split_once("/blobs/")?;
        let (first, last) = header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let range = number(first)?..number(last)?.checked_add(1)?;
        let size = number(header("bdnfs-size")?)?;
        // A request is bounded, and so are the buffers for it.
        let valid =
            range.start < range.end && range.end <= size && range.end - range.start <= MAX_RANGE_BYTES;
        valid.then_some(())?;
        Some(Self {
            tenant: tenant.into(),
            snapshot: Digest::from_str(header("bdnfs-snapshot")?).ok()?,
            blob: Digest::from_str(blob).ok()?,
            size,
            range,
            role: [Role::Owner, Role::Holder, Role::Draining]
                .into_iter()
                .find(|r| header("bdnfs-role") == Some(role(*r)))?,
            urgency: [Urgency::Read, Urgency::Ahead, Urgency::Stage]
                .into_iter()
                .find(|u| header("bdnfs-urgency") == Some(urgency(*u)))?,
        })
    }
}

/// The most bytes of one request: the longest extent, and what an unaligned one touches beyond it.
pub const MAX_RANGE_BYTES: u64 = (crate::extent::MAX_EXTENT_BLOCKS + 1) * BLOCK;

fn role(role: Role) -> &'static str {
    match role {
        Role::Owner => "owner",
        Role::Holder => "holder",
        Role::Draining => "leaver",
    }
}

fn urgency(urgency: Urgency) -> &'static str {
    match urgency {
        Urgency::Read => "read",
        Urgency::Ahead => "ahead",
        Urgency::Stage => "stage",
    }
}

/// A number in plain digits: no sign, no space.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The frames of a response.
pub type Frames = BoxStream<'static, Result<Frame>>;

/// A part of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The next bytes of the range.
    Data(Bytes),
    /// [`MAX_PART_BYTES`] more bytes of the next data frame have arrived. It is never sent: the receiver makes it to measure
    /// progress.
    Part,
    /// A heartbeat: the bytes are on their way.
    Wait,
    /// The server can't get the rest.
    End,
}

/// After how many bytes of a data frame progress is reported.
pub const MAX_PART_BYTES: usize = 64 << 10;

impl Frame {
    /// Encodes it, in pieces.
    pub fn encode(self) -> Vec<Bytes> {
        match self {
            Self::Data(mut rest) => {
                let mut pieces = Vec::new();
                while !rest.is_empty() {
                    let bytes = rest.split_to(rest.len().min(BLOCK as usize));
                    pieces.extend([Head::Data(bytes.len() as u32).encode(), bytes]);
                }
                pieces
            }
            Self::Part => Vec::new(),
            Self::Wait => vec![Head::Wait.encode()],
            Self::End => vec![Head::End.encode()],
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// So many bytes follow.
    Data(u32),
    /// A heartbeat.
    Wait,
    /// The server can't get the rest.
    End,
}

impl Head {
    fn encode(self) -> Bytes {
        let (message, len) = match self {
            Self::Data(len) => (b'D', len),
            Self::Wait => (b'W', 0),
            Self::End => (b'E', 0),
        };
        let mut head = BytesMut::with_capacity(FRAME_HEADER_BYTES);
        head.put_u8(message);
        head.put_u32_le(len);
        head.freeze()
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when it is invalid.
    pub(super) fn parse(mut head: &[u8]) -> Result<Self> {
        let (message, len) = (head.try_get_u8(), head.try_get_u32_le());
        match (message, len) {
            // A buffer is allocated for it before it arrives.
            (Ok(b'D'), Ok(len)) if (1..=BLOCK).contains(&len.into()) => Ok(Self::Data(len)),
            (Ok(b'W'), Ok(0)) => Ok(Self::Wait),
            (Ok(b'E'), Ok(0)) => Ok(Self::End),
            _ => Err(Error::new(Kind::Corrupt, "invalid frame")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn ask() -> impl Strategy<Value = BlockRequest> {
        let urgency = prop::sample::select(vec![Urgency::Read, Urgency::Ahead, Urgency::Stage]);
        let role = prop::sample::select(vec![Role::Owner, Role::Holder, Role::Draining]);
        (
            "[a-zA-Z0-9_-]{1,64}",
            any::<[[u8; 32]; 2]>(),
            0..1u64 << 50,
            1..MAX_RANGE_BYTES,
            0..1u64 << 50,
            role,
            urgency,
        )
            .prop_map(|(tenant, [snapshot, blob], start, len, behind, role, urgency)| BlockRequest {
                tenant,
                snapshot: Digest(snapshot),
                blob: Digest(blob),
                size: start + len + behind,
                range: start..start + len,
                role,
                urgency,
            })
    }

    proptest! {
        #[test]
        fn request_parsed_equals_what_was_sent(ask in ask()) {
            let headers: HashMap<_, _> = ask.headers().into_iter().collect();
            prop_assert_eq!(BlockRequest::parse(&ask.path(), |name| headers.get(name).map(String::as_str)), Some(ask));
        }

        #[test]
        fn request_invalid_is_none(path in ".{0,80}", value in ".{0,40}") {
            prop_assert_eq!(BlockRequest::parse(&path, |_| Some(&value)), None);
        }

        #[test]
        fn frame_header_hostile_bytes_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..=FRAME_HEADER_BYTES)) {
            if let Ok(head) = Head::parse(&bytes) {
                prop_assert_eq!(&head.encode()[..], bytes);
            }
        }
    }

    #[test]
    fn frame_longer_than_a_block_is_sent_as_several() {
        let most = Bytes::from(vec![7; BLOCK as usize]);
        let long = Bytes::from([&most[..], b"more"].concat());
        let frames = [Frame::Data(long), Frame::Part, Frame::Wait, Frame::End];
        let sent: Vec<_> = frames.into_iter().flat_map(Frame::encode).collect();
        let heads = [&sent[0], &sent[2], &sent[4], &sent[5]].map(|head| Head::parse(head).expect("a head"));
        assert_eq!(heads, [Head::Data(BLOCK as u32), Head::Data(4), Head::Wait, Head::End]);
        assert!(sent.len() == 6 && sent[1] == most && sent[3] == "more"[..]);
        for none in [Head::Data(0), Head::Data(BLOCK as u32 + 1)] {
            assert_eq!(Head::parse(&none.encode()).expect_err("none").kind(), Kind::Corrupt);
        }
    }

    #[test]
    fn request_longer_than_the_limit_is_none() {
        let header = |name: &str| match name {
            "range" => Some("bytes=0-17825792"),
            "bdnfs-size" => Some("99999999999"),
            "bdnfs-role" => Some("owner"),
            "bdnfs-urgency" => Some("read"),
            _ => Some("0000000000000000000000000000000000000000000000000000000000000000"),
        };
        let path = format!("/v1/tenants/t/blobs/{}", Digest([0; 32]));
        assert_eq!(BlockRequest::parse(&path, header), None);
        let shorter = |name: &str| if name == "range" { Some("bytes=0-17825791") } else { header(name) };
        assert!(BlockRequest::parse(&path, shorter).is_some());
    }
}
