//! Asking a server for a part of a file in the version that a snapshot pinned, and checking the response: what all origins
//! but local files have in common.

use std::ops::Range;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use reqwest::{Response, StatusCode};

use super::{changed, missing_file_error};
use crate::blob::Blob;
use crate::error::{Error, Kind, Result};
use crate::http_client::{body_of_length, header, transport_error};
use crate::tier::Body;

/// The value of `Accept-Encoding` that asks for the bytes as they are.
pub(super) const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// A part of a blob that is asked for.
pub(super) struct RangeRequest {
    /// The file's name in messages.
    pub name: String,
    /// The size of the whole file, in bytes.
    size: u64,
    /// The requested bytes; not empty.
    range: Range<u64>,
}

impl RangeRequest {
    /// The request for `range`, which is not empty, of `blob`; messages call it `name`.
    pub(super) fn new(name: String, blob: &Blob, range: Range<u64>) -> Self {
        Self { name, size: blob.size, range }
    }

    /// Asks for the range, in whatever encoding.
    pub(super) fn set_range(&self, headers: &mut HeaderMap) {
        set_range(headers, &self.range);
    }

    /// Asks for the range, not encoded.
    pub(super) fn set_headers(&self, headers: &mut HeaderMap) {
        headers.insert(ACCEPT_ENCODING, IDENTITY);
        self.set_range(headers);
    }

    /// The number of bytes that are asked for.
    pub(super) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The error of a failed request. Content that is not found any more is no longer that of the snapshot.
    pub(super) fn failed(&self, error: Error) -> Error {
        match error.kind() {
            Kind::NotFound => missing_file_error(&self.name, &error.to_string()),
            Kind::Changed => self.changed(&error.to_string()),
            // What was read once is no wrong request: 400 RequestTimeout, 409, 423 pass.
            Kind::Invalid => Error::new(Kind::Unavailable, format!("{}: {error}", self.name)),
            _ => error.context(&self.name),
        }
    }

    /// The error for a file that is no longer what the snapshot pinned.
    pub(super) fn changed(&self, how: &str) -> Error {
        changed(&self.name, how)
    }

    /// The error for a response without the version that the server's earlier ones had.
    pub(super) fn lacks_version(&self) -> Error {
        let text = "the server's response lacks the version of its earlier ones; perhaps another server responds in its place";
        self.error(Kind::Unsupported, text)
    }

    /// Checks that the body of `response` is exactly the range, not encoded.
    pub(super) fn check(&self, response: &Response) -> Result<()> {
        self.check_encoding(response)?;
        self.check_range(response)
    }

    /// Checks that the body of `response` is not encoded, unless it is a part of what is stored so.
    pub(super) fn check_encoding(&self, response: &Response) -> Result<()> {
        match is_encoded(response) && !is_part(response) {
            true => Err(encoded().context(&self.name)),
            false => Ok(()),
        }
    }

    /// Checks that the body of `response` is exactly the range, however it is encoded.
    pub(super) fn check_range(&self, response: &Response) -> Result<()> {
        let (len, sent) =
            (response.content_length(), header(response.headers(), &CONTENT_RANGE).and_then(content_range));
        let other_size = || self.changed("its size is another");
        // `rclone serve s3` answers 200 and sends the range all the same.
        if response.status() == StatusCode::OK && sent.is_none() {
            return match len {
                Some(len) if len != self.size => Err(other_size()),
                _ if self.range == (0..self.size) => Ok(()),
                _ => {
                    Err(self.error(Kind::Unsupported, "the server ignores Range and sends whole files only"))
                }
            };
        }
        match sent {
            Some((_, Some(total))) if total != self.size => Err(other_size()),
            Some((Some(sent), _)) if sent == self.range && len.is_none_or(|len| len == self.bytes()) => {
                Ok(())
            }
            // Allowed, and no known server does it.
            Some((Some(sent), _)) if sent.start == self.range.start && sent.end < self.range.end => {
                Err(self.error(Kind::Unsupported, "the server sends less than the part that was asked for"))
            }
            _ => {
                Err(self.error(Kind::Corrupt, "the server sends another part of the file than was asked for"))
            }
        }
    }

