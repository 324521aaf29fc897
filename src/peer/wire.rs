//! Wire: what peers say to each other.
//!
//! A request is one HTTP/1.1 GET:
//!
//! ```text
//! GET /v1/tenants/<tenant>/blobs/<digest>          the digest in hexadecimal
//! range: bytes=<first>-<last>                      within the blob
//! bdnfs-size: <bytes>                              of the whole blob
//! bdnfs-snapshot: <digest>                         a manifest that has the blob: how an owner finds it in the mirror
//! bdnfs-role: owner | holder | leaver              whether to fetch what it lacks
//! bdnfs-urgency: read | ahead | stage              who waits
//! ```
//!
//! The answer is 404 for what isn't there or isn't the caller's to have, which look the same; 503 with `retry-after` when
//! there is too much to do; else 200 with frames of 5 bytes and what belongs to them, until all of the range was sent:
//!
//! | kind | length, u32 little-endian | meaning |
//! |---|---|---|
//! | `D` | of the bytes that follow, up to a block | the next bytes of the range |
//! | `W` | 0 | nothing yet, but it is on its way |
//! | `E` | 0 | the rest can't be had here; the last frame |

use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream::BoxStream;

use crate::block::BLOCK;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::tier::Urgency;

/// The length of a frame's head.
pub(super) const HEAD: usize = 5;

/// What is asked of the one that a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To fetch what it lacks, from the mirror, for all who ask.
    Owner,
    /// To give what it has, and nothing else.
    Holder,
    /// To give what it has and what it is fetching as it leaves, to the one who owns it from now on.
    Leaver,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Whose blob it is.
    pub tenant: String,
    /// A manifest that has it.
    pub snapshot: Digest,
    /// The blob.
    pub blob: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// The bytes of it that are wanted; not empty.
    pub range: Range<u64>,
    /// What is asked.
    pub role: Role,
    /// Who waits.
    pub urgency: Urgency,
}

/// An answer.
pub enum Reply {
    /// It isn't there, or may not be known to be.
    Miss,
    /// Too much to do: ask again after this long.
    Busy(Duration),
    /// Frames, until all was sent that there is.
    Frames(Frames),
}

impl Ask {
    /// The path to ask for.
    pub fn path(&self) -> String {
        format!("/v{}/tenants/{}/blobs/{}", super::PROTOCOL, self.tenant, self.blob)
    }

    /// The headers to send along.
    pub fn headers(&self) -> [(&'static str, String); 5] {
        [
            ("range", format!("bytes={}-{}", self.range.start, self.range.end - 1)),
            ("bdnfs-size", self.size.to_string()),
            ("bdnfs-snapshot", self.snapshot.to_string()),
            ("bdnfs-role", role(self.role).into()),
            ("bdnfs-urgency", urgency(self.urgency).into()),
        ]
    }

    /// The request with this path and these headers; `None` for what is none.
    pub fn parse<'a>(path: &str, header: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let (tenant, blob) = path.strip_prefix("/v1/tenants/")?.split_once("/blobs/")?;
        let (first, last) = header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let range = number(first)?..number(last)?.checked_add(1)?;
        let size = number(header("bdnfs-size")?)?;
        // Nobody asks for more than a few blocks at once, so nobody has to be prepared for it.
        let sound = range.start < range.end && range.end <= size && range.end - range.start <= MOST;
        sound.then_some(())?;
        Some(Self {
            tenant: tenant.into(),
            snapshot: Digest::from_str(header("bdnfs-snapshot")?).ok()?,
            blob: Digest::from_str(blob).ok()?,
            size,
            range,
            role: [Role::Owner, Role::Holder, Role::Leaver]
                .into_iter()
                .find(|r| header("bdnfs-role") == Some(role(*r)))?,
            urgency: [Urgency::Read, Urgency::Ahead, Urgency::Stage]
                .into_iter()
                .find(|u| header("bdnfs-urgency") == Some(urgency(*u)))?,
        })
    }
}

