//! Asking a server for a part of a file, and holding the answer to it.

use std::ops::Range;

use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use reqwest::{Response, StatusCode};

use super::changed;
use crate::client::header;
use crate::error::{Error, Kind, Result};

/// The value of `Accept-Encoding` that asks for the bytes as they are.
pub(super) const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// Asks for `range`, which is not empty, as it is.
pub(super) fn ask(headers: &mut HeaderMap, range: &Range<u64>) -> Result<()> {
    headers.insert(ACCEPT_ENCODING, IDENTITY);
    headers.insert(RANGE, value(&format!("bytes={}-{}", range.start, range.end - 1))?);
    Ok(())
}

/// Whether the body of `response` is exactly `range` of a file of `size` bytes.
pub(super) fn check(response: &Response, size: u64, range: &Range<u64>, what: &str) -> Result<()> {
    if header(response.headers(), &CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let text = format!("{what}: the server sends it encoded, though asked not to");
        return Err(Error::new(Kind::Unsupported, text));
    }
    part(response, size, range, what)
}

/// The same, however the body is encoded.
pub(super) fn part(response: &Response, size: u64, range: &Range<u64>, what: &str) -> Result<()> {
    let told = response.content_length();
    if response.status() == StatusCode::OK {
        return match told {
            Some(len) if len != size => Err(changed(what, "its size is another")),
            _ if *range == (0..size) => Ok(()),
            _ => {
                let text = format!("{what}: the server sends no parts of files (it ignores Range)");
                Err(Error::new(Kind::Unsupported, text))
            }
        };
    }
    match header(response.headers(), &CONTENT_RANGE).and_then(content_range) {
        Some((_, total)) if total != size => Err(changed(what, "its size is another")),
        Some((Some(sent), _)) if sent == *range && told.is_none_or(|len| len == sent.end - sent.start) => {
            Ok(())
        }
        _ => {
            let text = format!("{what}: the server sends another part of the file than was asked");
            Err(Error::new(Kind::Corrupt, text))
        }
    }
}

/// The range and the whole length in a `Content-Range` (RFC 9110, section 14.4).
pub(super) fn content_range(value: &str) -> Option<(Option<Range<u64>>, u64)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let range = match range.split_once('-') {
        Some((first, last)) => Some(first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?),
        None if range == "*" => None,
        None => return None,
    };
    Some((range, total.parse().ok()?))
}

/// `text` as a header's value.
pub(super) fn value(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text)
        .map_err(|e| Error::with(Kind::Invalid, "a version can't be sent in a header", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read() {
        assert_eq!(content_range("bytes 0-0/9"), Some((Some(0..1), 9)));
        assert_eq!(content_range("bytes */0"), Some((None, 0)));
        for bad in ["bytes 0-0/*", "bytes 0/9", "0-0/9", "bytes 0-18446744073709551615/9", "bytes a-b/9"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}