    /// The body of `response`, which has to have the range's length.
    pub(super) fn body(&self, response: Response) -> Body {
        self.body_from(response.bytes_stream().map(|piece| piece.map_err(transport_error)))
    }

    /// The range out of the body of `response`, which is the whole file.
    pub(super) fn body_of_whole(&self, response: Response) -> Body {
        let body = response.bytes_stream().map_err(transport_error).boxed();
        let state = (body, 0, self.range.clone());
        let pieces = stream::try_unfold(state, |(mut body, mut at, range)| async move {
            while at < range.end {
                let Some(piece) = body.try_next().await? else { break };
                let (from, to) = (range.start.max(at) - at, range.end.min(at + piece.len() as u64) - at);
                at += piece.len() as u64;
                if from < to {
                    let part = piece.slice(from as usize..to as usize);
                    return Ok(Some((part, (body, at, range))));
                }
            }
            Ok(None)
        });
        self.body_from(pieces)
    }

    /// Whether the body of `response` is the whole file, though a part may have been asked for.
    ///
    /// # Errors
    /// [`Kind::Changed`] when it has another size.
    pub(super) fn is_whole(&self, response: &Response) -> Result<bool> {
        let whole = response.status() == StatusCode::OK && !is_part(response);
        match response.content_length() {
            Some(len) if whole && len != self.size => Err(self.changed("its size is another")),
            _ => Ok(whole),
        }
    }

    /// The body made of pieces that were read before.
    pub(super) fn body_from(&self, pieces: impl Stream<Item = Result<Bytes>> + Send + 'static) -> Body {
        body_of_length(pieces, self.bytes(), self.name.clone())
    }

    fn error(&self, kind: Kind, text: &str) -> Error {
        Error::new(kind, format!("{}: {text}", self.name))
    }
}

/// Whether `response` is a part of what is stored, as it is stored: had it been encoded on its way, its whole length would be
/// another than the listed one, which [`RangeRequest::check_range`] sees.
pub(super) fn is_part(response: &Response) -> bool {
    let sent = header(response.headers(), &CONTENT_RANGE).and_then(content_range);
    sent.is_some_and(|(_, total)| total.is_some())
}

/// Whether `response` is encoded, for all that its headers say.
pub(super) fn is_encoded(response: &Response) -> bool {
    header(response.headers(), &CONTENT_ENCODING).is_some_and(|coding| coding != "identity")
}

/// The error for content that is encoded on its way.
pub(super) fn encoded() -> Error {
    Error::new(Kind::Unsupported, "the server sends it encoded, though asked not to")
}

/// Asks for `range`, which is not empty.
pub(super) fn set_range(headers: &mut HeaderMap, range: &Range<u64>) {
    let value = format!("bytes={}-{}", range.start, range.end - 1);
    headers.insert(RANGE, HeaderValue::from_str(&value).expect("digits"));
}

/// The range and the whole length in a `Content-Range`, each `None` where the server does not know it (RFC 9110, section 14.4).
pub(super) fn content_range(value: &str) -> Option<(Option<Range<u64>>, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let range = match range.split_once('-') {
        Some((first, last)) => Some(first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?),
        None if range == "*" => None,
        None => return None,
    };
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((range, total))
}

/// A version as the value of a header that makes a request conditional.
///
/// # Errors
/// [`Kind::Invalid`] for characters that no header may contain.
pub(super) fn condition(version: &str) -> Result<HeaderValue> {
    let text = "the version contains characters that no HTTP header may contain";
    HeaderValue::from_str(version).map_err(|e| Error::with(Kind::Invalid, text, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_range_is_read_or_refused() {
        assert_eq!(content_range("bytes 0-0/9"), Some((Some(0..1), Some(9))));
        assert_eq!(content_range("bytes */0"), Some((None, Some(0))));
        assert_eq!(content_range("bytes 0-0/*"), Some((Some(0..1), None)));
        for bad in ["bytes 0/9", "0-0/9", "bytes 0-18446744073709551615/9", "bytes a-b/9"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}
