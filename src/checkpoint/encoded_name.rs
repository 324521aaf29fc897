//! The names of projects and checkpoints as single parts of keys and of URIs.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The longest encoded name, in bytes: a file's name has 255, and a directory that holds a mirror adds to it while it is
/// written.
pub const MAX_ENCODED_BYTES: usize = 240;

/// The characters that are percent-encoded in a part of a key.
const KEY_ENCODE_SET: AsciiSet = NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');
/// The characters that are percent-encoded in a URI, where a slash separates the parts of a path.
const URI_ENCODE_SET: AsciiSet = KEY_ENCODE_SET.remove(b'/');

/// A name as one part of a key: what is no letter, digit, `.`, `_` or `-` as `%` and two upper-case hexadecimal digits,
/// likewise the dots of `.` and `..`.
pub fn encode(name: &str) -> String {
    match name {
        "." | ".." => name.replace('.', "%2E"),
        _ => utf8_percent_encode(name, &KEY_ENCODE_SET).to_string(),
    }
}

/// A name in a URI, with its slashes.
pub(super) fn encode_path(name: &str) -> String {
    utf8_percent_encode(name, &URI_ENCODE_SET).to_string()
}

/// The name that was encoded; `None` where it is no text.
pub fn decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}