/// The most that one request asks for: a long extent, and what an unaligned one touches beyond it.
pub const MOST: u64 = (crate::extent::MAX_EXTENT_BLOCKS + 1) * BLOCK;

fn role(role: Role) -> &'static str {
    match role {
        Role::Owner => "owner",
        Role::Holder => "holder",
        Role::Leaver => "leaver",
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

/// The frames of an answer.
pub type Frames = BoxStream<'static, Result<Frame>>;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The next bytes of the range.
    Data(Bytes),
    /// So much as [`PART`] of the next bytes has come. It isn't sent, but noticed: they are given when they are complete.
    Part,
    /// It is on its way.
    Wait,
    /// The rest can't be had here.
    End,
}

/// What is noticed of bytes that arrive, in bytes.
pub const PART: usize = 64 << 10;

impl Frame {
    /// As it is sent, in pieces.
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

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// So many bytes of the range follow.
    Data(u32),
    /// It is on its way.
    Wait,
    /// The rest can't be had here.
    End,
}

impl Head {
    fn encode(self) -> Bytes {
        let (letter, len) = match self {
            Self::Data(len) => (b'D', len),
            Self::Wait => (b'W', 0),
            Self::End => (b'E', 0),
        };
        let mut head = BytesMut::with_capacity(HEAD);
        head.put_u8(letter);
        head.put_u32_le(len);
        head.freeze()
    }

    /// The head that was sent so.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] for what is none.
    pub(super) fn parse(mut head: &[u8]) -> Result<Self> {
        let (letter, len) = (head.try_get_u8(), head.try_get_u32_le());
        match (letter, len) {
            // Room is made for it before it comes.
            (Ok(b'D'), Ok(len)) if (1..=BLOCK).contains(&len.into()) => Ok(Self::Data(len)),
            (Ok(b'W'), Ok(0)) => Ok(Self::Wait),
            (Ok(b'E'), Ok(0)) => Ok(Self::End),
            _ => Err(Error::new(Kind::Corrupt, "what is no frame")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn ask() -> impl Strategy<Value = Ask> {
        let urgency = prop::sample::select(vec![Urgency::Read, Urgency::Ahead, Urgency::Stage]);
        let role = prop::sample::select(vec![Role::Owner, Role::Holder, Role::Leaver]);
        ("[a-zA-Z0-9_-]{1,64}", any::<[[u8; 32]; 2]>(), 0..1u64 << 50, 1..MOST, 0..1u64 << 50, role, urgency)
            .prop_map(|(tenant, [snapshot, blob], start, len, behind, role, urgency)| Ask {
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
        fn a_request_arrives_as_it_was_sent(ask in ask()) {
            let headers: HashMap<_, _> = ask.headers().into_iter().collect();
            prop_assert_eq!(Ask::parse(&ask.path(), |name| headers.get(name).map(String::as_str)), Some(ask));
        }

        #[test]
        fn what_is_no_request_is_none(path in ".{0,80}", value in ".{0,40}") {
            prop_assert_eq!(Ask::parse(&path, |_| Some(&value)), None);
        }

        #[test]
        fn hostile_bytes_are_a_head_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..=HEAD)) {
            if let Ok(head) = Head::parse(&bytes) {
                prop_assert_eq!(&head.encode()[..], bytes);
            }
        }
    }

    #[test]
    fn a_frame_is_sent_with_its_head_and_one_that_is_too_long_as_several() {
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
    fn too_much_at_once_is_no_request() {
        let header = |name: &str| match name {
            "range" => Some("bytes=0-17825792"),
            "bdnfs-size" => Some("99999999999"),
            "bdnfs-role" => Some("owner"),
            "bdnfs-urgency" => Some("read"),
            _ => Some("0000000000000000000000000000000000000000000000000000000000000000"),
        };
        let path = format!("/v1/tenants/t/blobs/{}", Digest([0; 32]));
        assert_eq!(Ask::parse(&path, header), None);
        let shorter = |name: &str| if name == "range" { Some("bytes=0-17825791") } else { header(name) };
        assert!(Ask::parse(&path, shorter).is_some());
    }
}
